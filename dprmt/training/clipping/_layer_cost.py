"""What the norms of one layer cost, counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerCost:
    """Cost of a layer's norms in a micro-batch.

    Attributes
    ----------
    layer, how : str
        Its name, and how norms are taken: "formed", "blocks", "Gram", "Hutchinson", "Hutch++", "rows" (of an embedding)
        or "apart" (by a sampler of its own).
    flops, normals, moved : int
        Of products, random numbers, and bytes read and written, beside those of a step without privacy.
    at_once : int
        Bytes of what is formed at once and freed.
    kept : int
        Bytes that are kept until the sum is formed; of inputs that layers share in each of them.
    """

    layer: str
    how: str
    flops: int = 0
    normals: int = 0
    moved: int = 0
    at_once: int = 0
    kept: int = 0
