"""Options of a denoising step, as values that a recipe can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, get_args

import torch

from dprmt._validation import ParameterError, check_choice, check_real
from dprmt.spectra import LayerReport
from dprmt.training.recipes import DENOISERS

Target = Literal["gradient", "momentum"]
Loss = Literal["frobenius", "operator", "nuclear"]
Backend = Literal["auto", "gram", "lanczos", "svd"]
Method: TypeAlias = Callable[
    [Mapping[str, torch.Tensor], float | Mapping[str, float]], tuple[dict[str, torch.Tensor], dict[str, Any]]
]
"""Matrices by name, and the noise of their entries, to those that replace them and a report."""


@dataclass(frozen=True)
class Denoising:
    """Options of a denoising step.

    Every parameter with two axes is a matrix and is denoised: linear weights in either orientation, LoRA factors and
    embeddings. Embeddings are included because the noise fills all rows of their gradient, however few rows the batch
    touched. Biases, normalization weights and convolution kernels are not changed.

    Parameters
    ----------
    method : {"none", "shrink", "paper"}
        "paper" is Eq. 10. "shrink", the default, is Eq. 10 without its norm correction, which at tuned rates cost
        accuracy in two of six settings and gained it in one. "none" does not change the gradient: a step then reports
        only the requested spectra, and passes the noise to the optimizer. Or another name registered in
        `dprmt.training.recipes.DENOISERS`.
    on : {"gradient", "momentum"}
        Denoise every gradient before the optimizer uses it, or the optimizer's momentum before it moves a parameter;
        the momentum's noise is smaller (`dprmt.spectra.momentum_noise_scale`). "momentum" needs a step attached to an
        optimizer with momentum: Adam, AdamW, DPAdamBC or SGD.
    kappa : float
        The gate κ >= 1 of "shrink" and "paper", in units of the bulk edge.
    false_alarm : float, optional
        Probability in [1e-30, 1 - 1e-6] that a layer of pure noise passes the gate. The gate is then
        `dprmt.spectra.kappa_for` of each shape, instead of ``kappa``.
    norm_correction : bool, optional
        Whether a denoised layer gets the norm of the noisy one. By default True for "paper", and False for "shrink"
        and for other names unless they specify it (`keeps_norm`).
    loss : {"frobenius", "operator", "nuclear"}
        The loss that the shrinker of "shrink" and "paper" minimizes; Eq. 10 uses Frobenius.
    backend : {"auto", "gram", "lanczos", "svd"}
        Method by which "shrink" and "paper" compute singular values.
    exclude : sequence of str
        Names of parameters to leave alone, with the wildcards of `fnmatch`, such as ``"*embeddings*"``.
    spectra : sequence of str
        Names of matrices of which the report keeps all singular values, with wildcards. Costs two decompositions
        per matrix and step.

    Raises
    ------
    ParameterError
        If an option is outside its range.

    References
    ----------
    Eq. 10 and Algorithm 1 of arXiv:2510.01137v3; appendix H.2 without norm correction.

    Examples
    --------
    >>> Denoising(kappa=1.05).keeps_norm, Denoising("paper", kappa=1.05).keeps_norm
    (False, True)
    >>> Denoising(method="best")
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: method must be one of 'none', 'shrink', 'paper'..., got 'best'
    """

    method: str = "shrink"
    on: Target = "gradient"
    kappa: float = 1.02
    false_alarm: float | None = None
    norm_correction: bool | None = None
    loss: Loss = "frobenius"
    backend: Backend = "auto"
    exclude: Sequence[str] = ()
    spectra: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_choice("method", self.method, DENOISERS)
        check_choice("on", self.on, get_args(Target))
        check_real("kappa", self.kappa, low=1.0)
        if self.false_alarm is not None:
            check_real("false_alarm", self.false_alarm, low=1e-30, high=1 - 1e-6)
        if not isinstance(self.norm_correction, bool | None):
            raise ParameterError("norm_correction", self.norm_correction, "True, False or None")
        check_choice("loss", self.loss, get_args(Loss))
        check_choice("backend", self.backend, get_args(Backend))
        for name in ("exclude", "spectra"):
            object.__setattr__(self, name, _patterns(name, getattr(self, name)))

    @property
    def keeps_norm(self) -> bool:
        """True if a denoised layer gets the norm of the noisy one: ``norm_correction``, or else the default of the
        method.
        """
        return DENOISERS[self.method].keeps_norm if self.norm_correction is None else self.norm_correction

    def apply(
        self,
        gradients: Mapping[str, torch.Tensor],
        sigma: float | Mapping[str, float],
    ) -> tuple[dict[str, torch.Tensor], dict[str, LayerReport]]:
        """Denoise a named gradient; nothing is modified.

        Parameters
        ----------
        gradients : mapping of str to Tensor
            The noisy gradient, or momentum, by parameter.
        sigma : float or mapping of str to float
            Standard deviation of the noise in one entry of it, >= 0, for all or by name.

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
        return self.denoiser()(gradients, sigma)

    def denoiser(self) -> Method:
        """Prepare `apply` for the gradients of many steps, so that constant values are computed once.

        Returns
        -------
        callable
            From gradients and sigma to what `apply` returns.
        """
        method = DENOISERS[self.method].meaning()(self)

        def denoise(gradients: Mapping[str, torch.Tensor], sigma: float | Mapping[str, float]) -> Any:
            layers = {name: gradient for name, gradient in gradients.items() if not matches(name, self.exclude)}
            denoised, report = method(layers, sigma)
            return {**gradients, **denoised}, report

        return denoise


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether the name is one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _patterns(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise ParameterError(name, value, "a sequence of names")
    return tuple(value)
