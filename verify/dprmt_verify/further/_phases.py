"""From what a statement says to phases of the further laws; each law is loaded when one is to be proved."""

from collections.abc import Callable
from typing import Any

from dprmt_verify._balls import ONE
from dprmt_verify._run import Phase
from dprmt_verify._table import Step
from dprmt_verify._words import NotCoveredError, flag, number


def allocated(run: Any, sampling: Any, steps: int, phase: Callable[[int], Phase]) -> Phase:
    """Epochs of random allocation; ``phase``: so many steps of all samples."""
    size = number(sampling, "steps_per_epoch", 1, 10**6, int)
    parts = number({"participations": 1, **sampling}, "participations", 1, size, int)
    epochs = number({"epochs": max(steps // size, 1), **run}, "epochs", 1, steps, int)
    if epochs * size != steps or size % parts:
        raise NotCoveredError(f"steps {steps}, steps_per_epoch {size}, participations {parts}: not whole epochs")
    if parts == size:
        return phase(steps)

    def build(cut: float, cells: int) -> Step:
        from dprmt_verify.further._allocation import Allocation

        return Allocation(phase(1).build(cut / 1024, cells), size // parts, cut, cells)

    return Phase(epochs * parts, build)


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
