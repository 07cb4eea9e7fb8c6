"""Hypothesis strategies for the objects that the theorems are about, and the search that the checks share.

What is drawn is a small value with a readable ``repr``, such as a shape, spikes and a seed; arrays are made from it
when they are asked for. So counter-examples shrink to something a person can type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy
from numpy.typing import ArrayLike

from dprmt.accounting import (
    DPSGD,
    AddRemove,
    ExactNorms,
    Hutchinson,
    HutchPlusPlus,
    Neighbours,
    Norms,
    ReplaceOne,
    ZeroOut,
)
from dprmt.spectra import detection_threshold

T = TypeVar("T")
Shape = tuple[int, int]
Library = Literal["numpy", "torch"]


@dataclass(frozen=True, repr=False)
class NoisyMatrix:
    """A low-rank matrix plus white noise, ``noisy = clean + sigma * W``, and the numbers that define both.

    Attributes
    ----------
    shape : tuple of int
        (m, n).
    spikes : tuple of float
        Singular values of the clean matrix in units of the detection threshold σ(mn)^{1/4}; at most min(m, n) count.
    sigma : float
        Standard deviation of one entry of the noise, > 0.
    seed : int
        Seed of the singular vectors and the noise.
    batch : tuple of int
        Leading axes.
    library, dtype : str
        Library and dtype of the arrays.

    Examples
    --------
    >>> case = NoisyMatrix((16, 81), spikes=(2.0,), sigma=0.5)
    >>> case.noisy.shape, round(float(np.linalg.norm(case.clean)), 9)  # the threshold is 3
    ((16, 81), 6.0)
    """

    shape: Shape
    spikes: tuple[float, ...] = ()
    sigma: float = 1.0
    seed: int = 0
    batch: tuple[int, ...] = ()
    library: Library = "numpy"
    dtype: str = "float64"

    def __repr__(self) -> str:
        stated = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return (
            f"NoisyMatrix({', '.join(f'{name}={own!r}' for name, (own, default) in stated.items() if own != default)})"
        )

    @cached_property
    def _arrays(self) -> tuple[Any, Any]:
        rng, rank = np.random.default_rng(self.seed), min(*self.shape, len(self.spikes))
        bases = [np.linalg.qr(rng.standard_normal((*self.batch, side, rank)))[0] for side in self.shape]
        signals = np.array(self.spikes[:rank]) * detection_threshold(self.shape, self.sigma)
        clean = (bases[0] * signals) @ np.swapaxes(bases[1], -1, -2)
        return clean, clean + self.sigma * rng.standard_normal((*self.batch, *self.shape))

    @property
    def clean(self) -> Any:
        """The matrix without noise, of the library and dtype."""
        return as_library(self._arrays[0], self.library, self.dtype)

    @property
    def noisy(self) -> Any:
        """The matrix with noise, of the library and dtype."""
        return as_library(self._arrays[1], self.library, self.dtype)


def as_library(array: np.ndarray[Any, Any], library: Library, dtype: str = "float64") -> Any:
    """Return the array as a NumPy array or a torch tensor; torch is imported for a tensor only."""
    if library == "numpy":
        return array.astype(dtype)
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(getattr(torch, dtype))


def as_float64(result: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Convert another program's result, a torch tensor or anything array-like, to a new NumPy array."""
    tensor = hasattr(result, "detach")
    return np.array(result.detach().cpu().double().numpy() if tensor else result, np.float64)


def _strategy(value: SearchStrategy[T] | T) -> SearchStrategy[T]:
    return value if isinstance(value, SearchStrategy) else st.just(value)


def noisy_matrices(
    shapes: SearchStrategy[Shape] | Shape | None = None,
    spikes: SearchStrategy[tuple[float, ...]] | tuple[float, ...] | None = None,
    sigma: SearchStrategy[float] | float | None = None,
    *,
    batch: SearchStrategy[tuple[int, ...]] | tuple[int, ...] = (),
    library: Library = "numpy",
    dtype: str = "float64",
) -> SearchStrategy[NoisyMatrix]:
    """Draw low-rank matrices with white noise.

    Every argument is a value or a strategy. Failures shrink to a 1 × 1 matrix of noise with sigma = 1.

    Parameters
    ----------
    shapes : strategy of tuple of int, optional
        (m, n). By default sides from 1 to 24, either orientation.
    spikes : strategy of tuple of float, optional
        Clean singular values >= 0 in units of the detection threshold. By default up to three multiples of 0.1 up to
        8, equal ones and zeros included.
    sigma : strategy of float, optional
        Standard deviation of the noise, > 0. By default powers of ten from 1e-20 to 1e20.
    batch : strategy of tuple of int
        Leading axes.
    library : {"numpy", "torch"}
        Library of the arrays.
    dtype : str
        Name of a real floating dtype of the library.

    Returns
    -------
    strategy of NoisyMatrix
        Each has ``clean``, ``noisy``, ``sigma`` and ``shape``.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(noisy_matrices(), lambda case: case.shape[1] > 3)
    NoisyMatrix(shape=(1, 4))
    """
    if shapes is None:
        shapes = st.tuples(st.integers(1, 24), st.integers(1, 24))
    if spikes is None:
        spikes = st.lists(st.integers(0, 80).map(lambda tenths: tenths / 10), max_size=3).map(tuple)
    if sigma is None:
        sigma = st.integers(0, 20).flatmap(lambda size: st.sampled_from([10.0**size, 10.0**-size]))
    drawn = (_strategy(value) for value in (shapes, spikes, sigma, st.integers(0, 2**32 - 1), batch, library, dtype))
    return st.builds(NoisyMatrix, *drawn)


def spectra_of_rank(most: int, least: int = 1) -> SearchStrategy[tuple[float, ...]]:
    """Draw the nonzero squared singular values of a matrix, as decreasing shares of their sum.

    Shrinks to the fewest values, all equal.

    Parameters
    ----------
    most, least : int
        Range of the rank, 1 <= least <= most.

    Returns
    -------
    strategy of tuple of float
        Positive, of sum 1 up to rounding.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(spectra_of_rank(4), lambda shares: len(shares) > 1)
    (0.5, 0.5)
    """
    numbers = st.lists(st.integers(1, 20), min_size=least, max_size=most)
    return numbers.map(lambda drawn: tuple(number / sum(drawn) for number in sorted(drawn, reverse=True)))


def norm_laws(secret: SearchStrategy[bool] | bool | None = None) -> SearchStrategy[Norms]:
    """Draw ways of computing per-sample norms: exact, by Hutchinson's estimator or by Hutch++.

    Parameters
    ----------
    secret : strategy of bool, optional
        Whether probes are secret; by default either.

    Returns
    -------
    strategy of Norms
        Shrinks to ``ExactNorms()``.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(norm_laws(secret=False), lambda norms: isinstance(norms, Hutchinson))
    Hutchinson(2, secret=False)
    """
    flag, probes = st.booleans() if secret is None else _strategy(secret), st.sampled_from([2, 4, 8, 16, 32, 64])
    sketched = st.builds(HutchPlusPlus, probes, st.sampled_from([4, 8, 16, 32]), secret=flag)
    return st.one_of(st.just(ExactNorms()), st.builds(Hutchinson, probes, secret=flag), sketched)


def dpsgd_runs(
    norms: SearchStrategy[Norms] | Norms = ExactNorms(),
    neighbours: SearchStrategy[Neighbours] | Neighbours | None = None,
) -> SearchStrategy[tuple[DPSGD, int]]:
    """Draw runs of DP-SGD with Poisson sampling: a mechanism and its number of steps.

    Parameters
    ----------
    norms : strategy of Norms
        How per-sample norms are computed; `norm_laws()` for all ways.
    neighbours : strategy of Neighbours, optional
        By default zero-out, add-remove or replace-one.

    Returns
    -------
    strategy of (DPSGD, int)
        Noise multipliers from 0.7 to 4, rates from 0.01 to 0.5, at most 200 steps.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(dpsgd_runs(), lambda run: run[1] > 1)
    (DPSGD(1.0, Poisson(0.1)), 4)
    """
    relation = st.sampled_from([ZeroOut(), AddRemove(), ReplaceOne()]) if neighbours is None else _strategy(neighbours)
    noise, rates = st.sampled_from([1.0, 0.7, 2.0, 4.0]), st.sampled_from([0.1, 0.01, 0.03, 0.5])
    return st.tuples(st.builds(DPSGD, noise, rates, _strategy(norms), relation), st.sampled_from([1, 4, 32, 200]))


def phases(most: int = 3, neighbours: Neighbours = ZeroOut()) -> SearchStrategy[list[tuple[DPSGD, int]]]:
    """Draw runs of several phases with one neighbouring relation, as `dprmt.compose` takes them.

    Parameters
    ----------
    most : int
        Largest number of phases, >= 1.
    neighbours : Neighbours
        Neighbouring relation of all phases.

    Returns
    -------
    strategy of list of (DPSGD, int)
        Failures shrink to one phase of one step.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(phases(), lambda run: True)
    [(DPSGD(1.0, Poisson(0.1)), 1)]
    """
    return st.lists(dpsgd_runs(neighbours=neighbours), min_size=1, max_size=most)


@dataclass(frozen=True)
class TradeOffFunction:
    """The smallest false negative rate of any test at false positive rate α, under some (ε, δ) guarantees.

    Attributes
    ----------
    guarantees : tuple of (float, float)
        Pairs (ε, δ), all of which hold.

    Examples
    --------
    >>> TradeOffFunction(((0.0, 0.25),))([0.0, 0.5, 1.0]).tolist()
    [0.75, 0.25, 0.0]
    """

    guarantees: tuple[tuple[float, float], ...]

    def __call__(self, alpha: ArrayLike) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Evaluate f(α) = max(0, 1-δ-e^ε·α, e^{-ε}(1-δ-α)) over the guarantees."""
        rates = np.asarray(alpha, np.float64)
        lines = [
            line
            for epsilon, delta in self.guarantees
            for line in (1 - delta - math.exp(epsilon) * rates, math.exp(-epsilon) * (1 - delta - rates))
        ]
        return np.maximum(np.max(lines, axis=0), 0.0)


def trade_offs(most: int = 3) -> SearchStrategy[TradeOffFunction]:
    """Draw symmetric trade-off functions, piecewise linear: convex, decreasing, below 1 - α.

    Parameters
    ----------
    most : int
        Largest number of (ε, δ) guarantees that one function is made of, >= 1.

    Returns
    -------
    strategy of TradeOffFunction
        Callable on false positive rates. Shrinks to perfect privacy, 1 - α.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(trade_offs(), lambda f: f(0.5) < 0.5)
    TradeOffFunction(guarantees=((0.0, 0.05),))
    """
    pair = st.tuples(st.integers(0, 50).map(lambda n: n / 10), st.integers(0, 20).map(lambda n: n / 20))
    return st.lists(pair, min_size=1, max_size=most).map(lambda pairs: TradeOffFunction(tuple(pairs)))


def search(check: Callable[..., None], examples: int, **strategies: SearchStrategy[Any]) -> None:
    """Run a check on drawn arguments and raise its AssertionError at the smallest case that fails, if one does."""
    chosen = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    try:
        chosen(given(**strategies)(check))()
    except Flaky as error:
        raise AssertionError(f"The result is a function of the input: two equal calls differ. {error}") from error


def require(holds: bool, theorem: str, where: object, amount: str) -> None:
    """Raise an AssertionError that names the failing theorem, the input and the size of the failure."""
    if not holds:
        raise AssertionError(f"{theorem}\n  fails at {where}:\n  {amount}")
