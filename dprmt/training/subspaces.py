"""Subspaces in which weights are trained (DP-GRAPE): projectors, ranks, periods. Linear algebra, without clipping.

A weight with gradient G (m × n, the longer side first) has a projector P (m × r) for F steps; what is clipped, noised
and given to the optimizer is PᵀG (r × n). Numbers stored per sample, T tokens:

| what                                     | per sample | moments |
|------------------------------------------|------------|---------|
| whole gradients (DP-Adam)                | m·n        | 2·m·n   |
| projected, formed (``clipping="exact"``) | r·n        | 2·r·n   |
| projected, as factors (ghost, estimates) | T·(r + n)  | 2·r·n   |

With N(0, 1/r) entries, and with √(m/r) times a uniformly distributed orthonormal frame, E PPᵀ = I: so
E‖Pᵀx‖² = ‖x‖², and P(PᵀG) is unbiased for G. (Entries N(0, 1/r²), as in published code, shrink every gradient, and
with it the clipping norm's meaning, by √r.) Singular vectors are not rescaled: PPᵀ is then the projection on their
span.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, SupportsIndex, get_args

import torch
from torch import nn

import dprmt.training._needs_train  # noqa: F401
from dprmt._validation import ParameterError, check_choice, check_count
from dprmt.training.norms import ProbeGenerator
from dprmt.training.norms._clipping import is_conv1d

__all__ = ["Subspaces"]


@dataclass(frozen=True, eq=False)
class ProjectedMatrix:
    """A weight matrix whose gradient is projected along its longer side ``axis``, the first of equal ones.

    ``rank``: r of the projector; ``m``, ``n``: lengths of the projected side and of the other one.
    """

    name: str
    weight: nn.Parameter
    axis: int
    rank: int
    m: int
    n: int

    def orient(self, matrix: torch.Tensor) -> torch.Tensor:
        """Reorient a matrix like the weight as m × n, or back; a view."""
        return matrix if self.axis == 0 else matrix.mT


Projector = Literal["gaussian", "stiefel", "svd"]


class Subspaces:
    """A projector P (m × r) for every projected layer, a new one every F steps.

    Parameters
    ----------
    model : torch.nn.Module
        Its trainable Linear and Conv1D weights, LoRA's among them, are projected along their longer side m.
    rank : int or mapping of str to int
        One r for all layers, at most the length m of each, or r by weight name. Layers that the mapping does not name
        are not projected.
    refresh_every : int
        F >= 1 steps that share a subspace.
    projector : {"gaussian", "stiefel", "svd"}
        "gaussian" has N(0, 1/r) entries. "stiefel" is √(m/r) times a random orthonormal frame. "svd" uses the leading
        left singular vectors of the released gradient of the first step of every F, of which a layer has no more than
        its shorter side is long.
    seed : int, optional
        In [0, 2²⁵⁶), from which the random projectors are drawn. It may be public, but must be chosen without looking
        at the private data. By default a new one; saved with the state.

    Attributes
    ----------
    step, period : int
        Steps that were counted, and how often the subspaces have changed: ⌊step/F⌋.

    Formal guarantees
    -----------------
    Random projectors are a function of (seed, layer, period) alone, and so independent of the data. Projectors of
    "svd" are a function of a released gradient. Neither needs to be hidden, and neither counts towards ε.

    Raises
    ------
    ParameterError
        If an argument is out of its range, or a layer's own r is larger than its longer side (its shorter one for
        "svd").

    Examples
    --------
    >>> layer = torch.nn.Linear(300, 40)
    >>> subspaces = Subspaces(layer, rank=8, refresh_every=100, seed=0)
    >>> subspaces.projector(layer.weight).shape  # for the 300 inputs; gradients are 8 x 40
    torch.Size([300, 8])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        rank: int | Mapping[str, int],
        refresh_every: SupportsIndex = 100,
        projector: Projector = "gaussian",
        seed: int | None = None,
    ) -> None:
        self.kind = check_choice("projector", projector, get_args(Projector))
        self.refresh_every = check_count("refresh_every", refresh_every)
        weights = {
            f"{prefix}.weight".lstrip("."): module.weight
            for prefix, module in model.named_modules()
            if (type(module) is nn.Linear or is_conv1d(module)) and module.weight.requires_grad
        }
        own = rank if isinstance(rank, Mapping) else {}
        if unknown := own.keys() - weights:
            raise ParameterError("rank", min(unknown), "keyed by trainable weights of Linear or Conv1D layers")
        self.layers = []
        for name, weight in weights.items():
            axis = 0 if weight.shape[0] >= weight.shape[1] else 1
            m, n = weight.shape[axis], weight.shape[1 - axis]
            highest = n if projector == "svd" else m
            if name in own:
                r = check_count(f"rank of {name}", own[name], high=highest)
            elif not isinstance(rank, Mapping):
                r = min(check_count("rank", rank), highest)
            else:
                continue
            self.layers.append(ProjectedMatrix(name, weight, axis, r, m, n))
        if not self.layers:
            raise ParameterError("rank", rank, "one that projects at least one trainable Linear or Conv1D layer")
        self._by_weight = {layer.weight: layer for layer in self.layers}
        self.seed = secrets.randbits(128) if seed is None else seed
        self._generator = ProbeGenerator(self.seed)
        self._held: dict[str, torch.Tensor] = {}
        self.step, self.period = 0, 0

    def __contains__(self, weight: object) -> bool:
        return weight in self._by_weight

    def __iter__(self) -> Iterator[ProjectedMatrix]:
        return iter(self.layers)

    def layer(self, weight: torch.Tensor) -> ProjectedMatrix | None:
        """Return the shapes and the projection of a weight.

        Parameters
        ----------
        weight : torch.nn.Parameter
            A weight of the model.

        Returns
        -------
        ProjectedMatrix or None
            None if it is not projected.
        """
        return self._by_weight.get(weight)

    def projects(self, weight: torch.Tensor) -> bool:
        """True if the weight has a projector in the present step.

        Parameters
        ----------
        weight : torch.nn.Parameter
            A projected weight.

        Returns
        -------
        bool
            False for "svd" in the first step of a period.
        """
        return self.kind != "svd" or self._by_weight[weight].name in self._held

    def released_shape(self, weight: torch.Tensor) -> tuple[int, int]:
        """Return the shape of what is released of the weight's gradient in the present step.

        Parameters
        ----------
        weight : torch.nn.Parameter
            A projected weight.

        Returns
        -------
        (int, int)
            (r, n); (m, n) where there is no projector yet.
        """
        layer = self._by_weight[weight]
        return (layer.rank if self.projects(weight) else layer.m), layer.n

    def projector(self, weight: torch.Tensor) -> torch.Tensor | None:
        """Return P of the present step.

        Parameters
        ----------
        weight : torch.nn.Parameter
            A projected weight.

        Returns
        -------
        Tensor, shape (m, r), or None
            On the device of the weight, float32, or float64 if the weight is. None for "svd" in the first step of a
            period, whose released gradient :meth:`find` is to get.
        """
        layer = self._by_weight[weight]
        if layer.name in self._held:
            return self._held[layer.name]
        if self.kind == "svd":
            return None
        draw = partial(self._generator.shared, step=self.period, layer=layer.name, rows=layer.m, probes=layer.rank)
        if self.kind == "gaussian":
            matrix = draw(purpose="projector")
        else:
            matrix = _scaled_frame(draw(purpose="orthonormal projector", dtype=torch.float64)).float()
        return matrix.to(device=weight.device, dtype=torch.promote_types(weight.dtype, torch.float32))

    def find(self, weight: torch.Tensor, released: torch.Tensor) -> torch.Tensor:
        """Take the leading singular vectors of a released gradient as the projector of this period.

        Parameters
        ----------
        weight : torch.nn.Parameter
            A projected weight.
        released : Tensor, shape (m, n)
            Its privatised gradient, the longer side first.

        Returns
        -------
        Tensor, shape (m, r)
            P.
        """
        layer = self._by_weight[weight]
        exact = released if released.dtype == torch.float64 else released.float()
        vectors = torch.linalg.svd(exact, full_matrices=False).U
        self._held[layer.name] = vectors[:, : layer.rank].contiguous()
        return self._held[layer.name]

    def noise_gain(self, weight: torch.Tensor) -> float:
        """Return the mean variance of an entry of PᵀZ for Z with variance 1: m/r, and 1 for singular vectors.

        Parameters
        ----------
        weight : torch.nn.Parameter
            A projected weight.

        Returns
        -------
        float
            By how much projecting *after* the noise raises it over noise that is added in the subspace.
        """
        layer = self._by_weight[weight]
        return 1.0 if self.kind == "svd" else layer.m / layer.rank

    def advance(self) -> None:
        """Count a step; at the end of a period discard its projectors."""
        self.step += 1
        if self.step % self.refresh_every == 0:
            self._held.clear()
        self.period = self.step // self.refresh_every

    def check_shapes(self, weight: torch.Tensor | None = None) -> None:
        """Raise if a weight has changed its shape since.

        Parameters
        ----------
        weight : torch.nn.Parameter, optional
            The only one to look at.

        Raises
        ------
        ParameterError
            Naming it.
        """
        for layer in self.layers if weight is None else [self._by_weight[weight]]:
            before = (layer.m, layer.n) if layer.axis == 0 else (layer.n, layer.m)
            if tuple(layer.weight.shape) != before:
                raise ParameterError(layer.name, tuple(layer.weight.shape), f"of shape {before}, as before")

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs.

        Returns
        -------
        dict
            Plain numbers, strings and tensors.
        """
        return {
            "kind": self.kind,
            "seed": self.seed,
            "step": self.step,
            "refresh_every": self.refresh_every,
            "layers": {layer.name: [layer.m, layer.n, layer.rank] for layer in self.layers},
            "singular_vectors": dict(self._held) if self.kind == "svd" else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of :meth:`state_dict`.

        Parameters
        ----------
        state : mapping
            State of subspaces with the same layers, ranks, kind and F. The seed is taken from it.

        Raises
        ------
        ParameterError
            If it belongs to other subspaces; nothing is changed then.
        """
        mine = self.state_dict()
        for key in ("kind", "refresh_every", "layers"):
            if key not in state or state[key] != mine[key]:
                raise ParameterError(f"state_dict: {key}", state.get(key), f"{mine[key]!r}")
        generator, step = ProbeGenerator(state["seed"]), check_count("step", state["step"], low=0)
        self.seed, self._generator = state["seed"], generator
        self.step, self.period = step, step // self.refresh_every
        weights = {layer.name: layer.weight for layer in self.layers}
        self._held = {
            name: matrix.to(weights[name].device, copy=True) for name, matrix in state["singular_vectors"].items()
        }


def _scaled_frame(normal: torch.Tensor) -> torch.Tensor:
    """Draw √(m/r) times orthonormal columns, uniformly distributed on the Stiefel manifold.

    The factor Q of a Gaussian matrix is uniform once R's diagonal is positive: then Q is a function of the matrix
    that commutes with rotations (Mezzadri 2007, arXiv:math-ph/0609050, section 5).
    """
    q, upper = torch.linalg.qr(normal)
    signs = torch.where(upper.diagonal() < 0, -1.0, 1.0)
    return q * (signs * math.sqrt(normal.shape[0] / normal.shape[1]))
