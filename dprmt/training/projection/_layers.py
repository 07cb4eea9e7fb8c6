"""Which layers are projected, along which side, and to how many dimensions."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from opacus.grad_sample import GradSampleModule
from torch import nn

from dprmt._validation import ParameterError, check_count
from dprmt.training.clipping._refusals import check_samples_apart
from dprmt.training.projection._ranks import LayerShape, RankRule


@dataclass(frozen=True, eq=False)
class ProjectedLayer:
    """A weight matrix whose gradient is projected along its longer side.

    Parameters
    ----------
    name : str
        Of the weight, as in ``model.named_parameters()``.
    weight : torch.nn.Parameter
        The matrix.
    rank : int
        r, of the projector; the largest one if a rule adapts it.
    """

    name: str
    weight: nn.Parameter
    rank: int

    @property
    def axis(self) -> int:
        """The projected axis of the weight: the longer one, the first of equal ones."""
        return projected_axis(self.weight)

    @property
    def m(self) -> int:
        """Length of the projected side."""
        return self.weight.shape[self.axis]

    @property
    def n(self) -> int:
        """Length of the other side."""
        return self.weight.shape[1 - self.axis]

    def orient(self, matrix: torch.Tensor) -> torch.Tensor:
        """A matrix like the weight, as m × n; and back, since it is a transposition or nothing.

        Parameters
        ----------
        matrix : Tensor, shape (p, d) or (m, n)
            Of two axes.

        Returns
        -------
        Tensor
            A view.
        """
        return matrix if self.axis == 0 else matrix.mT


def projected_axis(weight: torch.Tensor) -> int:
    """The longer axis, the first of equal ones: what is left, r × n, is smallest then.

    Returns
    -------
    int
        0 or 1.
    """
    return 0 if weight.shape[0] >= weight.shape[1] else 1


def find_layers(model: nn.Module, rank: int | Mapping[str, int] | RankRule) -> list[ProjectedLayer]:
    """The trainable weights of Linear and Conv1D layers, LoRA's among them, that ``rank`` says are projected.

    Parameters
    ----------
    model : torch.nn.Module
        As it will be trained; not wrapped yet.
    rank : int, mapping of str to int, or rule
        One r for all layers; r by name of the weight, the others being left unprojected; or a function of a
        :class:`LayerShape` that returns r, or None for a layer to be left unprojected.

    Returns
    -------
    list of ProjectedLayer
        In the order of ``model.named_parameters()``.

    Raises
    ------
    ParameterError
        If r is larger than a layer's longer side, a name is not that of a trainable weight of a supported layer, or
        there is nothing to project.
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
            layers.append(ProjectedLayer(name, weight, r))
    if not layers:
        raise ParameterError("rank", rank, "one that projects at least one trainable Linear or Conv1D layer")
    return layers


def check_model(model: nn.Module) -> None:
    """Refuse, before any work, a model whose per-sample gradients the hooks would get wrong or not at all.

    Raises
    ------
    ParameterError
        If it is wrapped already, mixes samples, nothing is trainable, a trainable parameter is shared by two modules,
        not of real floating dtype, or owned by a module that the hooks cannot treat.
    """
    if not isinstance(model, nn.Module) or isinstance(model, GradSampleModule):
        raise ParameterError("model", type(model).__name__, "a torch module that no Opacus module wraps")
    if hasattr(model, "autograd_grad_sample_hooks"):
        raise ParameterError("model", "one with Opacus hooks", "without hooks: close the previous private step")
    for name, module in model.named_modules():
        check_samples_apart(name, module)
    owned = [
        (name, module, parameter)
        for name, module in model.named_modules()
        for parameter in module.parameters(recurse=False)
        if parameter.requires_grad
    ]
    if not owned:
        raise ParameterError("model", "no trainable parameter", "one with trainable parameters")
    owners = Counter(id(parameter) for _, _, parameter in owned)
    for name, module, parameter in owned:
        if owners[id(parameter)] > 1:
            raise ParameterError("model", f"tied parameter in {name!r}", "one without tied trainable parameters")
        if not parameter.is_floating_point():
            raise ParameterError("model", f"{parameter.dtype} in {name!r}", "of real floating dtype")
        if not _is_supported(module):
            allowed = "made of layers with a grad sampler in Opacus, Conv1D, and layers of one input and no children"
            raise ParameterError("model", f"trainable {type(module).__name__} {name!r}", allowed)


def is_linear(module: nn.Module) -> bool:
    """Whether the weight is (out, in), as in ``torch.nn.Linear``.

    Returns
    -------
    bool
        False for subclasses, whose forward may be another.
    """
    return type(module) is nn.Linear


def is_conv1d(module: nn.Module) -> bool:
    """Whether the module is the Conv1D of Transformers, whose weight is (in, out).

    Returns
    -------
    bool
        Told by name, so that Transformers need not be installed.
    """
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


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


def _is_supported(module: nn.Module) -> bool:
    # Layers without a sampler of their own go to functorch, which replays one module on one input.
    if is_conv1d(module) or type(module) in GradSampleModule.GRAD_SAMPLERS:
        return True
    arguments = [a for a in inspect.signature(module.forward).parameters.values() if a.default is a.empty]
    positional = all(a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD) for a in arguments)
    leaf = not any(True for _ in module.children()) and not any(True for _ in module.buffers())
    return leaf and positional and len(arguments) == 1
