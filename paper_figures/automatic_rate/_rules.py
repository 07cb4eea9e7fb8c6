"""Rules by which a run sets its rate, and those that it is held against; each for all of its lanes at once.

A rule sees what is released, the noise's standard deviation and the parameters: it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paper_figures.automatic_rate._problems import Lanes, Problem, inner, times

BETA, BETA2 = 0.9, 0.999
OPTIMIZERS = ("gd", "gdm", "adam", "adambc")
_FLOOR = 0.01  # of DP-AdamBC, over the noise's variance


class Direction:
    """What an optimizer makes of a gradient, before the rate."""

    def __init__(self, optimizer: str, sigma: float) -> None:
        self._optimizer, self._variance = optimizer, sigma**2
        self._first: Lanes = []
        self._second: Lanes = []
        self._step = 0

    def of(self, gradient: Lanes) -> Lanes:
        """The direction, uphill."""
        self._step += 1
        if self._optimizer == "gd":
            return gradient
        if not self._first:
            self._first = [torch.zeros_like(g) for g in gradient]
            self._second = [torch.zeros_like(g) for g in gradient] if self._optimizer != "gdm" else []
        if self._optimizer == "gdm":
            for m, g in zip(self._first, gradient, strict=True):
                m.mul_(BETA).add_(g)
            return self._first
        for m, v, g in zip(self._first, self._second, gradient, strict=True):
            m.mul_(BETA).add_(g, alpha=1 - BETA)
            v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        one, two = 1 - BETA**self._step, 1 - BETA2**self._step
        return [(m / one).div_(self._root(v / two)) for m, v in zip(self._first, self._second, strict=True)]

    def _root(self, v: torch.Tensor) -> torch.Tensor:
        if self._optimizer == "adambc":
            return (v - self._variance).clamp_min_(_FLOOR * self._variance).sqrt_()
        return v.sqrt_().add_(1e-8)


@dataclass
class State:
    """Of all lanes of a rule at the start of a step."""

    x: Lanes
    start: Lanes
    gradient: Lanes
    sigma: float
    step: int
    steps: int
    problem: Problem


class Rule:
    """Moves the parameters of its lanes."""

    def __init__(self, optimizer: str, sigma: float, rates: Sequence[float]) -> None:
        self._direction = Direction(optimizer, sigma)
        self._log_rates = torch.tensor(rates, dtype=torch.float32).log()

    def move(self, state: State) -> Lanes:
        """The parameters after the step."""
        rates = self.rates(state)
        return self._added(state, times(-rates, state.problem.lift(self._direction.of(state.gradient))))

    def rates(self, state: State) -> torch.Tensor:
        """The rate of every lane in this step."""
        return self._log_rates.exp()

    def says(self) -> dict[str, torch.Tensor]:
        """What is kept of every lane."""
        return {}

    def _added(self, state: State, update: Lanes) -> Lanes:
        return [x + u for x, u in zip(state.x, update, strict=True)]


class Fixed(Rule):
    """One rate from the first step to the last."""


class Linear(Rule):
    """From the rate down to 0 along a line."""

    def rates(self, state: State) -> torch.Tensor:
        """See `Rule`."""
        return self._log_rates.exp() * (1 - (state.step - 1) / state.steps)


class Hypergradient(Rule):
    """Baydin et al. 2018 (arXiv:1703.04782), their multiplicative rule: by the cosine with the last update."""

    _GAIN = 0.02

    def __init__(self, optimizer: str, sigma: float, rates: Sequence[float]) -> None:
        super().__init__(optimizer, sigma, rates)
        self._last: Lanes = []

    def move(self, state: State) -> Lanes:
        """See `Rule`."""
        if self._last:
            self._log_rates = self._log_rates + self._change(state)
        direction = self._direction.of(state.gradient)
        self._last = [u.clone() for u in direction]
        return self._added(state, times(-self._log_rates.exp(), state.problem.lift(direction)))

    def _change(self, state: State) -> torch.Tensor:
        lengths = inner(state.gradient, state.gradient).sqrt() * inner(self._last, self._last).sqrt()
        return torch.log1p(self._GAIN * inner(state.gradient, self._last) / lengths.clamp_min(1e-30))


class Corrected(Hypergradient):
    """The same in units of the noise along the last update: a step of the rate's logarithm of at most .3."""

    def _change(self, state: State) -> torch.Tensor:
        lengths = state.sigma * inner(self._last, self._last).sqrt()
        z = inner(state.gradient, self._last) / lengths.clamp_min(1e-30)
        return 0.3 * z.nan_to_num(-1.0).clamp(-1, 1)


class DoG(Rule):
    """Ivgi, Hinder, Carmon 2023 (arXiv:2302.12022): distance over gradients, on plain steps; the last iterate."""

    def __init__(self, optimizer: str, sigma: float, rates: Sequence[float]) -> None:
        super().__init__("gd", sigma, rates)
        self._farthest = self._squares = torch.zeros(len(rates))

    def rates(self, state: State) -> torch.Tensor:
        """See `Rule`; a lane's number is the first distance over ``1 + ‖x_0‖``."""
        way = [x - s for x, s in zip(state.x, state.start, strict=True)]
        first = self._log_rates.exp() * (1 + inner(state.start, state.start).sqrt())
        self._farthest = torch.maximum(torch.maximum(self._farthest, first), inner(way, way).sqrt())
        self._squares = self._squares + inner(state.gradient, state.gradient)
        return self._farthest / self._squares.clamp_min(1e-30).sqrt()


class Prodigy(Rule):
    """Mishchenko, Defazio 2023 (arXiv:2306.06101), for Adam, γ = 1; a lane's number is the first distance."""

    def __init__(self, optimizer: str, sigma: float, rates: Sequence[float]) -> None:
        super().__init__("gd", sigma, rates)
        self._distance = self._log_rates.exp()
        self._numerator = torch.zeros(len(rates))
        self._m: Lanes = []

    def move(self, state: State) -> Lanes:
        """See `Rule`."""
        d, g, slow = self._distance, state.gradient, math.sqrt(BETA2)
        if not self._m:
            self._m, self._v, self._s = ([torch.zeros_like(part) for part in g] for _ in range(3))
        way = [s - x for x, s in zip(state.x, state.start, strict=True)]
        self._numerator = slow * self._numerator + (1 - slow) * d**2 * inner(g, state.problem.project(way))
        self._m = [BETA * m + (1 - BETA) * part for m, part in zip(self._m, times(d, g), strict=True)]
        self._v = [BETA2 * v + (1 - BETA2) * part**2 for v, part in zip(self._v, times(d, g), strict=True)]
        self._s = [slow * s + (1 - slow) * part for s, part in zip(self._s, times(d**2, g), strict=True)]
        length = torch.stack([s.abs().flatten(1).sum(1) for s in self._s]).sum(0)
        roots = [v.sqrt() for v in self._v]
        direction = [
            m / (root + 1e-8 * d.reshape(-1, *[1] * (m.ndim - 1))) for m, root in zip(self._m, roots, strict=True)
        ]
        self._distance = torch.maximum(d, self._numerator / length.clamp_min(1e-30))
        return self._added(state, times(-d, state.problem.lift(direction)))


class Retroactive(Rule):
    """The rule of T6: z along the whole displacement, the past rescaled with the future.

    ``z - offset·min(1, 2t/T)`` above 0 says that all that was done should have been longer, and it is made longer.
    """

    def __init__(
        self,
        optimizer: str,
        sigma: float,
        rates: Sequence[float],
        offset: float = 0.6,
        gain: float = 5.0,
        cap: float = 3.5,
        end: float = 0.05,
    ) -> None:
        super().__init__(optimizer, sigma, rates)
        self._offset, self._gain, self._cap, self._end = offset, gain, cap, end
        self._turns = torch.zeros(len(rates))
        self._sign = torch.ones(len(rates))
        self._zs: list[torch.Tensor] = []

    def move(self, state: State) -> Lanes:
        """See `Rule`."""
        x = state.x
        if state.step > 1:
            way = [a - b for a, b in zip(x, state.start, strict=True)]
            z = self._z(state, way)
            self._zs.append(z)
            change = self._change(z, state)
            self._log_rates = self._log_rates + change
            x = [s + w for s, w in zip(state.start, times(change.exp(), way), strict=True)]
        left = 1 - (state.step - 1) / state.steps
        rates = self._log_rates.exp() * min(1.0, left / self._end)
        update = times(-rates, state.problem.lift(self._direction.of(state.gradient)))
        return [a + u for a, u in zip(x, update, strict=True)]

    def says(self) -> dict[str, torch.Tensor]:
        """Mean z of the second half, standard normal over √(T/2) beside the mean slope over the noise; the rate."""
        half = self._zs[len(self._zs) // 2 :]
        return {"z": torch.stack(half).mean(0), "z_all": torch.stack(self._zs).mean(0), "rate": self._log_rates.exp()}

    def _z(self, state: State, way: Lanes) -> torch.Tensor:
        seen = state.problem.project(way)
        length = state.sigma * inner(seen, seen).sqrt()
        z = -inner(state.gradient, seen) / length.clamp_min(1e-30)
        return z.nan_to_num(-5.0, posinf=5.0, neginf=-5.0)

    def _change(self, z: torch.Tensor, state: State) -> torch.Tensor:
        r = z - self._offset * min(1.0, 2 * state.step / state.steps)
        sign = torch.where(r > 0, 1.0, -1.0)
        self._turns = self._turns + (sign != self._sign)
        self._sign = sign
        return (self._gain / (1 + self._turns)).clamp_max(self._cap) * (r / 2).clamp(-1, 1)
