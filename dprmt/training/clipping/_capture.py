"""Capture the inputs of every trainable layer and the gradients of its outputs in a backward pass.

Two hooks on a layer's forward pass. Before it, the layer's parameters become constants (``requires_grad_(False)``), so
that autograd forms no gradient of them: that sum over samples is private and would be thrown away. After it, they are
trainable again, and the output goes through
:class:`Tap`, which hands over inputs and output gradient in the backward pass. A parameter that still gets a gradient
is used outside of its layer, which no norm accounts for, so this is an error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from opacus.layers.dp_rnn import DPRNNBase
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.clipping._formed_layers import (
    UNKNOWN_TOKENS,
    Contribution,
    Layer,
    NormPolicy,
    Samples,
    WholeModule,
    joined,
)
from dprmt.training.clipping._matrix_layers import add_inner_products
from dprmt.training.clipping._modules import known_kind
from dprmt.training.clipping._sample_wise import SampleWiseForward, Tap, buffer_versions, output_axis
from dprmt.training.clipping._units import UnitRows, Use
from dprmt.training.norms import NormRecord, rounding_margin
from dprmt.training.norms._clipping import UNIT_ROUNDOFF

_OUTSIDE = (
    "a backward pass other than the one of accumulate(): no ε covers it.\n"
    "Fix: private.step(lambda rows: <one loss per sample>, batch) instead of loss.backward(); private.close() if the "
    "run is over; model.eval() before the forward pass if another network is trained: this one then gets no gradients"
)
_SEVERAL_CALLS = (
    "a module whose one forward pass makes all calls, or units=Units(1, regime='alone'), which runs each row alone; "
    "torch.no_grad() for calls that are not trained on"
)
_MIXED = "the first axis of every trainable layer, and of the losses, with no sample in another's loss"
_ELSEWHERE = (
    "used through its own layer only: this one also gets a gradient from elsewhere, in the model or the losses; name a "
    "module around all of it in whole=[...], or pass units=Units(1, regime='alone')"
)


class _Hook:
    """A hook that is not compiled, and does nothing in a deep copy or a saved model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch is skipped by mypy
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (_nothing,)


def _nothing(*_: Any, **__: Any) -> None:
    return None


class Capture:
    """Hooks on one model, and what they have seen of the present micro-batch.

    ``policy``: how norms are obtained. ``record``: the same for the accountant. ``floor``: the least rounding margin.

    Position embeddings get a batch axis. Some models look up the embeddings of one sample and broadcast them, (1, T,
    d) to (B, T, d), so that their gradient would be summed over samples. Integers with a first axis of length 1 are
    repeated to the batch size, the first axis of the model's first tensor; the model's output is the same.
    """

    _at: tuple[int, Samples]
    _size: int | None
    _units: UnitRows | None

    def __init__(
        self, model: nn.Module, layers: Sequence[Layer], policy: NormPolicy, record: NormRecord, *, floor: float = 0.0
    ) -> None:
        self.model, self.layers, self._policy, self.record = model, list(layers), policy, record
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        double = all(value.dtype == torch.float64 for value in self._parameters.values())
        dtype = torch.float64 if double else torch.float32
        uses = Counter(value for layer in layers for value in layer.module.parameters() if value.requires_grad)
        self._tied = [value for value, count in uses.items() if count > 1]  # tables that several layers use
        self.sizes = {layer: sum(value.numel() for value in layer.module.parameters()) for layer in self.layers}
        self._terms = max(layer.terms(policy.tokens or 1) for layer in self.layers)  # the longest chain of additions
        if policy.tokens is None and any(layer.terms(1) != layer.terms(2) for layer in self.layers):
            self._terms = UNKNOWN_TOKENS
        self._most_tokens = dict.fromkeys(self.layers, 0)
        margins = {each: rounding_margin(self._terms, dtype=dtype, precision=each) for each in UNIT_ROUNDOFF}
        self._margins = {products: max(margin, floor) for products, margin in margins.items()}
        device = next(iter(self._parameters.values())).device
        self._anchor = torch.zeros((), device=device, requires_grad=True)  # to which every tap leads
        self._looked: list[int] | None = None
        self._must_be_zero: torch.Tensor | None = None
        self.batch_size = 1
        self.finish()
        self._handles: list[Any] = [model.register_forward_pre_hook(self._start(), with_kwargs=True, prepend=True)]
        self._apart: list[SampleWiseForward] = []
        for layer in self.layers:
            if isinstance(layer, WholeModule):
                self._follow_whole(layer)
            else:
                self._follow(layer)
        for name, part in model.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):  # a frozen one: others are refused
                self._handles.append(part.register_forward_pre_hook(partial(_stays_fixed, name)))
            if isinstance(part, DPRNNBase):
                self._handles.append(part.register_forward_pre_hook(_refuse_packed))
        for name, parameter in self._parameters.items():
            self._handles.append(parameter.register_post_accumulate_grad_hook(partial(self._plain, name)))
        for forward in self._apart:
            forward.last_hook = next(reversed(forward.module._forward_pre_hooks))

    @property
    def rounding(self) -> float:
        """ρ of ``clip_factors``: of the largest possible sums, the same for all samples whatever the batch."""
        return self._margins[torch.get_float32_matmul_precision()]

    def uses_of(self, losses: torch.Tensor, rows: Sequence[int], *, apart: bool = False) -> dict[Layer, list[Use]]:
        """Return what a backward pass of the losses' sum shows of some rows; nothing is measured or summed.

        ``apart``: raise an error unless these rows' losses leave the other rows at zero, and the others' losses these.
        """
        weights = torch.zeros_like(losses)
        weights[list(rows)] = 1.0
        self._expected, self._size = True, len(losses)
        try:
            if losses.requires_grad and apart:
                self._differentiate(losses, 1.0 - weights)
            self._looked = list(rows)
            if losses.requires_grad:
                self._differentiate(losses, weights if apart else torch.ones_like(losses), last=True)
            return self.waiting
        finally:
            self._expected, self._looked = False, None

    def _differentiate(self, losses: torch.Tensor, weights: torch.Tensor, *, last: bool = False) -> None:
        """Run a backward pass of weighted losses, which must leave rows of weight zero at zero."""
        self._must_be_zero = weights == 0
        try:
            torch.autograd.grad(losses, [self._anchor], weights, retain_graph=not last, allow_unused=True)
        finally:
            self._must_be_zero = None

    def check_apart(self, losses: torch.Tensor) -> None:
        """Raise if the first or the last sample's loss depends on others' rows, or others' losses on theirs.

        Exactly: by backward passes of these losses alone, and of all others, which must leave the other rows at zero.
        """
        ends = torch.zeros(3, len(losses), dtype=losses.dtype, device=losses.device)
        ends[0, 0] = ends[1, -1] = 1.0
        ends[2, 1:-1] = 1.0
        for weights in ends:
            self._differentiate(losses, weights)

    def backward(
        self,
        losses: torch.Tensor,
        *,
        step: int,
        samples: Samples,
        units: UnitRows | None = None,
        apart: bool = False,
    ) -> torch.Tensor:
        """Return squared norms over all layers, shape (B,); what they are of is in :attr:`contributions`.

        ``samples``: identities of rows, or of units. ``apart``: whether to run :meth:`check_apart` before.
        """
        for layer in self.layers:
            if not layer.module.training:
                raise TrainingStateError(f"{layer.name} is in evaluation mode: call model.train()")
        if self._buffers:
            check_buffers(self.model, self._buffers, "samples")
        if not self._forward:
            raise TrainingStateError("no forward pass since the last micro-batch: call the model before this call")
        if apart:
            self.check_apart(losses)
        for parameter in self._parameters.values():
            parameter.grad = None  # what was left there would be added to
        self._at, self._units, self._size, self._expected = (step, samples), units, len(losses), True
        self._elsewhere.clear()
        # A shard's whole parameter is not in the model then. Nothing else gets a gradient of private rows.
        inputs = None if self._policy.sharded else [self._anchor, *self._parameters.values()]
        try:
            losses.sum().backward(inputs=inputs)
        finally:
            self._expected = False
        if self._elsewhere:
            raise ParameterError("model", self._elsewhere[0], _ELSEWHERE)
        if self.waiting and self._policy.sharded:
            name = next(iter(self.waiting)).name
            raise TrainingStateError(f"the losses do not depend on all uses of {name}, whose parameters are sharded")
        for layer in list(self.waiting):  # a use whose output the losses do not depend on has no gradient
            self._measure(layer)
        if self.squared is None:
            raise TrainingStateError("the losses reach no trainable layer")
        if not self._tied:
            return self.squared
        parts = [contribution for _, contribution in self.contributions]
        return add_inner_products(self.squared, parts, self._tied, rounding=self.rounding)

    def finish(self) -> None:
        """Forget the micro-batch."""
        self._forward: Counter[Layer] = Counter()
        self.waiting: dict[Layer, list[Use]] = {}
        self.squared: torch.Tensor | None = None
        self.squared_of: dict[Layer, torch.Tensor] = {}
        self.contributions: list[tuple[Layer, Contribution]] = []
        self._at, self._size, self._units = (0, None), None, None
        self._expected = self.summing = False
        self._buffers: dict[str, tuple[int, int]] = {}
        self._elsewhere: list[str] = []

    def shared_modules(self) -> list[str]:
        """Return the names of modules that are run sample by sample, and got nothing that is a sample's own."""
        return [forward.name for forward in self._apart if forward.takes_no_rows]

    def remove(self) -> None:
        """Take the hooks away."""
        self.finish()
        while self._handles:
            self._handles.pop().remove()
        self._apart.clear()

    # Hooks. A shallow copy of a model shares them: of its modules they do nothing.

    def _start(self) -> Callable[..., None]:
        def start(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if model is not self.model:
                return
            tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
            self.batch_size = next((len(value) for value in tensors if value.ndim), 1)
            if not (model.training and torch.is_grad_enabled()) or self._expected:
                return
            self._buffers = buffer_versions(model)
            if self._forward:
                raise TrainingStateError(f"a second forward pass in one micro-batch.\nFix: {_SEVERAL_CALLS}")

        return _Hook(start)

    def _follow_whole(self, layer: WholeModule) -> None:
        module = layer.module

        def watch(called: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if called is not module or not (module.training and torch.is_grad_enabled()):
                return
            if not self._expected:
                self._forward[layer] += 1
            for place, value in enumerate(tree_leaves(output)):
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    value.register_hook(partial(self._asks, layer.name, output_axis(module, place)))

        take = partial(self._arrives, layer)
        forward = SampleWiseForward(layer.name, module, lambda: self.batch_size, take, self._anchor)
        self._apart.append(forward)
        self._handles += [
            module.register_forward_pre_hook(_Hook(forward.before), with_kwargs=True),
            module.register_forward_hook(_Hook(watch), prepend=True),
            module.register_forward_hook(_Hook(forward.after), prepend=True, with_kwargs=True, always_call=True),
        ]

    def _follow(self, layer: Layer) -> None:
        module, patched = layer.module, "forward" in vars(layer.module)
        owned = known_kind(module) is not None
        constants: list[list[nn.Parameter]] = []  # of forward passes that run

        def before(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if called is not module or not (module.training and torch.is_grad_enabled()):
                return None
            if ("forward" in vars(module)) != patched:
                raise TrainingStateError(f"the forward pass of a {type(module).__name__} was replaced: do so before")
            trained = [value for value in module.parameters(recurse=False) if value.requires_grad]
            constants.append([value.requires_grad_(False) for value in trained])
            if isinstance(module, nn.Embedding) and args and args[0].ndim > 1 and len(args[0]) == 1:
                return (args[0].expand(self.batch_size, *args[0].shape[1:]), *args[1:]), kwargs
            return None

        def after(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if called is not module or not constants:
                return None
            for value in constants.pop():
                value.requires_grad_(True)
            if output is None:  # the forward pass failed
                return None
            if next(iter(module._forward_hooks)) != first.id:
                raise TrainingStateError(f"a hook was put before hooks of {layer.name}: register it without prepend")
            if not isinstance(output, torch.Tensor):
                found = f"{layer.name} returns {type(output).__name__}, not a tensor"
                raise TrainingStateError(f"{found}: name it in whole")
            if not self._expected:  # not what a checkpoint runs again
                self._forward[layer] += 1
            inputs = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
            return Tap.apply(partial(self._arrives, layer), owned, output, self._anchor, *inputs)

        self._handles.append(module.register_forward_pre_hook(_Hook(before), with_kwargs=True))
        first = module.register_forward_hook(_Hook(after), prepend=True, with_kwargs=True, always_call=True)
        self._handles.append(first)

    # The backward pass.

    def _arrives(self, layer: Layer, inputs: Sequence[torch.Tensor], gradient: torch.Tensor) -> None:
        """Note a use that the backward pass has come to."""
        is_whole, size = isinstance(layer, WholeModule), self._size
        if self._must_be_zero is not None:
            if not is_whole:
                self._asks(layer.name, 0, gradient)
            if self._looked is None:
                return
        if not len(gradient):
            return
        if not self._expected:
            raise TrainingStateError(_OUTSIDE)
        assert size is not None
        first = gradient if is_whole else inputs[0]
        if len(first) != size or len(gradient) != size:
            raise TrainingStateError(_shapes(layer.name, first, gradient, size))
        uses, gradient = self.waiting.setdefault(layer, []), gradient.detach()
        if self._looked is not None:
            rows = [value[self._looked] if value.ndim and len(value) == size else value for value in inputs]
            uses.append((list(inputs) if is_whole else rows, gradient[self._looked]))
            return
        uses.append((list(inputs), gradient))
        if is_whole:
            return  # each parameter is captured separately
        if self._forward[layer] < 1:
            raise TrainingStateError("gradient checkpointing is of the reentrant kind: use_reentrant=False")
        if len(uses) >= self._forward[layer]:
            self._measure(layer)
            self._forward[layer] = 0

    def _asks(self, name: str, axis: int, gradient: torch.Tensor) -> None:
        others = self._must_be_zero
        if others is None:
            return
        by_sample = gradient.movedim(axis, 0) if gradient.ndim else gradient
        # 0 times a gradient that is not finite is NaN: such a sample is left out later.
        if len(by_sample) == len(others) and bool(by_sample[others].nan_to_num(0.0, 0.0, 0.0).any()):
            raise ParameterError("samples", name, _MIXED)

    def _plain(self, name: str, parameter: torch.Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if self._expected and gradient is not None and bool(getattr(gradient, "_local_tensor", gradient).any()):
            self._elsewhere.append(name)

    def _measure(self, layer: Layer) -> None:
        uses, units = self.waiting.pop(layer), self._units
        tokens = sum(max(math.prod(g.shape[1:-1]), 1) if layer.per_token else 1 for _, g in uses)
        if units is not None and layer.per_token:
            tokens *= units.most
        if tokens > self._most_tokens[layer]:
            most = self._policy.tokens
            if most is not None and tokens > most:
                raise ParameterError("tokens", most, f"the largest number of tokens, at least {tokens}")
            if layer.terms(tokens) > self._terms:
                allowed = f"given, as {layer.name} adds more than {UNKNOWN_TOKENS} numbers"
                raise ParameterError("tokens", most, allowed)
            self._most_tokens[layer] = tokens
        if layer.per_token and len(uses) > 1:
            uses = [joined(uses)]
        if units is not None and layer.per_token:
            uses, units = [units.joined(uses[0])], None
        squared, contributions = layer.measure(uses, *self._at, units)
        self.squared_of[layer] = squared
        self.squared = squared if self.squared is None else self.squared + squared.to(self.squared.device)
        self.contributions += [(layer, contribution) for contribution in contributions]


def check_buffers(model: nn.Module, before: Mapping[str, tuple[int, int]], others: str) -> None:
    """Raise if a buffer has changed, which would hold ``others``."""
    if changed := buffer_versions(model).items() ^ before.items():
        raise TrainingStateError(f"a forward pass changes buffer {min(changed)[0]}, which would hold other {others}")


def check_parameters(losses: torch.Tensor, model: nn.Module) -> None:
    """Raise if the losses would train a parameter that is not the model's."""
    known, seen, nodes = {id(value) for value in model.parameters()}, set(), [losses.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        value = getattr(node, "variable", None)
        if isinstance(value, nn.Parameter) and id(value) not in known:
            found = f"the losses depend on a trainable parameter of shape {tuple(value.shape)}, outside of the model"
            raise TrainingStateError(
                f"{found}: it would be trained without clipping and noise.\n"
                "Fix: a module around both in make_private; or requires_grad_(False), if it is not trained."
            )
        nodes.extend(following for following, _ in node.next_functions)


def check_losses(losses: Any, size: int | None = None, *, needs_graph: bool = True) -> None:
    """Raise unless there is one loss for each row, with its graph."""
    if not isinstance(losses, torch.Tensor) or losses.ndim != 1 or size not in (None, len(losses)):
        shape = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
        rows = "B" if size is None else size
        raise ParameterError("losses", shape, f"a tensor of shape ({rows},): one loss for each sample, not their mean")
    if not needs_graph:
        return
    if not losses.requires_grad:
        raise TrainingStateError("the losses have no graph: compute them from the model with gradients enabled")
    is_product = losses.grad_fn is not None and losses.grad_fn.name() == "MulBackward0"
    factor: Any = getattr(losses.grad_fn, "_saved_other", None) if is_product else None
    if factor is None or factor.ndim or factor.dtype != torch.float32 or factor.requires_grad:
        return
    if float(factor) >= 128.0 and math.log2(float(factor)).is_integer():  # of a GradScaler: 65536, halved and doubled
        todo = "losses are in float32 and clipped, so that nothing underflows: leave the GradScaler out"
        raise TrainingStateError(f"the losses were multiplied by a GradScaler's scale: {todo}")


def _stays_fixed(name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
    if module.training and torch.is_grad_enabled():
        raise TrainingStateError(f"{name} is in training mode, where it mixes samples: call its eval() after train()")


def _refuse_packed(module: nn.Module, args: tuple[Any, ...]) -> None:
    if any(isinstance(value, PackedSequence) for value in args):
        found = f"{type(module).__name__} was given a PackedSequence"
        raise TrainingStateError(f"{found}, which is sorted, so that rows are not the samples: pad instead")


def _shapes(name: str, first: torch.Tensor, gradients: torch.Tensor, size: int) -> str:
    shapes = f"inputs {tuple(first.shape)} and outputs {tuple(gradients.shape)} of {name}"
    if len(first) % size == 0:
        cause = "not samples and tokens in one axis"
    elif len(first) == len(gradients) == 1:
        cause = "not what all samples share"
    else:
        cause = "not rows that are sent to experts by index"
    todo = f"the first axis of a trainable layer is that of the {size} samples, {cause}"
    return f"{shapes}: {todo}; or name a module around it in whole=[...]"
