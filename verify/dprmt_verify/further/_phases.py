"""From what a statement says to phases of the further laws; each law is loaded when one is to be proved."""

from collections.abc import Callable, Sequence
from typing import Any

from flint import arb

from dprmt_verify._balls import ONE
from dprmt_verify._run import Phase
from dprmt_verify._table import Step
from dprmt_verify._words import NotCoveredError, flag, number


def allocated(run: Any, sampling: Any, steps: int, phase: Callable[[Any, int], Phase]) -> Phase:
    """Epochs of random allocation; ``phase``: so many steps at a rate."""
    size = number(sampling, "steps_per_epoch", 1, 10**6, int)
    parts = number({"participations": 1, **sampling}, "participations", 1, size, int)
    epochs = number({"epochs": max(steps // size, 1), **run}, "epochs", 1, steps, int)
    if epochs * size != steps or size % parts:
        raise NotCoveredError(f"steps {steps}, steps_per_epoch {size}, participations {parts}: not whole epochs")
    if parts == size:
        return phase(1.0, steps)

    def build(cut: float, cells: int) -> Step:
        from dprmt_verify.further._allocation import Allocation

        return Allocation(phase(1.0, 1).build(cut / 1024, cells), size // parts, cut, cells)

    return Phase(epochs * parts, build)


def in_turn(sampling: Any, steps: int, phase: Callable[[Any, int], Phase]) -> Phase:
    """Steps that draw from one of several groups."""
    bands = number(sampling, "bands", 1, 10**6, int)
    return phase(min(arb(number(sampling, "rate", 1e-12, 1 / bands)) * bands, ONE), -(-steps // bands))


def sized(sampling: Any, norms: Any, noises: Sequence[float], steps: int, neighbours: str) -> Phase:
    """Steps whose batches have a fixed size, or a largest one."""
    if norms["kind"] != "exact" or (sampling["kind"] == "fixed-size" and neighbours == "add-remove"):
        raise NotCoveredError("batches of a size are covered with exact norms, of a fixed one not for add-remove")
    samples = number(sampling, "samples", 2, 10**12, int)
    if sampling["kind"] == "fixed-size":
        rate = number(sampling, "batch_size", 1, samples, int)
    else:
        rate, most = number(sampling, "rate", 1e-12, 1), number(sampling, "at_most", 1, samples, int)

    def build(cut: float, cells: int) -> Step:
        from dprmt_verify.further._fixed_size import FixedSize, Truncated

        if sampling["kind"] != "fixed-size":
            return Truncated(noises, rate, most, samples, neighbours)
        return FixedSize(noises, arb(rate) / samples, neighbours == "replace-one")

    return Phase(steps, build)


def estimated(norms: Any, sigma: float, rate: float) -> Callable[[float, int], Step]:
    """A step with probes, public or secret, or with a sketch too."""
    from dprmt_verify.further._norm_ratio import NormRatio
    from dprmt_verify.further._public import PublicProbes

    probes = number(norms, "probes", 2, 10**5, int)
    if norms.get("rank") is not None:
        number(norms, "rank", 1, 10**9, int)  # a bound of it, of no use here
    sketch = number(norms, "sketch", 3, 10**4, int) if norms["kind"] != "hutchinson" else 0
    is_iterated, is_secret = flag(norms, "power_iteration"), flag(norms, "secret")

    def build(cut: float, cells: int) -> Step:
        cut = cut / 64 if is_secret else cut
        charged = attained = NormRatio(probes * (sketch or 1), {1: ONE}, cut, 1 / cells, 0.5 if sketch else 0.0)
        if norms["kind"] == "hutch++":
            from dprmt_verify.further._sketch import copies

            charged = NormRatio(probes, copies(sketch, is_iterated), cut, 1 / cells)
        if is_secret:
            from dprmt_verify.further._secret import SecretProbes

            return SecretProbes(sigma, rate, charged, attained)
        return PublicProbes(sigma, rate, charged, attained)

    return build
