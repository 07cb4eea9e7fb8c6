"""What only a gradient shows: looked at once, in the first micro-batch, before anything of it is released.

Whether a layer's first axis is the sample cannot be told from shapes where a batch is as large as a text is long.
And a parameter that the model also uses by itself, not through its layer, gets a gradient that no hook sees. Where its
own layer takes it as a constant (`WithoutPlainGradients`), that is all of its gradient; of other layers autograd's
gradient is compared with what was captured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_leaves

from dprmt._validation import ParameterError
from dprmt.training.clipping._constant_uses import ConstantUses, fingerprint
from dprmt.training.clipping._layer_uses import without_hook_warning
from dprmt.training.clipping._matrix_layers import Factors, ProjectedLayer, sketch_columns
from dprmt.training.clipping._policy import Contribution, Layer
from dprmt.training.clipping._sample_axes import output_axis
from dprmt.training.norms import full_precision

# Of a parameter's gradient: rounding is far below, a second use of a parameter far above.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 5e-3}
_LOW_PRECISION = 0.05
_CANCELLED = 0.02
# Of a row's gradient, which is the same bits twice unless a device adds in another order every time.
_ROUNDED = {torch.float64: 1e-9, torch.float32: 1e-4}
_MIXED = "the first axis of every trainable layer, and of the losses, with no sample in another's loss"


class FirstPass:
    """Compares what the hooks see with what autograd knows."""

    least = 2  # samples of which some are looked at

    def __init__(
        self,
        model: GradSampleModuleFastGradientClipping,
        layers: Sequence[Layer],
    ) -> None:
        self._model = model
        self._projected = {layer.module.weight: layer for layer in layers if isinstance(layer, ProjectedLayer)}
        self._outputs: list[_Output] = []
        self._compiled: list[tuple[str, torch.Tensor, int]] = []
        self._rows: Mapping[int, float] | None = None  # that a look is at
        self._plain: dict[torch.Tensor, torch.Tensor] = {}
        self._compares_sums = True  # of one sample once, and again with the samples of a batch
        self._spared = self._is_looking = False
        self._together, self._differ = True, False
        self._mixed: str | None = None
        self.uses = ConstantUses()
        self._handles = [layer.module.register_forward_hook(self._keeper(layer.name)) for layer in layers]

    def spares(self, rows: int) -> bool:
        """Whether layers may take their parameters as constants in a forward pass of so many rows.

        Asked by every layer that can, which is then noted if it is looked at.
        """
        self._spared = not self._compares_sums and rows < self.least
        self.uses.notes = not self._spared
        return True

    def keep_gradient(self, parameter: torch.Tensor) -> None:
        """Keep what tells autograd's sum over the samples from others, of one parameter's after the other."""
        if not self._compares_sums or self._spared or parameter.grad is None:
            return
        layer, gradient = self._projected.get(parameter), parameter.grad.detach()
        self._plain[parameter] = sketched(gradient if layer is None else layer.as_captured(gradient))

    def check_samples(self, losses: torch.Tensor) -> None:
        """Raise if the first or the last sample's loss depends on others' rows of a layer's output.

        In one backward pass, of the first loss and twice the last: exactly, except for these two rows, whose gradients
        `check_sums` holds to those of all losses; or, where they differed by rounding before, in two.
        """
        self._compares_sums = self._compares_sums or len(losses) >= self.least
        for parameter in self._model.parameters():
            parameter.grad = None  # what somebody left there would be added to
        outputs = [*self._outputs, *(self._watched(*one) for one in self._compiled if one[1].requires_grad)]
        self._outputs, self._compiled, self._is_looking = [], [], True
        try:
            if len(losses) < self.least or not outputs or any(one.size != len(losses) for one in outputs):
                return  # the last is refused by shape
            for rows in _looks(len(losses), self._together):
                weights = torch.zeros_like(losses)
                for row, weight in rows.items():
                    weights[row] = weight
                self._look_at(losses, weights, rows, outputs)
                for one in outputs:
                    if one.mixed:
                        raise ParameterError("samples", one.name, _MIXED)
        finally:
            _let_go(outputs)

    def _look_at(
        self, losses: torch.Tensor, weights: torch.Tensor, rows: Mapping[int, float], outputs: Sequence[_Output]
    ) -> None:
        """Gradients are looked at as they come, one after the other, and none is kept."""
        for one in outputs:
            one.arrived = False
        self._rows = rows
        try:
            self._gradients(losses, weights, _deepest(outputs))
            # Nothing is passed over: an output that no gradient came to is asked for by name.
            if missed := [one.edge for one in outputs if not one.arrived and one.edge is not None]:
                self._gradients(losses, weights, missed)
        finally:
            self._rows = None

    def _watched(self, name: str, output: torch.Tensor, axis: int) -> _Output:
        """What is held of a layer's output up to the look, which is not its numbers."""
        one = _Output(name, axis, output.shape[axis] if output.ndim else 0, get_gradient_edge(output))
        output.register_hook(partial(self._arrives, one))
        return one

    def _arrives(self, one: _Output, gradient: torch.Tensor) -> None:
        if self._rows is not None:
            by_sample = gradient.detach().movedim(one.axis, 0)
            one.arrived, one.mixed = True, one.mixed or _reaches_others(by_sample, self._rows)
            if self._together:
                one.alone = {row: fingerprint(by_sample[row]) / weight for row, weight in self._rows.items()}
        elif one.alone is not None:
            self._compare_rows(one.name, one.axis, one.alone, gradient)

    def _compare_rows(self, name: str, axis: int, expected: Mapping[int, torch.Tensor], gradient: torch.Tensor) -> None:
        """Note whether all losses give a row another gradient than its own loss did."""
        by_sample = gradient.detach().movedim(axis, 0)
        for row, alone in expected.items():
            found = fingerprint(by_sample[row])
            if not torch.equal(alone, found):
                self._differ = True
                tolerance = _ROUNDED.get(gradient.dtype, _LOW_PRECISION)
                if float(torch.linalg.vector_norm(found - alone)) > tolerance * float(torch.linalg.vector_norm(alone)):
                    self._mixed = name

    def check_sums(
        self,
        contributions: Sequence[Contribution],
        sources: Sequence[Layer],
        squared: torch.Tensor,
        *,
        finite: bool,
    ) -> bool:
        """Raise unless the captured gradients add up to autograd's; sums are as before.

        ``sources``: the layers of the contributions.
        ``squared``: norms of the captured gradients, shape (B,).
        ``finite``: whether all are. Returns: whether all was compared: NaN shows nothing.
        """
        mixed, differ = self._mixed, self._differ
        if not self._compares_sums or self._spared or not finite:
            self.forget()
            return False
        names = {value: name for name, value in self._model._module.named_parameters()}
        before = [getattr(parameter, "summed_grad", None) for parameter in names]
        try:
            for parameter in names:
                parameter.summed_grad = None
            wrong = [names.get(value, "a parameter") for value in self._unlike(contributions, sources, squared)]
        finally:  # what is summed here is not clipped
            for parameter, total in zip(names, before, strict=True):
                parameter.summed_grad = total
        self.forget()
        self._compares_sums, self._together = differ, not differ
        if mixed is not None:
            raise ParameterError("samples", mixed, _MIXED)
        if wrong:
            allowed = (
                "used through its own layer only: this one also gets a gradient from elsewhere in the model; "
                "or name a module around all of it in whole=[...]"
            )
            raise ParameterError("model", wrong[0], allowed)
        return not differ

    def _unlike(
        self, contributions: Sequence[Contribution], sources: Sequence[Layer], squared: torch.Tensor
    ) -> list[torch.Tensor]:
        """Parameters of which something else was summed; one layer's sums at a time."""
        constant = self.uses.modules
        wrong = [value for module in self.uses.unlike for value in module.parameters(recurse=False)]
        for value in [value for module in constant for value in module.parameters(recurse=False)]:
            if (elsewhere := self._plain.pop(value, None)) is not None and bool(elsewhere.any()):
                wrong.append(value)
        ones = torch.ones(len(squared), dtype=torch.float64, device=_device_of(self._plain))
        order, distances = list(self._plain), {}
        for contribution, layer in zip(contributions, sources, strict=True):
            if layer.module not in constant:
                for value, captured in self._captured(contribution, ones):
                    distances[value] = _distance(value, self._plain.pop(value), captured)
        distances |= {value: _distance(value, self._plain.pop(value), None) for value in list(self._plain)}
        distances = self._over_processes(distances)
        largest = max((distance.length for distance in distances.values()), default=0.0)
        if constant:  # whose gradients are not formed: these are about as long as all of them
            largest = max(largest, float(squared.sum().sqrt()))
        return wrong + [value for value in order if distances[value].is_large(largest)]

    def _captured(self, contribution: Contribution, ones: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Parameters, with sketches of what was captured of them: of factors without their product."""
        if isinstance(contribution, Factors):
            yield from contribution.sketched()
            return
        yield from self._captured_sums(contribution, ones)

    def _captured_sums(
        self, contribution: Contribution, ones: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        contribution.add_to_sums(ones, slice(None))
        self._summed()
        for value in [value for value in self._plain if getattr(value, "summed_grad", None) is not None]:
            yield value, sketched(value.summed_grad)
            value.summed_grad = None

    def _summed(self) -> None:
        """After every contribution to the sums."""

    def _over_processes(self, distances: dict[torch.Tensor, Distance]) -> dict[torch.Tensor, Distance]:
        return distances

    def forget(self) -> None:
        """Discard a forward pass."""
        _let_go(self._outputs)
        self._outputs, self._compiled, self._plain = [], [], {}
        self._spared = self._is_looking = False
        self._differ, self._mixed = False, None
        self.uses.forget()

    def remove(self) -> None:
        """Take the hooks away."""
        self.forget()
        while self._handles:
            self._handles.pop().remove()

    def _gradients(self, losses: torch.Tensor, weights: torch.Tensor, edges: Sequence[GradientEdge]) -> None:
        """Have a backward pass come to outputs, and to all that lie between them and the losses."""
        self._model.disable_hooks()
        self.uses.asks = True
        try:
            with without_hook_warning():
                torch.autograd.grad(losses, edges, weights, retain_graph=True, allow_unused=True)
        finally:
            self.uses.asks = False
            self._model.enable_hooks()

    def _keeper(self, name: str) -> Callable[..., None]:
        def keep(module: torch.nn.Module, args: Any, output: Any) -> None:
            if module.training and torch.is_grad_enabled() and not self._is_looking:  # not what checkpoints run again
                for place, value in enumerate(tree_leaves(output)):
                    if isinstance(value, torch.Tensor):
                        if torch.compiler.is_compiling():
                            self._compiled.append((name, value, output_axis(module, place)))
                        elif value.requires_grad:
                            self._outputs.append(self._watched(name, value, output_axis(module, place)))

        return keep


def _looks(size: int, together: bool) -> list[dict[int, float]]:
    """Weights of the first and the last loss, powers of two, in one backward pass or in two."""
    last = size - 1
    if not together:
        return [{0: 1.0}, {last: 1.0}]
    return [{0: 1.0, last: 2.0}] if last > 1 else [{0: 1.0}]


@dataclass(eq=False)
class _Output:
    """A layer's: where its gradient arrives, how many rows it has on which axis, and what a look found.

    ``mixed``: whether other rows are reached. ``alone``: a fingerprint of each row's gradient, of its own loss.
    """

    name: str
    axis: int
    size: int
    edge: GradientEdge | None
    arrived: bool = False
    mixed: bool = False
    alone: Mapping[int, torch.Tensor] | None = None


def _let_go(outputs: Sequence[_Output]) -> None:
    """Of the graph, whose hooks refer to these."""
    for one in outputs:
        one.edge = None


def _deepest(outputs: Sequence[_Output]) -> list[GradientEdge]:
    """Of those that depend on no other one."""
    edges = [one.edge for one in outputs if one.edge is not None]
    nodes = {edge.node for edge in edges}
    return [edge for edge in edges if not _depends_on(edge.node, nodes)]


def _depends_on(node: Any, nodes: Container[Any]) -> bool:
    waiting, seen = [node], set()
    while waiting:
        for other, _ in waiting.pop().next_functions:
            if other in nodes:
                return True
            if other is not None and other not in seen:
                seen.add(other)
                waiting.append(other)
    return False


def _reaches_others(gradient: torch.Tensor, own: Mapping[int, float]) -> bool:
    # 0 times a gradient that is not finite is NaN: such a sample is left out later.
    ends = [-1, *sorted(own), len(gradient)]
    return any(
        bool(gradient[start + 1 : end].nan_to_num(0.0, 0.0, 0.0).any()) for start, end in itertools.pairwise(ends)
    )


@dataclass(frozen=True)
class Distance:
    """Between autograd's gradient, so long, and what was captured."""

    length: float
    difference: float
    tolerance: float

    def is_large(self, largest: float) -> bool:
        # A gradient that cancels, such as that of attention's key bias, is rounding of what others are made of.
        return self.difference > self.tolerance * (self.length + _CANCELLED * largest)


def sketched(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient times `sketch_columns`: lengths are as before, except for a few tenths."""
    rows = gradient.reshape(len(gradient), -1) if gradient.ndim > 1 else gradient.reshape(1, -1)
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    with full_precision(gradient.device):
        return rows.to(dtype) @ sketch_columns(rows.shape[1], dtype).to(gradient.device)


def _distance(parameter: torch.Tensor, plain: torch.Tensor, captured: torch.Tensor | None) -> Distance:
    own = plain.double()
    other = torch.zeros_like(own) if captured is None else captured.to(own)
    length, difference = (float(torch.linalg.vector_norm(value)) for value in (own, own - other))
    return Distance(length, difference, _TOLERANCE.get(parameter.dtype, _LOW_PRECISION))


def _device_of(values: dict[torch.Tensor, torch.Tensor]) -> torch.device:
    return next((value.device for value in values), torch.device("cpu"))
