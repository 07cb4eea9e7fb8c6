"""Which layers are projected, along which side, and to how many dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from dprmt._validation import ParameterError, check_count
from dprmt.training.norms import is_conv1d
from dprmt.training.subspaces._ranks import LayerShape, RankRule


@dataclass(frozen=True, eq=False)
class ProjectedMatrix:
    """A weight matrix whose gradient is projected along its longer side.

    Parameters
    ----------
    name : str
        Name of the weight, as in ``model.named_parameters()``.
    weight : torch.nn.Parameter
        The matrix.
    rank : int
        Rank r of the projector; the largest one if a rule adapts it.

    Attributes
    ----------
    axis : int
        The projected axis of the weight: the longer one, the first of equal ones.
    m, n : int
        Lengths of the projected side and of the other one.
    """

    name: str
    weight: nn.Parameter
    rank: int
    axis: int = field(init=False)
    m: int = field(init=False)
    n: int = field(init=False)

    def __post_init__(self) -> None:
        axis, sizes = projected_axis(self.weight), self.weight.shape
        for name, value in (("axis", axis), ("m", sizes[axis]), ("n", sizes[1 - axis])):
            object.__setattr__(self, name, value)

    def orient(self, matrix: torch.Tensor) -> torch.Tensor:
        """Reorient a matrix like the weight as m × n, or back.

        Parameters
        ----------
        matrix : Tensor, shape (p, d) or (m, n)
            A matrix.

        Returns
        -------
        Tensor
            A view.
        """
        return matrix if self.axis == 0 else matrix.mT


def projected_axis(weight: torch.Tensor) -> int:
    """Return the longer axis, the first of equal ones: what is left, r × n, is smallest then."""
    return 0 if weight.shape[0] >= weight.shape[1] else 1


def find_layers(model: nn.Module, rank: int | Mapping[str, int] | RankRule) -> list[ProjectedMatrix]:
    """Find the trainable weights of Linear and Conv1D layers, including LoRA, that ``rank`` selects.

    ``rank`` is one r for all layers, a mapping from weight names to r, or a function of a :class:`LayerShape` that
    returns r or None. Layers without r are not projected.
    """
    if not isinstance(rank, Mapping) and not callable(rank):
        check_count("rank", rank)
    weights = dict(_matrices(model))
    if isinstance(rank, Mapping):
        for name in rank:
            if name not in weights:
                allowed = "keyed by trainable weights of Linear or Conv1D layers"
                raise ParameterError("rank", name, allowed)
    layers = []
    for name, weight in weights.items():
        axis = projected_axis(weight)
        shape = LayerShape(name, weight.shape[axis], weight.shape[1 - axis])
        r = _rank_of(shape, rank)
        if r is not None:
            layers.append(ProjectedMatrix(name, weight, r))
    if not layers:
        raise ParameterError("rank", rank, "one that projects at least one trainable Linear or Conv1D layer")
    return layers


def is_linear(module: nn.Module) -> bool:
    """Return whether the weight is (out, in), as in ``torch.nn.Linear``."""
    return type(module) is nn.Linear


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for prefix, module in model.named_modules():
        if (is_linear(module) or is_conv1d(module)) and module.weight.requires_grad:
            yield f"{prefix}.weight" if prefix else "weight", module.weight


def _rank_of(shape: LayerShape, rank: int | Mapping[str, int] | RankRule) -> int | None:
    chosen = rank.get(shape.name) if isinstance(rank, Mapping) else rank(shape) if callable(rank) else rank
    if chosen is None:
        return None
    r = check_count(f"rank of {shape.name}", chosen)
    if r > shape.m:
        allowed = f"at most {shape.m}, the layer's longer side ({shape.m} x {shape.n})"
        raise ParameterError(f"rank of {shape.name}", r, allowed)
    return r
