"""What a denoising step does, in words that fit into a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal, get_args

import torch

from dprmt._validation import ParameterError, check_choice, check_real
from dprmt.spectra import LayerReport, denoise_layers, kappa_for

Method = Literal["none", "paper"]
Loss = Literal["frobenius", "operator", "nuclear"]
Backend = Literal["auto", "gram", "lanczos", "svd"]


@dataclass(frozen=True)
class Denoising:
    """Options of a denoising step.

    Every parameter with two axes is a matrix and is denoised: linear weights in either orientation (a ``Conv1D`` of
    GPT-2 is the transpose of a ``Linear``, with the same singular values), LoRA factors, and embeddings as well: the
    noise fills all rows of an embedding's gradient, however few of them the batch touched, and the theory asks
    nothing of the clean matrix but its singular values. All others, biases, norms and convolution kernels, are left
    alone.

    Parameters
    ----------
    method : {"none", "paper"}
        "paper" is Eq. 10; "none" leaves the gradient as it is, without looking at it: a step then reports no layer,
        but the spectra it is asked for, and tells the optimizer the noise.
    kappa : float
        The gate κ >= 1, in units of the bulk edge.
    false_alarm : float, optional
        Probability in [1e-30, 1 - 1e-6] that a layer of pure noise passes the gate; the gate is then that of
        `dprmt.spectra.kappa_for` for each shape, in place of ``kappa``.
    norm_correction : bool
        Whether a denoised layer gets the norm of the noisy one.
    loss : {"frobenius", "operator", "nuclear"}
        The shrinker; the paper's is Frobenius.
    backend : {"auto", "gram", "lanczos", "svd"}
        How singular values are found.
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
    >>> Denoising(kappa=1.05).kappa
    1.05
    >>> Denoising(method="best")
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: method must be one of 'none', 'paper', got 'best'
    """

    method: Method = "paper"
    kappa: float = 1.02
    false_alarm: float | None = None
    norm_correction: bool = True
    loss: Loss = "frobenius"
    backend: Backend = "auto"
    exclude: Sequence[str] = ()
    spectra: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_choice("method", self.method, get_args(Method))
        check_real("kappa", self.kappa, low=1.0)
        if self.false_alarm is not None:
            check_real("false_alarm", self.false_alarm, low=1e-30, high=1 - 1e-6)
        if not isinstance(self.norm_correction, bool):
            raise ParameterError("norm_correction", self.norm_correction, "True or False")
        check_choice("loss", self.loss, get_args(Loss))
        check_choice("backend", self.backend, get_args(Backend))
        for name in ("exclude", "spectra"):
            object.__setattr__(self, name, _patterns(name, getattr(self, name)))

    def apply(
        self, gradients: Mapping[str, torch.Tensor], sigma: float
    ) -> tuple[dict[str, torch.Tensor], dict[str, LayerReport]]:
        """Denoise a named gradient; nothing is modified.

        Parameters
        ----------
        gradients : mapping of str to Tensor
            The noisy gradient, by parameter.
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
        As `dprmt.spectra.denoise_layers`: a function of the noisy gradient and of the options alone.
        """
        if self.method == "none":
            return dict(gradients), {}
        layers = {name: gradient for name, gradient in gradients.items() if not matches(name, self.exclude)}
        denoised, report = denoise_layers(
            layers,
            sigma,
            self._kappa(),
            self.norm_correction,
            loss=self.loss,
            backend=self.backend,
        )
        return {name: denoised.get(name, gradient) for name, gradient in gradients.items()}, report

    def _kappa(self) -> float | Callable[[tuple[int, int]], float]:
        return self.kappa if self.false_alarm is None else partial(kappa_for, false_alarm=self.false_alarm)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether the name is one of the patterns.

    Returns
    -------
    bool
        Upper and lower case differ.
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _patterns(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise ParameterError(name, value, "a sequence of names")
    return tuple(value)
