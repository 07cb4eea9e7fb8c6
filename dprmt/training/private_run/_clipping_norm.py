"""Clipping norms other than one number: a quantile that is followed, shares of layers, and automatic clipping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch

from dprmt._validation import ParameterError, check_real
from dprmt.accounting import GaussianRelease
from dprmt.accounting.basics._value import Value
from dprmt.training.randomness import SecureRandom

STABILITY = 0.01  # γ of automatic clipping: its authors' default, in the units of a gradient's norm
_LEAST, _LARGEST = 1e-12, 1e12  # clipping norms that float32 sums can hold
_LONGEST_MOVE = 50.0  # of the logarithm of the clipping norm in one step


@dataclass(frozen=True, repr=False, kw_only=True)
class AdaptiveClipping(Value):
    """Let the clipping norm follow a quantile of gradient norms, privately; for ``make_private(clipping_norm=...)``.

    Use it if you do not know how long gradients are. In every step the number of samples in the batch whose norm is at
    most C is released with noise, and C moves towards the norm that the share ``quantile`` of samples is below. The
    count is priced as one more release of the same batch, so ``target_epsilon`` needs a little more gradient noise.

    Parameters
    ----------
    noise_multiplier : float
        Noise of the count over the most that one sample changes it by, in [1e-3, 1e6]. A sample counts as 1/2 or -1/2,
        so the standard deviation is half this number. Try a tenth of the batch size.
    quantile : float
        Share of the norms that C is to exceed, in [0, 1].
    learning_rate : float
        η > 0: C is multiplied by exp(-η(share - quantile)).
    initial : float
        C > 0 of the first step.

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Privacy
    -------
    Holds if: norms are exact. Covers: counts and clipping norms of all steps, together with the trained parameters. A
    sample that is zeroed out is left out of the count, too. Does not cover: estimated norms, which raise an error.
    Proof: ``docs/theory/batches.md``, (B1).

    References
    ----------
    Andrew et al. 2021, arXiv:1905.03871, with the expected batch size instead of a fixed one.

    Examples
    --------
    >>> rule = AdaptiveClipping(noise_multiplier=20.0)
    >>> f"{rule.following(0.1, 60.0, batch_size=200.0):.4f}"  # 160 of 200 norms are below 0.1: C falls
    '0.0942'
    """

    kind: ClassVar[str] = "adaptive"

    noise_multiplier: float
    quantile: float = 0.5
    learning_rate: float = 0.2
    initial: float = 0.1

    def __post_init__(self) -> None:
        self._keep(
            noise_multiplier=self.release.noise_multiplier,
            quantile=check_real("quantile", self.quantile, low=0.0, high=1.0),
            learning_rate=check_real("learning_rate", self.learning_rate, low=0.0, low_open=True),
            initial=check_real("initial", self.initial, low=_LEAST, high=_LARGEST),
        )

    @property
    def release(self) -> GaussianRelease:
        """The count as the accountant prices it, next to the clipped sum."""
        return GaussianRelease(self.noise_multiplier)

    def noise(self, generator: torch.Generator | SecureRandom) -> float:
        """Draw the noise of one count.

        Parameters
        ----------
        generator : torch.Generator or SecureRandom
            A secret one, used for nothing else.

        Returns
        -------
        float
            With standard deviation ``noise_multiplier / 2``.
        """
        std = self.noise_multiplier / 2
        if isinstance(generator, SecureRandom):
            return float(generator.normal((1,), std=std))
        return float(torch.normal(0.0, std, (1,), generator=generator, dtype=torch.float64))

    def following(self, norm: float, noisy_count: float, batch_size: float) -> float:
        """Return the clipping norm after a step.

        Parameters
        ----------
        norm : float
            C of the step.
        noisy_count : float
            The sum of 1/2 for each sample with a norm of at most C and -1/2 for each other one, and noise.
        batch_size : float
            The *expected* batch size: the realised one is private.

        Returns
        -------
        float
            C of the next step, in [1e-12, 1e12].
        """
        move = -self.learning_rate * (noisy_count / batch_size + 0.5 - self.quantile)
        grown = norm * math.exp(min(max(move, -_LONGEST_MOVE), _LONGEST_MOVE))
        return min(max(grown, _LEAST), _LARGEST)


@dataclass(frozen=True, repr=False)
class PerLayerClipping(Value):
    """Clip the gradient of each layer alone; for ``make_private(clipping_norm=...)``.

    Use it if the gradients of a few layers are so long that clipping the whole gradient leaves nothing of the others.
    Each of the L modules with trainable parameters gets the same share C/√L, so that ε and the noise σC are the same
    as for one clipping norm C.

    Parameters
    ----------
    norm : float
        C > 0, the largest norm of a sample's whole gradient in the sum.

    Raises
    ------
    ParameterError
        If the norm is not a positive number.

    Privacy
    -------
    Holds if: norms are exact, and L is public. Covers: what one norm C covers, since √(L·(C/√L)²) = C. Does not cover:
    estimated norms, parameters that layers share, rows that run alone, and sharded models, which raise an error.

    Examples
    --------
    >>> PerLayerClipping(0.5)
    PerLayerClipping(0.5)
    """

    kind: ClassVar[str] = "per-layer"

    norm: float

    def __post_init__(self) -> None:
        self._keep(norm=check_real("norm", self.norm, low=0.0, low_open=True))


ClippingNorm: TypeAlias = float | AdaptiveClipping | PerLayerClipping | Literal["automatic"]


def first_norm(clipping: Any) -> float:
    """Return the clipping norm of the first step; 1 for automatic clipping, whose contributions are shorter than 1."""
    if isinstance(clipping, AdaptiveClipping):
        return clipping.initial
    if isinstance(clipping, PerLayerClipping):
        return clipping.norm
    if clipping == "automatic":
        return 1.0
    if isinstance(clipping, str | type):
        allowed = "a number, AdaptiveClipping(...), PerLayerClipping(C) or 'automatic'"
        raise ParameterError("clipping_norm", clipping, allowed)
    return check_real("clipping_norm", clipping, low=0.0, low_open=True)


def clipping_sentence(clipping: ClippingNorm) -> str:
    """Describe a clipping norm that is not a number, for the statement; nothing for others."""
    if isinstance(clipping, AdaptiveClipping):
        follows = f"The clipping norm follows the {clipping.quantile:g} quantile of gradient norms"
        return f" {follows}, by the released sums over the batches, in which a sample counts as 1/2 or -1/2."
    if isinstance(clipping, PerLayerClipping):
        return " The gradient of each layer is clipped to the clipping norm divided by the root of their number."
    if clipping == "automatic":
        return f" Each gradient g is divided by |g| + {STABILITY} instead of clipped, so the clipping norm is 1."
    return ""
