"""Record of the norm methods used, in the accountant's terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import SupportsFloat

from dprmt import _html
from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, HutchPlusPlus, Norms, Sampling


@dataclass(frozen=True)
class LayerRecord:
    """Record of how the norm of one layer, or of one group of parameters, is obtained.

    Parameters
    ----------
    layer : str
        Name of the layer, by which its probes are drawn.
    norms : Norms or None
        Law of its norm: ``ExactNorms()`` (ghost norms too), ``Hutchinson(…)`` or ``HutchPlusPlus(…)``. The ``rank`` of
        ``Hutchinson`` is the largest that a sample's gradient of this layer can have. None for estimators of unknown
        law: there is no ε for them.

    Examples
    --------
    >>> LayerRecord("norm.weight")
    LayerRecord(layer='norm.weight', norms=ExactNorms())
    """

    layer: str
    norms: Norms | None = ExactNorms()


@dataclass(frozen=True)
class NormRecord:
    """Record of how the norms of all trainable parameters are obtained, for the accountant.

    Parameters
    ----------
    layers : sequence of LayerRecord
        One for every group of trainable parameters, each exactly once.

    Formal guarantees
    -----------------
    :attr:`norms` claims no more than was done. If layers differ in k or in the sketch, the smallest counts
    (``docs/theory/randomized_clipping.md``, T3 and E5). A finite rank needs that every parameter is estimated by
    Hutchinson with the same k and a bounded rank (E2). A sketch, a power iteration or secret probes are claimed only
    if every estimated layer has them. A layer whose law is unknown has no mechanism. The record is as true as its
    input: you must check that the layers are all the trainable parameters.

    Raises
    ------
    ParameterError
        If there is no layer, or a name comes twice (two layers would share a probe).

    Examples
    --------
    >>> head = LayerRecord("head", Hutchinson(32, secret=True, rank=10))
    >>> NormRecord([head]).mechanism(noise_multiplier=1.0, sampling=0.01)
    DPSGD(1.0, Poisson(0.01), norms=Hutchinson(32, secret=True, rank=10))
    >>> NormRecord([head, LayerRecord("norm")]).norms
    Hutchinson(32, secret=True)
    >>> NormRecord([head, LayerRecord("embedding", Hutchinson(8, secret=True, rank=100))]).norms
    Hutchinson(8, secret=True)
    """

    layers: Sequence[LayerRecord]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers:
            raise ParameterError("layers", self.layers, "at least one layer")
        names = [record.layer for record in self.layers]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ParameterError("layers", twice, "layers with names that are all different")

    def _repr_html_(self) -> str:
        rows = [[layer.layer, "unknown" if layer.norms is None else repr(layer.norms)] for layer in self.layers]
        return _html.block(_html.table(["layer", "norms"], rows))

    @property
    def estimated(self) -> list[LayerRecord]:
        """Layers whose norm is not exact."""
        return [record for record in self.layers if not isinstance(record.norms, ExactNorms)]

    @property
    def norms(self) -> Norms | None:
        """The value that holds for all layers together; None if the law of one is unknown."""
        values = [record.norms for record in self.estimated]
        if any(value is None for value in values):
            return None
        if not values:
            return ExactNorms()
        sketched = [value for value in values if isinstance(value, HutchPlusPlus)]
        if len(sketched) == len(values):
            return replace(
                sketched[0],
                probes=min(value.probes for value in sketched),
                sketch=min(value.sketch for value in sketched),
                power_iteration=all(value.power_iteration for value in sketched),
                secret=all(value.secret for value in sketched),
            )
        with_probes = [value for value in values if isinstance(value, (Hutchinson, HutchPlusPlus))]
        if len(with_probes) == len(values):
            return self._without_sketch(with_probes)
        if len(set(values)) > 1:
            raise ParameterError("layers", values, "estimated in one way, or in Hutchinson's and Hutch++'s")
        return values[0]

    def _without_sketch(self, values: Sequence[Hutchinson | HutchPlusPlus]) -> Hutchinson:
        plain = [value for value in values if isinstance(value, Hutchinson)]
        ranks = [value.rank for value in plain if value.rank is not None]
        is_ranked = len(ranks) == len(self.layers) and len({value.probes for value in plain}) == 1
        return replace(
            plain[0],
            probes=min(value.probes for value in values),
            secret=all(value.secret for value in values),
            rank=sum(ranks) if is_ranked else None,
        )

    def mechanism(self, noise_multiplier: float, sampling: Sampling | SupportsFloat) -> DPSGD:
        """Return the mechanism that the accountant is to compose.

        Parameters
        ----------
        noise_multiplier : float
            σ.
        sampling : Poisson, RandomAllocation, CyclicPoisson or float
            How samples come into batches; a number q stands for ``Poisson(q)``.

        Returns
        -------
        DPSGD
            With :attr:`norms`.

        Raises
        ------
        ParameterError
            If an argument is out of its range, or the law of a layer's norm is unknown.
        """
        norms = self.norms
        if norms is None:
            unknown = next(record.layer for record in self.layers if record.norms is None)
            allowed = "estimated with a law that the accountant knows: there is no ε for this one"
            raise ParameterError("layers", unknown, allowed)
        return DPSGD(noise_multiplier, sampling, norms)
