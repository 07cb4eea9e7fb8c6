"""Clipping norms other than one number: a quantile that is followed, shares of layers, and automatic clipping."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.signal import lfilter

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.accounting import CyclicPoisson, GaussianRelease
from dprmt.accounting.basics._value import Value
from dprmt.training.randomness import SecureRandom

STABILITY = 0.01  # γ of automatic clipping: its authors' default, in the units of a gradient's norm
_LEAST, _LARGEST = 1e-12, 1e12  # clipping norms that float32 sums can hold


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
    Proof: ``docs/theory/batches.md``, "Several releases of one batch".

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
        grown = norm * math.exp(min(max(move, -50.0), 50.0))  # no overflow
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


# Noise that is correlated between steps, so that it partly cancels in their sum: banded Toeplitz matrices.


@dataclass(frozen=True, repr=False)
class BandedNoise(Value):
    """Correlate the noise of neighbouring steps; for ``make_private(noise=...)``.

    Use it for long runs of gradient descent at a steady rate: noise that one step adds is partly taken back by later
    ones. The price is sampling from one of ``bands`` groups of samples in turn, which hides a sample less. Compare the
    noise that `calibrate` finds for ``CyclicPoisson`` and for ``Poisson`` sampling.

    Parameters
    ----------
    bands : int
        b >= 2: each step's noise depends on the noise of the b - 1 steps before, which are kept in memory. The expected
        batch size is at most the number of samples over b.

    Raises
    ------
    ParameterError
        If the number is out of its range.

    Privacy
    -------
    Holds if: the noise's past, which is in ``state_dict()``, stays secret, and at most one run goes on from a state
    (pass ``ledger=`` to ``make_private`` to have this checked). Covers: all norm methods. Step t releases its clipped
    sum and entry t of C⁻¹z, with z independent of standard deviation σC and a lower-triangular C whose columns have
    norm 1, or less in the last b - 1 steps. Proof: ``docs/theory/batches.md``, "Cyclic
    Poisson sampling".

    References
    ----------
    Choquette-Choo et al. 2023, arXiv:2306.08153.

    Examples
    --------
    >>> noise = BandedNoise(bands=3)
    >>> print(noise.coefficients(steps=100).round(2))
    [0.72 0.53 0.45]
    """

    kind: ClassVar[str] = "banded"

    bands: int

    def __post_init__(self) -> None:
        self._keep(bands=check_count("bands", self.bands, low=2, high=1024))

    def sampling(self, batch_size: float, samples: int, resolution: float) -> CyclicPoisson:
        """Return sampling from groups in turn, at a multiple of 1/``resolution`` of the group."""
        if batch_size * self.bands > samples:
            allowed = f"at most {samples // self.bands}, the size of one of {self.bands} groups of {samples} samples"
            raise ParameterError("batch_size", batch_size, allowed, "use smaller batches or fewer bands")
        rate = min(1.0, float(np.ceil(batch_size * self.bands / samples * resolution)) / resolution)
        return CyclicPoisson(rate / self.bands, self.bands)

    def coefficients(self, steps: int) -> NDArray[np.float64]:
        """Compute the column (c₀, …, c_{b-1}) of C with the least mean square noise of a sum of the first steps.

        Parameters
        ----------
        steps : int
            T >= 1, the length of the run; the mean is over sums of 1, 2, …, T steps.

        Returns
        -------
        array
            Of norm 1, with at most T entries.
        """
        length = check_count("steps", steps)
        weights = np.arange(length, 0.0, -1.0)

        def cost(tail: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            c = np.concatenate([[1.0], tail])
            with np.errstate(all="ignore"):  # a trial may be an unstable recurrence, whose noise overflows
                sums = _prefix_sums(c, length)
                twice = lfilter([1.0], c, sums)  # -∂sums/∂c_j, shifted by j
                error = float(weights @ sums**2)
                weighted = weights * sums / error
                slopes = np.array([-2 * float(weighted[j:] @ twice[: length - j]) for j in range(1, len(c))])
            if not np.isfinite(slopes).all():
                return 1e6, np.zeros_like(tail)  # above every logarithm of an error that is finite
            return float(np.log(c @ c * error)), slopes + 2 * tail / (c @ c)

        j = np.arange(1, min(self.bands, length))
        start = np.cumprod((2 * j - 1) / (2 * j))  # of √(1/(1 - x)), the best without a limit on bands
        if length > max(512, 8 * self.bands):  # near the best, but far enough from an unstable recurrence
            shorter = self.coefficients(length // 8)
            start = shorter[1:] / shorter[0]
        found = np.concatenate([[1.0], minimize(cost, start, jac=True, method="BFGS").x if len(j) else []])
        found /= np.linalg.norm(found)
        return found * (1.0 - 2.0**-50)  # a norm of at most 1, whatever is rounded

    def describe(self, steps: int) -> str:
        """Describe the noise in a sentence, for the statement."""
        listed = ", ".join(f"{c:.4g}" for c in self.coefficients(steps)[:8]) + (", …" if self.bands > 8 else "")
        return (
            f" The steps' noise is correlated: C⁻¹z, with z of the stated standard deviation and a lower-triangular"
            f" Toeplitz matrix C of {self.bands} bands, whose columns ({listed}) have norm at most 1."
        )


def _prefix_sums(c: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """Return the first column of AC⁻¹, with A of ones on and below the diagonal; both are Toeplitz matrices."""
    first = np.zeros(steps)
    first[0] = 1.0
    return np.cumsum(lfilter([1.0], c, first))


class CorrelatedNoise:
    """The noise w = C⁻¹z of a run, step by step: c₀w_t = z_t - c₁w_{t-1} - … - c_{b-1}w_{t-b+1}.

    Formal guarantees
    -----------------
    Rows that follow each other without a gap have the strategy C. After a gap, such as steps that an interruption lost,
    the past counts as zeros: C then has a block of its own for each stretch, and columns of norm at most 1 as before.
    """

    def __init__(self, coefficients: NDArray[np.float64]) -> None:
        self._c = coefficients.tolist()
        self._past: dict[int, list[torch.Tensor]] = {}  # by number of the parameter, the latest first
        self._next: int | None = None

    @contextmanager
    def row(self, number: int) -> Iterator[None]:
        """Add the noise of one step inside; a step that fails ends the stretch."""
        if number != self._next:
            self._past.clear()
        self._next = None
        yield
        self._next = number + 1

    def following(self, place: int, drawn: torch.Tensor) -> torch.Tensor:
        """Return w of a parameter for its independent noise z, which is overwritten."""
        past = self._past.setdefault(place, [])
        for c, before in zip(self._c[1:], past, strict=False):
            drawn.sub_(before, alpha=c)
        past.insert(0, drawn.div_(self._c[0]))
        del past[len(self._c) - 1 :]
        return drawn

    def state_dict(self) -> dict[str, Any]:
        """Return the past, which is as secret as the sums that its noise hides."""
        return {"next": self._next, "past": {place: list(kept) for place, kept in self._past.items()}}

    def load_state_dict(self, state: Mapping[str, Any], like: list[torch.nn.Parameter]) -> None:
        """Go on from a past, on the devices of the parameters; anew from an empty one."""
        self._next, past = state.get("next"), state.get("past", {})
        self._past = {place: [w.to(like[place].device) for w in kept] for place, kept in past.items()}
