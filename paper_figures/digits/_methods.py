"""What is done with a noisy gradient: denoisers, filters over steps, and the steps that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from dprmt.spectra import denoise, momentum_noise_scale
from paper_figures.digits._networks import Weights, is_matrix
from paper_figures.shrinkers import blend, spiked_polar

Filter = Literal["none", "gate", "gate without norm", "blend", "blend without norm"]

_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8  # Adam's
_MUON = 0.95
_GAIN = 0.7  # κ of DiSK
_PAPER_GATE = 1.02


@dataclass(frozen=True)
class Method:
    """One way from noisy gradients to weights; all spend the same ε.

    Attributes
    ----------
    gradient, momentum : str
        What each matrix of the gradient, or of Adam's bias-corrected first moment, goes through.
    over_steps : {"none", "low pass", "kalman"}
        DOPPLER's filter of first order, or DiSK's, which also moves the point at which gradients are taken.
    step : {"adam", "muon", "spiked muon"}
        Adam; or, for the matrices, Muon by five Newton-Schulz iterations, or by what stands out of the noise.
    averaged : bool
        Whether a moving average of the weights is what is tested.
    """

    gradient: Filter = "none"
    momentum: Filter = "none"
    over_steps: Literal["none", "low pass", "kalman"] = "none"
    step: Literal["adam", "muon", "spiked muon"] = "adam"
    averaged: bool = False


METHODS: Mapping[str, Method] = {
    "Adam": Method(),
    "gate": Method(gradient="gate"),
    "gate without norm correction": Method(gradient="gate without norm"),
    "blend": Method(gradient="blend"),
    "momentum gate": Method(momentum="gate"),
    "momentum blend": Method(momentum="blend"),
    "average of weights": Method(averaged=True),
    "DOPPLER": Method(over_steps="low pass"),
    "DiSK": Method(over_steps="kalman"),
    "Muon": Method(step="muon"),
    "spiked Muon": Method(step="spiked muon"),
}
"""By the name that tables use; the first is what the others are compared with."""

ALSO: Mapping[str, Method] = {"blend without norm correction": Method(gradient="blend without norm")}
"""Measured after these: compared with one of them alone, so that the intervals of the table stay what they were."""


@dataclass
class Rule:
    """The state of one method over many runs, and its steps.

    ``rates``: of each run; ``sigma``: the noise of one entry of a gradient.
    """

    method: Method
    rates: torch.Tensor
    sigma: float
    time: int = 0
    first: Weights = field(default_factory=dict)
    second: Weights = field(default_factory=dict)
    memory: Weights = field(default_factory=dict)
    before: Weights = field(default_factory=dict)
    last_move: Weights = field(default_factory=dict)
    average: Weights = field(default_factory=dict)

    def point(self, weights: Weights) -> Weights:
        """Where the next gradient is taken: DiSK's with γ = (1 - κ)/κ needs the moved point alone."""
        if self.method.over_steps != "kalman" or not self.last_move:
            return weights
        return {name: value + (1 - _GAIN) / _GAIN * self.last_move[name] for name, value in weights.items()}

    def move(self, weights: Weights, gradient: Weights) -> Weights:
        """The weights after one more noisy gradient."""
        self.time += 1
        gradient = self._over_steps(gradient)
        gradient = {name: _filtered(value, name, self.method.gradient, self.sigma) for name, value in gradient.items()}
        steps = self._adam(gradient) if self.method.step == "adam" else self._muon(gradient)
        moved = {name: value - _by_run(self.rates, steps[name]) for name, value in weights.items()}
        self.last_move = {name: moved[name] - value for name, value in weights.items()}
        if self.method.averaged:
            self.average = _running(self.average, moved, _FIRST)
        return moved

    def tested(self, weights: Weights) -> Weights:
        """What is tested after the last step."""
        if not self.method.averaged:
            return weights
        return {name: value / (1 - _FIRST**self.time) for name, value in self.average.items()}

    def _over_steps(self, gradient: Weights) -> Weights:
        if self.method.over_steps == "kalman":
            self.memory = gradient if not self.memory else _running(self.memory, gradient, 1 - _GAIN)
            return self.memory
        if self.method.over_steps == "low pass":
            both = {
                name: (value + self.before[name]) / 2 if self.before else value / 2 for name, value in gradient.items()
            }
            self.before, self.memory = gradient, _running(self.memory, both, _FIRST)
            # What the same filter makes of a constant 1.
            constant = 1 - _FIRST**self.time - (1 - _FIRST) / 2 * _FIRST ** (self.time - 1)
            return {name: value / constant for name, value in self.memory.items()}
        return gradient

    def _adam(self, gradient: Weights) -> Weights:
        self.first = _running(self.first, gradient, _FIRST)
        self.second = _running(self.second, {name: value.square() for name, value in gradient.items()}, _SECOND)
        sigma = self.sigma * momentum_noise_scale(_FIRST, self.time)
        steps = {}
        for name, value in self.first.items():
            mean = value / (1 - _FIRST**self.time)
            root = self.second[name] / (1 - _SECOND**self.time)
            if self.method.momentum != "none" and is_matrix(name):
                noisy, mean = mean, _filtered(mean, name, self.method.momentum, sigma)
                replaced = (mean != noisy).any(dim=(-2, -1), keepdim=True)
                root = torch.where(
                    replaced, root.clamp_min(self.sigma**2), root
                )  # as the library's, against heavy tails
            steps[name] = mean / (root.sqrt() + _TINY)
        return steps

    def _muon(self, gradient: Weights) -> Weights:
        self.memory = _running(self.memory, gradient, _MUON)
        sigma = self.sigma * momentum_noise_scale(_MUON, self.time)
        steps = self._adam(gradient)  # for the biases
        for name in filter(is_matrix, self.memory):
            momentum = self.memory[name] / (1 - _MUON**self.time)
            polar = newton_schulz(momentum) if self.method.step == "muon" else spiked_polar(momentum, sigma)
            steps[name] = 0.2 * math.sqrt(max(momentum.shape[-2:])) * polar  # entries of about the size of Adam's
        return steps


def newton_schulz(matrices: torch.Tensor) -> torch.Tensor:
    """Five of Muon's iterations: all singular values to about 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if wide else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp_min(1e-12)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if wide else x


def _filtered(value: torch.Tensor, name: str, how: Filter, sigma: float) -> torch.Tensor:
    if how == "none" or not is_matrix(name):
        return value
    if how.startswith("blend"):
        return blend(value, sigma, how == "blend")
    method: Literal["paper", "shrink"] = "paper" if how == "gate" else "shrink"
    return denoise(value, sigma, _PAPER_GATE, method=method, below_gate="unchanged")


def _running(average: Weights, new: Weights, decay: float) -> Weights:
    return {name: decay * average.get(name, torch.zeros(())) + (1 - decay) * value for name, value in new.items()}


def _by_run(rates: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return rates.view(-1, *[1] * (value.ndim - 1)) * value
