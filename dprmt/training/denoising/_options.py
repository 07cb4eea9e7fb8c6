"""Options of a denoising step, the methods that their names stand for, and what a step reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Annotated, Any, TypeAlias

import torch

from dprmt.spectra import LayerReport, denoise_layers, kappa_for
from dprmt.training.recipes import DENOISERS, DenoisingRecipe
from dprmt.training.recipes._fields import Texts, one_of

Gradients: TypeAlias = dict[str, torch.Tensor]
Method: TypeAlias = Callable[[Gradients, float], tuple[Gradients, dict[str, Any]]]
"""Matrices by name, and the noise of their entries, to those that replace them and a report."""


@dataclass(frozen=True)
class Denoising(DenoisingRecipe):
    """Options of a denoising step: those of a recipe, with the method "shrink" and all matrices by default.

    Every parameter with two axes is a matrix and is denoised: linear weights in either orientation, LoRA factors and
    embeddings. Embeddings are included because the noise fills all rows of their gradient, however few rows the batch
    touched. Biases, normalization weights and convolution kernels are not changed.

    Parameters
    ----------
    method : {"none", "shrink", "paper"}
        "paper" is Eq. 10. "shrink", the default, is Eq. 10 without its norm correction, which at tuned rates cost
        accuracy in two of six settings and gained it in one. "none" does not change the gradient, and passes the noise
        to the optimizer. Or another name registered in `dprmt.training.recipes.DENOISERS`.
    kappa, false_alarm
        As for `dprmt.training.recipes.DenoisingRecipe`.
    exclude : sequence of str
        Names of parameters to leave alone, with the wildcards of `fnmatch`, such as ``"*embeddings*"``; by default
        none.

    Raises
    ------
    ParameterError
        If an option is outside its range.

    References
    ----------
    Eq. 10 and Algorithm 1 of arXiv:2510.01137v3; appendix H.2 without norm correction.

    Examples
    --------
    >>> Denoising(kappa=1.05).method, Denoising("paper").kappa
    ('shrink', 1.02)
    >>> Denoising(method="best")
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: method must be one of 'none', 'shrink', 'paper'..., got 'best'
    """

    section = ""
    method: Annotated[str, one_of(DENOISERS)] = "shrink"
    exclude: Texts = ()

    def apply(self, gradients: Mapping[str, torch.Tensor], sigma: float) -> tuple[Gradients, dict[str, LayerReport]]:
        """Denoise a named gradient; nothing is modified.

        Parameters
        ----------
        gradients : mapping of str to Tensor
            The noisy gradient by parameter.
        sigma : float
            Standard deviation of the noise in one entry of it, >= 0.

        Returns
        -------
        gradients : dict of Tensor
            The same names in the same order; what was left alone is the same object.
        report : dict of LayerReport
            By name, of the parameters that are not excluded; empty for method "none".

        Raises
        ------
        ParameterError
            If a matrix is not finite, or ``sigma`` is negative.

        Formal guarantees
        -----------------
        As `dprmt.spectra.denoise_layers`: a function of the noisy gradient and the options alone.
        """
        layers = {name: gradient for name, gradient in gradients.items() if not matches(name, self.exclude)}
        with ExitStack() as precise:
            # Autocasting, if a caller has left it on, would round the products of the denoiser to bfloat16.
            for device in {gradient.device.type for gradient in layers.values()}:
                precise.enter_context(torch.autocast(device, enabled=False))
            denoised, report = self._denoiser(layers, sigma)
        return {**gradients, **denoised}, report

    @cached_property
    def _denoiser(self) -> Method:
        method: Method = DENOISERS.load(self.method)(self)
        return method


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether the name is one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def nothing(options: Denoising) -> Method:
    """Return no denoiser: nothing is decomposed or reported."""
    return lambda layers, sigma: (dict(layers), {})


def shrinkage(options: Denoising) -> Method:
    """Shrink above the gate, with or without the norm correction of Eq. 10 of arXiv:2510.01137v3."""
    alarm = options.false_alarm
    kappa = options.kappa if alarm is None else partial(kappa_for, false_alarm=alarm)
    method: Any = options.method
    return partial(denoise_layers, kappa=kappa, below_gate="unchanged", method=method)


@dataclass(frozen=True)
class DenoisingReport:
    """Effect of one denoising step on each layer, read from the released gradient.

    Attributes
    ----------
    sigma : float
        Standard deviation of the noise in one entry of the gradient, in the gradient's units.
    layers : dict of LayerReport
        By parameter: shape, top singular value over the bulk edge, number of spikes, whether it was replaced.

    Formal guarantees
    -----------------
    A function of the released gradient, of σ (expected, not realised, batch size) and of the options: as private as
    the gradient, and no more private than it.
    """

    sigma: float
    layers: Mapping[str, LayerReport]

    @property
    def replaced(self) -> tuple[str, ...]:
        """Names of the layers that passed the gate and were replaced."""
        return tuple(name for name, layer in self.layers.items() if layer.denoised)
