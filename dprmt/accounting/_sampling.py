"""How a sample comes into batches: by independent coins, or by random allocation; and what the engine composes then."""

from __future__ import annotations

from typing import Literal, cast

from dprmt._validation import ParameterError, check_choice, check_count, check_real
from dprmt.accounting._allocation import AllocationEpoch
from dprmt.accounting._clipping_step import ClippingStep
from dprmt.accounting._engine import Schedule

Sampling = Literal["poisson", "allocation"]


def checked_sample_rate(sampling: str, sample_rate: float, steps_per_epoch: int | None, participations: int) -> float:
    """The probability with which a sample enters a given batch.

    Returns: ``sample_rate`` of Poisson sampling; participations / steps_per_epoch of random allocation.
    """
    check_choice("sampling", sampling, ("poisson", "allocation"))
    if sampling == "poisson":
        if steps_per_epoch is not None:
            raise ParameterError("steps_per_epoch", steps_per_epoch, "left out unless sampling is 'allocation'")
        if participations != 1:
            raise ParameterError("participations", participations, "left out unless sampling is 'allocation'")
        return check_real("sample_rate", sample_rate, low=1e-9, high=1.0)
    if steps_per_epoch is None:
        raise ParameterError("steps_per_epoch", None, "given where sampling is 'allocation'")
    steps = check_count("steps_per_epoch", steps_per_epoch, high=10**7)
    rate = check_count("participations", participations, high=steps) / steps
    if sample_rate not in (0.0, rate):
        allowed = f"left out where sampling is 'allocation': it is participations / steps_per_epoch = {rate:.6g} there"
        raise ParameterError("sample_rate", sample_rate, allowed)
    return rate


def run_length(steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    """The number of steps of a run given in steps or, for random allocation, in epochs."""
    if epochs is None:
        if steps is None and steps_per_epoch is not None:
            raise ParameterError("steps", None, "given, or epochs for random allocation")
        return check_steps(check_count("steps", cast("int", steps), high=10**9), steps_per_epoch)
    if steps is not None:
        raise ParameterError("epochs", epochs, "left out where a number of steps is given")
    if steps_per_epoch is None:
        raise ParameterError("epochs", epochs, "left out unless sampling is 'allocation'; give steps")
    return check_count("epochs", epochs, high=10**9 // steps_per_epoch) * steps_per_epoch


def check_steps(steps: int, steps_per_epoch: int | None) -> int:
    """Refuse part of an epoch."""
    if steps_per_epoch is not None and steps % steps_per_epoch:
        allowed = f"whole epochs of random allocation, a multiple of steps_per_epoch = {steps_per_epoch}"
        raise ParameterError("steps", steps, allowed)
    return steps


def schedule_of(step: ClippingStep, steps: int, steps_per_epoch: int | None, participations: int) -> Schedule:
    """What the engine composes for a number of steps.

    ``participations``: r: an epoch is r blocks of ⌊t/r⌋ or ⌈t/r⌉ steps, with a step of its own for the sample in each
    (R1').
    """
    if steps_per_epoch is None:
        return [(step, steps)]
    epochs = steps // steps_per_epoch
    short, longer = divmod(steps_per_epoch, participations)
    blocks = {short: participations - longer, short + 1: longer}
    return [(_block(step, length), epochs * count) for length, count in blocks.items() if count]


def _block(step: ClippingStep, length: int) -> ClippingStep | AllocationEpoch:
    return step if length == 1 else AllocationEpoch(step, length)
