"""A check of an accountant: against certified bounds, and against what every true ε obeys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from hypothesis import strategies as st

from dprmt._rounding import round_down, round_up
from dprmt._validation import check_real
from dprmt.accounting import DPSGD, ExactNorms, Neighbours, Norms, PrivacyBounds, Release, ZeroOut, compose
from dprmt.testing._strategies import require, search

CERTIFIED = "A claimed ε is not below a certified lower bound of the true one (docs/theory/randomized_clipping.md, §6)."
DIRECTIONS = (
    "Either of two neighbouring data sets may be the one that was trained on: ε is the larger one of both directions "
    "(docs/theory/randomized_clipping.md, §7)."
)
LOOSE = "A tight accountant's ε is at most a certified upper bound of the true one, up to the allowed excess."
MONOTONE = {
    "noise_multiplier": "More noise never costs more: adding independent noise is post-processing.",
    "sample_rate": "A smaller sample rate never costs more: it is the larger one with samples ignored at random.",
    "steps": "More steps never cost less: ignoring the last ones is post-processing.",
    "delta": "A larger δ never needs a larger ε: (ε, δ)-DP is (ε, δ')-DP for every δ' > δ.",
}
COMPOSITION = "Two runs of (ε, δ)-DP are together (2ε, 2δ)-DP (basic composition)."
CONVEX = "δ is a convex function of e^ε, because the trade-off function of false positive and negative rates is convex."


def check_accountant(
    f: Callable[[float, float, int, float], float | Mapping[str, float]],
    *,
    norms: Norms = ExactNorms(),
    neighbours: Neighbours = ZeroOut(),
    mechanism: Callable[[float, float], DPSGD | Release] | None = None,
    loosest: float | None = None,
    slack: float = 0.01,
    convex: bool = True,
    examples: int = 25,
) -> None:
    """Check the claims of an accountant of DP-SGD: they are upper bounds and do not contradict each other.

    Sampling is Poisson, unless you pass ``mechanism``. A claim below a certified lower bound is wrong, whatever the
    accountant's method. Noise multipliers are from 0.7 to 4, rates from 0.01 to 0.5, steps up to 200 and δ from 1e-10
    to 1e-3.

    Parameters
    ----------
    f : callable
        ``f(noise_multiplier, sample_rate, steps, delta)`` returns the claimed ε, or a mapping with the keys "remove"
        and "add" of both directions' claims.
    norms : Norms
        How per-sample norms are computed.
    neighbours : Neighbours
        Which data sets the claim holds for. An accountant of Poisson sampling with zero-out or add-remove neighbours
        is wrong for ``ReplaceOne()``.
    mechanism : callable, optional
        ``mechanism(noise_multiplier, sample_rate)`` returns what is claimed about, instead of ``norms`` and
        ``neighbours``: a :class:`dprmt.DPSGD` with any sampling and ``beside``, or a release. Steps count epochs where
        its sampling has epochs.
    loosest : float, optional
        Largest relative excess over the certified upper bound, >= 0. By default a loose accountant passes.
    slack : float
        Relative differences of claims that are accepted as rounding where claims are compared with each other, >= 0.
        Comparisons with certified bounds have none.
    convex : bool
        Whether δ must be convex in e^ε. Claims by Rényi divergences are sound but need not be.
    examples : int
        Number of runs.

    Raises
    ------
    AssertionError
        If a theorem fails: which, at which run, by how much.

    See Also
    --------
    dprmt.DPSGD : for the certified bounds.

    Examples
    --------
    >>> from dprmt import DPSGD, ReplaceOne
    >>> def claims(noise_multiplier, sample_rate, steps, delta):
    ...     return DPSGD(noise_multiplier, sample_rate).epsilon(steps=steps, delta=delta).upper
    >>> check_accountant(claims, loosest=0.0, examples=3)
    >>> check_accountant(claims, neighbours=ReplaceOne(), examples=3)
    Traceback (most recent call last):
    ...
    AssertionError: A claimed ε is not below a certified lower bound of the true one ...
    >>> from dprmt.accounting import FixedSize
    >>> check_accountant(claims, mechanism=lambda noise, q: DPSGD(noise, FixedSize(round(1000 * q), 1000)), examples=3)
    Traceback (most recent call last):
    ...
    AssertionError: ...
    """
    make = mechanism or (lambda noise, rate: DPSGD(noise, rate, norms, neighbours))
    most = math.inf if loosest is None else check_real("loosest", loosest, low=0.0)
    margin = check_real("slack", slack, low=0.0)

    asked = cache(f)

    @cache
    def certified(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> Mapping[Any, PrivacyBounds]:
        one = make(noise_multiplier, sample_rate)
        return compose([(one, steps * (one.sampling.steps_per_epoch or 1))]).epsilon_by_direction(delta)

    def claim(**run: Any) -> float:
        answer = asked(run["noise_multiplier"], run["sample_rate"], run["steps"], run["delta"])
        if isinstance(answer, Mapping):
            require({"remove", "add"} <= answer.keys(), DIRECTIONS, _text(run), f"claimed are only {[*answer]}")
            answer = max(answer["remove"], answer["add"])
        require(float(answer) >= 0.0, "ε is a number >= 0.", _text(run), f"claimed is {answer!r}")
        return float(answer)

    def not_above(small: float, large: float, theorem: str, where: str) -> None:
        amount = f"the claim {small:.6g} should not exceed {large:.6g}"
        require(small <= large * (1 + margin) + 1e-9, theorem, where, amount)

    def holds(noise: float, rate: float, steps: int, delta: float) -> None:
        run: dict[str, Any] = {"noise_multiplier": noise, "sample_rate": rate, "steps": steps, "delta": delta}
        where = _text(run)
        bounds = certified(**run)
        answer = asked(*run.values())
        own = claim(**run)
        by_direction = answer if isinstance(answer, Mapping) else dict.fromkeys(bounds, own)
        for direction, bound in bounds.items():
            claimed = float(by_direction[direction])
            other = min(bounds.values(), key=lambda each: each.upper).upper
            theorem = DIRECTIONS if bound.lower > other >= claimed * (1 - margin) > 0 else CERTIFIED
            amount = (
                f"claimed is ε = {claimed:.6g}, and the true one ({direction}) is at least {round_down(bound.lower)}"
            )
            require(claimed >= bound.lower, theorem, f"{where}, {make(noise, rate)!r}", amount)
        upper = max(bound.upper for bound in bounds.values())
        amount = f"claimed is ε = {own:.6g}, {100 * (own / max(upper, 1e-300) - 1):.3g} % above {round_up(upper)}"
        require(own <= upper * (1 + most) or most == math.inf, LOOSE, where, amount)
        changes = {"noise_multiplier": noise * 1.5, "sample_rate": rate / 1.5, "delta": delta * 10}
        cheaper = {name: claim(**run | {name: value}) for name, value in changes.items()}
        for name, value in changes.items():
            not_above(cheaper[name], own, MONOTONE[name], f"{where}, then {name}={value:.6g}")
        not_above(own, claim(**run | {"steps": 2 * steps}), MONOTONE["steps"], f"{where}, then steps={2 * steps}")
        twice = claim(**run | {"steps": 2 * steps, "delta": 2 * delta})
        not_above(twice, 2 * own, COMPOSITION, f"{where}, then steps={2 * steps}, delta={2 * delta:.6g}")
        if convex:
            strict, lax = claim(**run | {"delta": delta / 10}), cheaper["delta"]
            share = (10 * delta - delta) / (10 * delta - delta / 10)
            chord = math.log(share) + strict + math.log1p((1 - share) / share * math.exp(min(lax - strict, 0.0)))
            not_above(own, chord, CONVEX, f"{where} and a tenth and ten times this delta")

    noise, rates = st.sampled_from([1.0, 0.7, 2.0, 4.0]), st.sampled_from([0.1, 0.01, 0.03, 0.5])
    steps, deltas = st.sampled_from([1, 4, 32, 200]), st.sampled_from([1e-5, 1e-3, 1e-8, 1e-10])
    search(holds, examples, noise=noise, rate=rates, steps=steps, delta=deltas)


def _text(run: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in run.items())
