"""Opacus' hooks with projecting grad samplers of their own: what is stored per sample is r × n."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from torch import nn

from dprmt._validation import ParameterError
from dprmt.training.norms._layer_gradient import full_precision
from dprmt.training.projection._layers import is_conv1d, is_linear
from dprmt.training.projection._samplers import (
    Factors,
    Lookups,
    Norms,
    is_cheaper_as_factors,
    table_lookups,
    weight_factors,
)
from dprmt.training.projection._subspaces import Subspaces

Sampler = Callable[[nn.Module, list[torch.Tensor], torch.Tensor], dict[nn.Parameter, torch.Tensor]]


class ProjectedGradSampleModule(GradSampleModule):  # type: ignore[misc]  # opacus is skipped by mypy
    """A model whose backward pass leaves projected per-sample gradients in ``p.grad_sample``.

    The samplers belong to the instance; Opacus' own tables stay as they are. The gradient of the whole batch, which
    autograd forms as well, is let go of layer by layer: it is not private, and nothing uses it.

    Parameters
    ----------
    model : torch.nn.Module
        Batch first; losses are summed, not averaged, over the batch.
    subspaces : Subspaces
        Of the projected weights.
    project : bool
        False if gradients are to be projected after the noise: then whole ones are formed.
    norms : {"materialize", "ghost", "auto"}
        Whether the weights' gradients are formed or kept as factors. Embedding tables' are never formed.

    Formal guarantees
    -----------------
    None: per-sample gradients are private, projected or not. What may be released is a clipped, noisy sum
    (`ProjectedDPOptimizer`).

    Examples
    --------
    >>> network = torch.nn.Linear(300, 40)
    >>> subspaces = Subspaces(network, rank=8)
    >>> model = ProjectedGradSampleModule(network, subspaces=subspaces, project=True, norms="materialize")
    >>> inputs = torch.ones(2, 300, requires_grad=True)
    >>> model(inputs).square().mean(1).sum().backward()
    >>> network.weight.grad_sample.shape, network.bias.grad_sample.shape
    (torch.Size([2, 8, 40]), torch.Size([2, 40]))
    >>> model.clear()
    >>> model.to_standard_module() is network
    True
    """

    def __init__(self, model: nn.Module, *, subspaces: Subspaces, project: bool, norms: Norms) -> None:
        self.subspaces = subspaces  # what the hooks need, before the parent adds them
        self.project = project
        self.norms = norms
        self.factors: dict[nn.Parameter, Factors | Lookups] = {}
        self.GRAD_SAMPLERS: dict[type, Any] = {
            kind: partial(_wide, sampler) for kind, sampler in GradSampleModule.GRAD_SAMPLERS.items()
        }
        for module in model.modules():
            if is_linear(module) or is_conv1d(module):
                self.GRAD_SAMPLERS[type(module)] = self._sample
        self.GRAD_SAMPLERS[nn.Embedding] = self._sample_table
        super().__init__(model, batch_first=True, loss_reduction="sum", strict=True)
        self.forbid_grad_accumulation()
        self._releases = [
            p.register_post_accumulate_grad_hook(_let_go) for p in self._module.parameters() if p.requires_grad
        ]

    def clear(self) -> None:
        """Forget all per-sample gradients."""
        self.factors.clear()
        for parameter in self._module.parameters():
            if parameter.requires_grad:
                parameter.grad_sample = None
                parameter.__dict__.pop("_current_grad_sample", None)
                parameter._forward_counter = 0
        for module in self._module.modules():
            for name in ("activations", "max_batch_len"):
                module.__dict__.pop(name, None)

    def cleanup(self) -> None:
        """Take all hooks and attributes off the model."""
        self.clear()
        for hook in self._releases:
            hook.remove()
        super().cleanup()

    def _sample(
        self, module: nn.Module, activations: list[torch.Tensor], backprops: torch.Tensor
    ) -> dict[nn.Parameter, torch.Tensor]:
        result = {}
        weight: nn.Parameter = module.weight
        bias: nn.Parameter | None = getattr(module, "bias", None)
        if weight.requires_grad:
            result[weight] = self._sample_weight(module, weight, activations[0], backprops)
        if bias is not None and bias.requires_grad:
            tokens = backprops.flatten(1, -2) if backprops.ndim > 2 else backprops[:, None]
            result[bias] = tokens.sum(1, dtype=torch.promote_types(backprops.dtype, torch.float32))
        return result

    def _sample_weight(
        self, module: nn.Module, weight: nn.Parameter, activations: torch.Tensor, backprops: torch.Tensor
    ) -> torch.Tensor:
        layer = self.subspaces.layer(weight)
        axis = 0 if layer is None else layer.axis
        projector = self.subspaces.projector(weight) if layer is not None and self.project else None
        factors = weight_factors(module, activations, backprops, axis, projector)
        if self.norms == "ghost" or (self.norms == "auto" and is_cheaper_as_factors(factors)):
            return self._keep(weight, factors, factors.left)
        return factors.materialize()

    def _sample_table(
        self, module: nn.Embedding, activations: list[torch.Tensor], backprops: torch.Tensor
    ) -> dict[nn.Parameter, torch.Tensor]:
        # In every mode: whole tables per sample would take more memory than all that projections save.
        lookups = table_lookups(module, activations[0], backprops)
        return {module.weight: self._keep(module.weight, lookups, lookups.gradients)}

    def _keep(self, weight: nn.Parameter, factors: Any, like: torch.Tensor) -> torch.Tensor:
        known = self.factors.get(weight)
        self.factors[weight] = factors if known is None else known.joined(factors)
        return like.new_zeros(len(like), 0)  # for Opacus' book-keeping of uses


def check_batch(name: str, sizes: set[int], expected: int) -> None:
    """Raise unless every layer saw one row per sample.

    Raises
    ------
    ParameterError
        If a layer's first axis is not the batch: one that is broadcast over it, or tokens without a batch axis.
    """
    if sizes != {expected}:
        allowed = f"{expected} rows on its first axis, one per sample (no broadcast inputs, no flattened tokens)"
        raise ParameterError(f"input of {name}", sorted(sizes), allowed)


def _wide(
    sampler: Sampler, module: nn.Module, activations: list[torch.Tensor], backprops: torch.Tensor
) -> dict[nn.Parameter, torch.Tensor]:
    # One of Opacus' samplers on at least float32 inputs.
    def widened(tensor: Any) -> Any:
        is_half = isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.itemsize < 4
        return tensor.float() if is_half else tensor

    with full_precision(backprops.device):
        return sampler(module, [widened(tensor) for tensor in activations], widened(backprops))


def _let_go(parameter: torch.Tensor) -> None:
    parameter.grad = None
