"""A module's forward pass on one sample at a time, each with separate parameters, so that gradients are per sample.

Every trainable parameter is expanded to one copy for each sample, a view of no memory, and the module is mapped over
samples and copies ("vmap"). The gradient of a copy is the sample's gradient over all uses in the forward pass, with
its random numbers. No part of it can depend on another sample. Modules that torch cannot map, such as its recurrent
kernels, run in a loop.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_unflatten

from dprmt._validation import TrainingStateError
from dprmt.training.clipping._modules import Body, changed_buffer, is_sequence_first

Take = Callable[[Sequence[torch.Tensor], torch.Tensor], None]
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
_MASKS = ("attn_mask", "src_mask", "tgt_mask", "memory_mask")
_PADDING = "key_padding_mask"


class SampleWiseForward:
    """Two hooks on a module that replace its forward pass in training.

    :meth:`before` runs the module on one sample at a time and keeps the output. Torch then runs it once more, on the
    first sample alone, and :meth:`after` returns the kept output instead.

    ``batch_size``: size of the present batch, for modules whose documentation does not define the sample axis. An
    input with this first axis then holds the samples, and all other inputs are shared. ``take``: called in the
    backward pass with a list of one parameter and its per-sample gradients. ``anchor``: the tensor to which the
    backward pass leads.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        batch_size: Callable[[], int],
        take: Take,
        anchor: torch.Tensor,
    ) -> None:
        self.name, self.module, self._anchor = name, module, anchor
        self._parameters = {value: inside for inside, value in module.named_parameters() if value.requires_grad}
        self._batch_size, self._take = batch_size, take
        self._signature, self._body = inspect.signature(module.forward), Body(module)
        self._loops = isinstance(module, nn.RNNBase)
        self._shared: set[str] = set()
        self._compared: set[tuple[str, ...]] = set()
        self.takes_no_rows = False  # in its last call: then it gives each sample what all share, such as a table
        self._outputs_kept: list[Any] = []
        self.last_hook = -1  # of those before the forward pass; none may come after it, which would see one sample

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module, one sample at a time where it is trained, and return the arguments of the first sample."""
        if module is not self.module or not (module.training and torch.is_grad_enabled()):
            return None
        if next(reversed(module._forward_pre_hooks)) != self.last_hook:
            self._refuse("has a hook on its forward pass that was registered later: register it before make_private")
        call = _Call(self._signature.bind(*args, **kwargs), self._refuse)
        size = self._size(call)
        if size == 0:
            return None
        axes = [self._axis(name, value, size) for name, value in call.tensors]
        if size > 1:
            axes = self._agreed(call, axes, size, args, kwargs)
        self.takes_no_rows = all(axis is None for axis in axes)
        before = buffer_versions(self.module)
        copies = {}
        for parameter, name in self._parameters.items():
            expanded = parameter.detach().expand(size, *parameter.shape)
            copies[name] = Tap.apply(self._take, False, expanded, self._anchor, parameter)
        output = self._apart(call, axes, copies)
        if changed := buffer_versions(self.module).items() ^ before.items():
            raise TrainingStateError(changed_buffer(f"{self.name}.{min(changed)[0]}"))
        self._outputs_kept.append(output)
        cut = zip((value for _, value in call.tensors), axes, strict=True)
        first = call.with_tensors(
            [value if axis is None else value.narrow(axis, 0, value.shape[axis] // size) for value, axis in cut]
        )
        return first.args, first.kwargs

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Return the output that was kept."""
        return self._outputs_kept.pop() if module is self.module and self._outputs_kept else None

    def _size(self, call: _Call) -> int:
        if not follows_convention(self.module):
            return self._batch_size()
        name, value = call.tensors[0]
        if value.ndim != 3:
            self._refuse(f"has {name} of shape {tuple(value.shape)}, not (B, T, d), or (T, B, d), as torch has it")
        return value.shape[input_axis(self.module, name, value) or 0]

    def _axis(self, name: str, value: torch.Tensor, size: int) -> int | None:
        if follows_convention(self.module):
            return input_axis(self.module, name.partition(".")[0], value)
        if value.ndim == 0 or len(value) != size:
            self._shared.add(name)
        return None if name in self._shared else 0

    def _apart(self, call: _Call, axes: Sequence[int | None], copies: Mapping[str, torch.Tensor]) -> Any:
        size = len(next(iter(copies.values())))
        values = [value for _, value in call.tensors]
        cut = [_cut(value, axis, size) for value, axis in zip(values, axes, strict=True) if axis is not None]
        shape: dict[str, Any] = {}

        def one(own: Mapping[str, torch.Tensor], rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            row = iter(rows)
            mine = [value if axis is None else next(row) for value, axis in zip(values, axes, strict=True)]
            bound = call.with_tensors(mine)
            named = {f"module.{name}": value for name, value in own.items()}
            leaves, shape["spec"] = tree_flatten(functional_call(self._body, named, bound.args, bound.kwargs))
            shape["leaves"] = leaves
            return self._outputs(leaves)

        stacked, joined = iter(self._map(one, copies, cut)), []
        for place, leaf in enumerate(shape["leaves"]):
            axis = output_axis(self.module, place)
            is_stacked = isinstance(leaf, torch.Tensor)
            joined.append(next(stacked).movedim(0, axis).flatten(axis, axis + 1) if is_stacked else leaf)
        return tree_unflatten(joined, shape["spec"])

    def _outputs(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                axis = output_axis(self.module, place)
                if leaf.ndim <= axis or leaf.shape[axis] != 1:
                    cause = "tokens in one row, or sent to experts by index, have no sample axis"
                    self._refuse(f"has an output of shape {tuple(leaf.shape)} for one sample: {cause}")
            elif not isinstance(leaf, _PLAIN):
                self._refuse(f"has the output {type(leaf).__name__}, not tensors: use_cache=False turns caches off")
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def _map(self, one: Callable[..., list[torch.Tensor]], copies: Mapping[str, torch.Tensor], cut: Any) -> Any:
        with _without_warning():
            if not self._loops:
                try:
                    return vmap(one, randomness="different")(dict(copies), cut)
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError:  # torch cannot map it, or it fails on its own: then again below
                    self._loops = True
            size = len(next(iter(copies.values())))
            each = [
                one({name: value[i] for name, value in copies.items()}, [rows[i] for rows in cut]) for i in range(size)
            ]
            return [torch.stack(rows) for rows in zip(*each, strict=True)]

    def _agreed(self, call: _Call, axes: list[int | None], size: int, args: Any, kwargs: Any) -> list[int | None]:
        """Raise an error unless a batch's output equals its samples' outputs; checked once for each set of inputs.

        Numbers of columns, where there are as many columns as samples, may be cut or shared: whichever is equal.
        """
        key = tuple(f"{name} {axis}" for (name, _), axis in zip(call.tensors, axes, strict=True))
        if key in self._compared:
            return axes
        with _evaluated(self.module):
            whole, _ = tree_flatten(self.module.forward(*args, **kwargs))
            copies = {name: value.expand(size, *value.shape) for value, name in self._parameters.items()}
            apart, _ = tree_flatten(self._apart(call, axes, copies))
        if len(whole) != len(apart) or any(map(_differ, whole, apart)):
            numbers = {name for name, value in call.tensors if _numbers_columns(value)} - self._shared
            if numbers:
                self._shared |= numbers
                axes = [self._axis(name, value, size) for name, value in call.tensors]
                return self._agreed(call, axes, size, args, kwargs)
            cut = ", ".join(name for (name, _), axis in zip(call.tensors, axes, strict=True) if axis is not None)
            found = f"has another output for {size} samples together than one by one, cut along the first axis: {cut}"
            self._refuse(f"{found}; it mixes samples, or the first batch has the size of another axis")
        self._compared.add(key)
        return axes

    def _refuse(self, found: str) -> None:
        raise TrainingStateError(f"{self.name} ({type(self.module).__name__}), run on one sample at a time, {found}")


def explained(error: RuntimeError, shared: Sequence[str]) -> TrainingStateError | None:
    """Return the error to raise instead, of gradient checkpointing, a compiled model, or modules that all samples
    share; None of others.

    ``shared``: names of modules that are run sample by sample, and got nothing that is a sample's own.
    """
    said = str(error)
    if "donated buffers" in said:
        todo = "set torch._functorch.config.donated_buffer = False before the first forward pass"
        return TrainingStateError(f"a compiled backward pass runs once, and the first check needs it: {todo}")
    if re.search("torch.utils.checkpoint|escaped from inside a function being vmapped", said):
        if "use_reentrant=True" in said:
            todo = "use_reentrant=False, else hooks see a layer without its graph"
            return TrainingStateError(f"gradient checkpointing is of the reentrant kind: {todo}")
        todo = "use it on layers that hooks follow, and not around modules that are run one sample at a time"
        return TrainingStateError(f"gradient checkpointing cannot be followed here: {todo}")
    if isinstance(error, TrainingStateError) or not shared:
        return None
    todo = "where the code around it does not take that, name a module around both in whole=[...]"
    found = f"{shared[0]} is the same for all samples, and is given once for each of them"
    return TrainingStateError(f"the losses fail ({said[:100]}); {found}: {todo}")


def buffer_versions(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return values that change when a buffer is written to or replaced."""
    return {name: (id(value), 0 if value.is_inference() else value._version) for name, value in model.named_buffers()}


class Tap(torch.autograd.Function):  # type: ignore[misc]  # torch is skipped by mypy
    """A layer's output, or a parameter's copies, as a function of inputs and of an anchor that get no gradient from it.

    Autograd saves the inputs: changing them in place is an error, and a checkpoint drops them and computes them again.
    """

    @staticmethod
    def forward(
        ctx: Any, take: Any, owned: bool, output: torch.Tensor, anchor: torch.Tensor, *inputs: torch.Tensor
    ) -> torch.Tensor:
        ctx.take, ctx.count = take, len(inputs)
        ctx.save_for_backward(*inputs)
        # Torch's own layers save none of their outputs, so these may be changed in place, as no view may.
        return output.data if owned else output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.take(ctx.saved_tensors, gradient)
        return (None, None, gradient, None, *(None,) * ctx.count)


class _Call:
    """A forward pass' arguments, and the tensors in them by name."""

    def __init__(self, bound: inspect.BoundArguments, refuse: Callable[[str], None]) -> None:
        self._bound, self._flat = bound, {name: tree_flatten(value) for name, value in bound.arguments.items()}
        self.tensors: list[tuple[str, torch.Tensor]] = []
        for name, (leaves, _) in self._flat.items():
            if isinstance(bound.arguments[name], PackedSequence):
                refuse("was given a PackedSequence, which has no sample axis: pad instead")
            for place, leaf in enumerate(leaves):
                if isinstance(leaf, torch.Tensor):
                    self.tensors.append((f"{name}.{place}" if len(leaves) > 1 else name, leaf))
                elif not isinstance(leaf, _PLAIN):
                    refuse(f"was given {name} of {type(leaf).__name__}: it takes tensors, numbers and strings only")

    def with_tensors(self, values: Sequence[torch.Tensor]) -> inspect.BoundArguments:
        """Return the arguments with other tensors in their places."""
        value, arguments = iter(values), {}
        for name, (leaves, spec) in self._flat.items():
            arguments[name] = tree_unflatten(
                [next(value) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec
            )
        return inspect.BoundArguments(self._bound.signature, arguments)


def _numbers_columns(value: torch.Tensor) -> bool:
    """Return whether a tensor holds consecutive integers, as positions of tokens are that all samples share."""
    return value.ndim == 1 and value.dtype == torch.long and bool((value.diff() == 1).all())


def _cut(value: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Return the samples first, each with the axis that was theirs: of length 1, or of several heads."""
    return value.unflatten(axis, (size, -1)).movedim(axis, 0)


@contextmanager
def _without_warning() -> Iterator[None]:
    """Suppress warnings that torch maps an operation by a loop, and that copies of weights are not contiguous."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of", category=UserWarning)
        warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
        yield


@contextmanager
def _evaluated(module: nn.Module) -> Iterator[None]:
    """Switch dropout off and gradients on: without gradients torch's attention takes a path that cannot be mapped."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _differ(whole: Any, apart: Any) -> bool:
    if not (isinstance(whole, torch.Tensor) and isinstance(apart, torch.Tensor)):
        return type(whole) is not type(apart)
    if whole.ndim != apart.ndim or any(a not in (1, b) for a, b in zip(whole.shape, apart.shape, strict=True)):
        return True  # one row for all samples, such as learned positions, becomes one for each
    a, b = (value.detach().double().nan_to_num() for value in (whole, apart))
    tolerance = {torch.float64: 1e-6, torch.float32: 5e-3}.get(whole.dtype, 0.05)
    return bool((a - b).norm() > tolerance * b.norm())


def follows_convention(module: nn.Module) -> bool:
    """Return whether the module's documentation, rather than the batch size, defines the axis of the samples."""
    return isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) or is_sequence_first(module)


def input_axis(module: nn.Module, argument: str, value: torch.Tensor) -> int | None:
    """Find the sample axis of an input of torch's attention or recurrent layers; None if all samples share it.

    A mask of three axes has (sample, head) in its first one.
    """
    if argument in _MASKS:
        return 0 if value.ndim == 3 else None
    if argument.endswith(_PADDING):
        return 0
    return 1 if argument == "hx" else _main_axis(module)


def output_axis(module: nn.Module, place: int) -> int:
    """Find the sample axis of an output tensor: the sequence first, then attention weights or last states."""
    if not follows_convention(module):
        return 0
    if place == 0:
        return _main_axis(module)
    return 1 if isinstance(module, nn.RNNBase) else 0


def _main_axis(module: nn.Module) -> int:
    return 0 if getattr(module, "batch_first", False) else 1
