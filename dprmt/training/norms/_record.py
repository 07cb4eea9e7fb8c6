"""What was done to obtain the norms, in the words of the accountant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dprmt._validation import ParameterError, check_choice, check_count
from dprmt.accounting import DPSGD, RandomizedClipping

_NARROWEST = 3  # columns of a sketch that the accountant's bound is for


@dataclass(frozen=True)
class LayerRecord:
    """How the norm of one layer (or of one group of parameters) is obtained.

    Parameters
    ----------
    layer : str
        Its name, by which its probes are drawn.
    method : {"exact", "hutchinson", "hutch++", "unknown"}
        The law of the norm; ghost norms are exact. "unknown" is for estimators whose law nobody has written down:
        there is no ε for them.
    probes : int or None
        k >= 2 for "hutchinson" and "hutch++"; None else.
    rank : int or None
        The largest possible rank of a sample's gradient, if the whole norm is Hutchinson's.
    sketch : int or None
        s >= 1, columns of Hutch++'s sketch; None if nothing is claimed of it.
    power_iteration : bool
        Whether Hutch++'s head is a basis of MᵀMS rather than of MᵀS'.

    Raises
    ------
    ParameterError
        If a value is out of its range or contradicts the method.

    Examples
    --------
    >>> LayerRecord("norm.weight", "exact")
    LayerRecord(layer='norm.weight', method='exact', probes=None, rank=None, sketch=None, power_iteration=False)
    """

    layer: str
    method: Literal["exact", "hutchinson", "hutch++", "unknown"]
    probes: int | None = None
    rank: int | None = None
    sketch: int | None = None
    power_iteration: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.layer, str) or not self.layer:
            raise ParameterError("layer", self.layer, "a name that is not empty")
        check_choice("method", self.method, ("exact", "hutchinson", "hutch++", "unknown"))
        if self.method in ("hutchinson", "hutch++"):
            check_count("probes", self.probes, low=2)  # type: ignore[arg-type]
        elif self.probes is not None:
            raise ParameterError("probes", self.probes, f"None for an {self.method} norm")
        if self.sketch is not None:
            if self.method != "hutch++":
                raise ParameterError("sketch", self.sketch, f"None for {self.method}")
            check_count("sketch", self.sketch)
        elif self.power_iteration:
            raise ParameterError("power_iteration", True, "False where no sketch is claimed")
        if self.rank is not None:
            if self.method != "hutchinson":
                raise ParameterError("rank", self.rank, f"None for {self.method}: part of the norm is exact")
            check_count("rank", self.rank)


@dataclass(frozen=True)
class NormRecord:
    """How the norms of all trainable parameters are obtained: what the accountant is told.

    Parameters
    ----------
    layers : sequence of LayerRecord
        One for every group of trainable parameters, each exactly once.
    probe_sharing : {"batch", "sample"}
        Which mode ran.

    Formal guarantees
    -----------------
    :meth:`mechanism` claims no more than was done: a finite rank only if every parameter's norm is estimated
    by Hutchinson and every layer's rank is bounded; a sketch only if every estimated layer has one, and then the
    smallest; a power iteration only if all have it; probes of "sample" mode only if that mode ran. All
    estimated layers have the same k: for different ones the tight analysis holds with the smallest (χ²(k)/k
    falls in the convex order as k grows), but the envelope, with which the accountant may answer instead, is
    proved for equal k only (``docs/theory/randomized_clipping.md``, E2 to E4). A layer whose law is unknown has no
    mechanism. The record is as true as what it was given: that the layers are all the trainable parameters is for
    the caller to check.

    Raises
    ------
    ParameterError
        If there is no layer, a name comes twice (two layers would share a probe), or k differs.

    Examples
    --------
    >>> head = LayerRecord("head", "hutchinson", probes=32, rank=10)
    >>> mechanism = NormRecord([head], "sample").mechanism(noise_multiplier=1.0, sample_rate=0.01)
    >>> mechanism.probes, mechanism.rank, mechanism.probe_sharing
    (32, 10, 'sample')
    >>> NormRecord([head, LayerRecord("norm", "exact")], "batch").rank is None
    True
    """

    layers: Sequence[LayerRecord]
    probe_sharing: Literal["batch", "sample"]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        check_choice("probe_sharing", self.probe_sharing, ("batch", "sample"))
        if not self.layers:
            raise ParameterError("layers", self.layers, "at least one layer")
        names = [record.layer for record in self.layers]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ParameterError("layers", twice, "layers with names that are all different")
        counts = {record.probes for record in self.layers} - {None}
        if len(counts) > 1:
            raise ParameterError("layers", sorted(map(int, filter(None, counts))), "layers with equally many probes")

    @property
    def probes(self) -> int | None:
        """Number k of the estimated layers; None if all norms are exact."""
        return next((record.probes for record in self.layers if record.probes is not None), None)

    @property
    def sketch(self) -> int | None:
        """The smallest sketch; None if an estimated layer has none, or too narrow a one to be credited: below 3."""
        widths = [record.sketch or 0 for record in self._estimated]
        return min(widths) if widths and min(widths) >= _NARROWEST else None

    @property
    def power_iteration(self) -> bool:
        """Whether a sketch may be claimed that went through one power iteration in every estimated layer."""
        return self.sketch is not None and all(record.power_iteration for record in self._estimated)

    @property
    def _estimated(self) -> list[LayerRecord]:
        return [record for record in self.layers if record.method != "exact"]

    @property
    def rank(self) -> int | None:
        """The finite rank that may be claimed for all layers together, None if there is none."""
        ranks = [record.rank for record in self.layers if record.rank is not None]
        return sum(ranks) if len(ranks) == len(self.layers) else None

    def mechanism(
        self,
        noise_multiplier: float,
        sample_rate: float,
        *,
        analysis: Literal["tight", "envelope"] = "tight",
    ) -> RandomizedClipping | DPSGD:
        """The mechanism that the accountant is to compose.

        Parameters
        ----------
        noise_multiplier : float
            σ.
        sample_rate : float
            q.
        analysis : {"tight", "envelope"}
            As in ``dprmt.accounting.RandomizedClipping``.

        Returns
        -------
        RandomizedClipping or DPSGD
            ``DPSGD`` if every norm is exact.

        Raises
        ------
        ParameterError
            If an argument is out of its range, or the law of a layer's norm is unknown.
        """
        for record in self.layers:
            if record.method == "unknown":
                allowed = "estimated with a law that the accountant knows: there is no ε for this one"
                raise ParameterError("layers", record.layer, allowed)
        if self.probes is None:
            return DPSGD(noise_multiplier, sample_rate)
        sketched = analysis == "tight"  # the envelope cannot credit a sketch
        return RandomizedClipping(
            noise_multiplier,
            sample_rate,
            self.probes,
            self.rank,
            analysis,
            self.probe_sharing,
            sketch=self.sketch if sketched else None,
            power_iteration=self.power_iteration and sketched,
        )
