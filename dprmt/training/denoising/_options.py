"""What a denoising step does, in words that fit into a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, get_args

import torch

from dprmt._validation import ParameterError, check_choice, check_real
from dprmt.spectra import BlendMemory, BlendReport, LayerReport
from dprmt.training.recipes import DENOISERS

Target = Literal["gradient", "momentum"]
LayerWeights = Literal["noisy", "least-squares"]
Loss = Literal["frobenius", "operator", "nuclear"]
Backend = Literal["auto", "gram", "lanczos", "products", "svd"]
Method: TypeAlias = Callable[
    [Mapping[str, torch.Tensor], float | Mapping[str, float]], tuple[dict[str, torch.Tensor], dict[str, Any]]
]
"""Matrices by name, and the noise of their entries, to those that replace them and a report."""


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
    method : {"none", "gate", "paper", "blend"}
        "paper" is Eq. 10; "gate", the default, is Eq. 10 without its norm correction, which at tuned rates cost
        accuracy in two of six settings and gained it in one; "blend" is `dprmt.spectra.blend_layers`, whose cosine
        with the clean gradient is, by an unbiased estimate, never below that of the noisy one; "none" leaves the
        gradient as it is, without looking at it: a step then reports no layer, but the spectra it is asked for, and
        tells the optimizer the noise. Or another word that stands in `dprmt.training.recipes.DENOISERS`.
    on : {"gradient", "momentum"}
        What is denoised: every gradient before the optimizer takes it, or the optimizer's momentum, whose noise is
        smaller (`dprmt.spectra.momentum_noise_scale`), before it moves a parameter. The second is for a step attached
        to an optimizer with momentum: Adam, AdamW, DPAdamBC or SGD.
    kappa : float
        The gate κ >= 1 of "gate" and "paper", in units of the bulk edge.
    false_alarm : float, optional
        Probability in [1e-30, 1 - 1e-6] that a layer of pure noise passes the gate; the gate is then that
        of `dprmt.spectra.kappa_for` for each shape, in place of ``kappa``.
    norm_correction : bool, optional
        Whether a denoised layer gets the norm of the noisy one. By default what the method says: True of "paper"
        and "blend", False of "gate" and of other words, unless they say otherwise (`keeps_norm`).
    loss : {"frobenius", "operator", "nuclear"}
        The shrinker of "gate" and "paper"; the paper's is Frobenius.
    backend : {"auto", "gram", "lanczos", "products", "svd"}
        How "gate" and "paper" find singular values.
    memory : float
        Decay in [0, 1) of the averages over steps from which "blend" chooses its weights; 0 for a choice from each
        step alone. Momenta are averages themselves, of errors that are not independent: of them each counts alone.
    layer_weights : {"noisy", "least-squares"}
        The norm that "blend" gives to a layer: that of the noisy one, or in proportion to the signal it seems to hold.
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
    Eq. 10 and Algorithm 1 of arXiv:2510.01137v3; appendix H.2 without norm correction. "blend":
    ``docs/theory/sure_denoiser.md``.

    Examples
    --------
    >>> Denoising(kappa=1.05).keeps_norm, Denoising("paper", kappa=1.05).keeps_norm
    (False, True)
    >>> Denoising(method="best")
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: method must be one of 'none', 'gate', 'paper', 'blend', got 'best'
    """

    method: str = "gate"
    on: Target = "gradient"
    kappa: float = 1.02
    false_alarm: float | None = None
    norm_correction: bool | None = None
    loss: Loss = "frobenius"
    backend: Backend = "auto"
    memory: float = 0.9
    layer_weights: LayerWeights = "noisy"
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
        check_choice("layer_weights", self.layer_weights, get_args(LayerWeights))
        check_real("memory", self.memory, low=0.0, high=1.0, high_open=True)
        for name in ("exclude", "spectra"):
            object.__setattr__(self, name, _patterns(name, getattr(self, name)))

    @property
    def keeps_norm(self) -> bool:
        """True if a denoised layer gets the norm of the noisy one: ``norm_correction``, or else as the method says."""
        return DENOISERS[self.method].keeps_norm if self.norm_correction is None else self.norm_correction

    def new_memory(self) -> BlendMemory | None:
        """Empty memory of what `apply` may keep from one step to the next.

        Returns
        -------
        BlendMemory or None
            Empty; None if the method or what it is applied to has no use for it, or ``memory`` is 0.
        """
        useful = DENOISERS[self.method].remembers and self.on == "gradient" and self.memory > 0
        return BlendMemory(decay=self.memory) if useful else None

    def apply(
        self,
        gradients: Mapping[str, torch.Tensor],
        sigma: float | Mapping[str, float],
        memory: BlendMemory | None = None,
    ) -> tuple[dict[str, torch.Tensor], dict[str, LayerReport | BlendReport]]:
        """Denoise a named gradient; nothing is modified but the memory.

        Parameters
        ----------
        gradients : mapping of str to Tensor
            The noisy gradient, or momentum, by parameter.
        sigma : float or mapping of str to float
            Standard deviation of the noise in one entry of it, >= 0, for all or by name.
        memory : BlendMemory, optional
            From `new_memory`, the same at every step of a run; used and brought up to date by method "blend".

        Returns
        -------
        gradients : dict of Tensor
            The same names in the same order; what was left alone is the same object.
        report : dict of LayerReport or BlendReport
            By name, of the parameters that are not excluded; empty for method "none".

        Raises
        ------
        ParameterError
            If a matrix is not finite, or ``sigma`` is negative.

        Formal guarantees
        -----------------
        As `dprmt.spectra.denoise_layers`: a function of the noisy gradient, of those that the memory has seen, and of
        the options alone.
        """
        return self.denoiser(memory)(gradients, sigma)

    def denoiser(self, memory: BlendMemory | None = None) -> Method:
        """`apply` for the gradients of many steps: what does not change from step to step is looked at once.

        Parameters
        ----------
        memory : BlendMemory, optional
            As for `apply`.

        Returns
        -------
        callable
            From gradients and sigma to what `apply` returns.
        """
        method = DENOISERS[self.method].meaning()(self, memory)

        def denoise(gradients: Mapping[str, torch.Tensor], sigma: float | Mapping[str, float]) -> Any:
            layers = {name: gradient for name, gradient in gradients.items() if not matches(name, self.exclude)}
            denoised, report = method(layers, sigma)
            return {**gradients, **denoised}, report

        return denoise


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether the name is one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _patterns(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise ParameterError(name, value, "a sequence of names")
    return tuple(value)
