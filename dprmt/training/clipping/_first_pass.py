"""What only a gradient shows: looked at once, in the first micro-batch, before anything of it is released.

Whether a layer's first axis is the sample cannot be told from shapes where a batch is as large as a text is long.
And a parameter that the model also uses by itself, not through its layer, gets a gradient that no hook sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch.utils._pytree import tree_leaves

from dprmt._validation import ParameterError
from dprmt.training.clipping._layer_uses import without_hook_warning
from dprmt.training.clipping._matrix_layers import Factors, ProjectedLayer, sketch_columns
from dprmt.training.clipping._policy import Contribution, Layer
from dprmt.training.clipping._sample_axes import output_axis
from dprmt.training.norms import full_precision

# Of a parameter's gradient: rounding is far below, a second use of a parameter far above.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 5e-3}
_LOW_PRECISION = 0.05
_CANCELLED = 0.02


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
        self._outputs: list[tuple[str, torch.Tensor, int]] = []
        self._plain: dict[torch.Tensor, torch.Tensor] = {}
        self._compares_sums = True  # of one sample once, and again with the samples of a batch
        self._spared = self._is_looking = False
        self._handles = [layer.module.register_forward_hook(self._keeper(layer.name)) for layer in layers]

    def spares(self, rows: int) -> bool:
        """Whether a forward pass of so many rows needs no plain gradients: of one sample they are compared only once.

        Asked by every layer that can do without, so that a batch of which something else was said is not compared.
        """
        self._spared = not self._compares_sums and rows < self.least
        return self._spared

    def keep_gradient(self, parameter: torch.Tensor) -> None:
        """Keep what tells autograd's sum over the samples from others, of one parameter's after the other."""
        if not self._compares_sums or self._spared:
            return
        assert parameter.grad is not None
        layer, gradient = self._projected.get(parameter), parameter.grad.detach()
        self._plain[parameter] = sketched(gradient if layer is None else layer.as_captured(gradient))

    def check_samples(self, losses: torch.Tensor) -> None:
        """Raise unless the first and the last sample's losses depend on their own rows of all layers' outputs alone."""
        self._compares_sums = self._compares_sums or len(losses) >= self.least
        outputs = [(name, output, axis) for name, output, axis in self._outputs if output.requires_grad]
        for parameter in self._model.parameters():
            parameter.grad = None  # what somebody left there would be added to
        self._outputs, self._is_looking = [], True  # else they would be held through the backward pass
        if (
            len(losses) < self.least
            or not outputs
            or any(output.shape[axis] != len(losses) for _, output, axis in outputs)
        ):
            return  # the last is refused by shape
        for own in (0, len(losses) - 1):
            gradients = list(self._gradients(losses[own], [output for _, output, _ in outputs]))[::-1]
            for name, _, axis in outputs:
                gradient = gradients.pop()
                if gradient is not None and _reaches_others(gradient.movedim(axis, 0), own):
                    allowed = (
                        "the first axis of every trainable layer, and of the losses, with no sample in another's loss"
                    )
                    raise ParameterError("samples", name, allowed)

    def check_sums(self, contributions: Sequence[Contribution], samples: int, *, finite: bool) -> bool:
        """Raise unless the captured gradients of so many samples add up to autograd's; sums are as before.

        ``finite``: whether all are. Returns: whether they were compared: NaN shows nothing.
        """
        if not self._compares_sums or self._spared or not finite:
            self.forget()
            return False
        names = {value: name for name, value in self._model._module.named_parameters()}
        before = [getattr(parameter, "summed_grad", None) for parameter in names]
        try:
            for parameter in names:
                parameter.summed_grad = None
            wrong = [names.get(value, "a parameter") for value in self._unlike(contributions, samples)]
        finally:  # what is summed here is not clipped
            for parameter, total in zip(names, before, strict=True):
                parameter.summed_grad = total
        self.forget()
        self._compares_sums = False
        if wrong:
            allowed = (
                "used through its own layer only: this one also gets a gradient from elsewhere in the model; "
                "or name a module around all of it in whole=[...]"
            )
            raise ParameterError("model", wrong[0], allowed)
        return True

    def _unlike(self, contributions: Sequence[Contribution], samples: int) -> list[torch.Tensor]:
        """Parameters of which something else was summed; one layer's sums at a time."""
        ones = torch.ones(samples, dtype=torch.float64, device=_device_of(self._plain))
        order, distances = list(self._plain), {}
        for contribution in contributions:
            for value, captured in self._captured(contribution, ones):
                distances[value] = _distance(value, self._plain.pop(value), captured)
        distances |= {value: _distance(value, self._plain.pop(value), None) for value in list(self._plain)}
        distances = self._over_processes(distances)
        largest = max((distance.length for distance in distances.values()), default=0.0)
        return [value for value in order if distances[value].is_large(largest)]

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
        self._outputs, self._plain, self._spared, self._is_looking = [], {}, False, False

    def remove(self) -> None:
        """Take the hooks away."""
        self.forget()
        while self._handles:
            self._handles.pop().remove()

    def _gradients(self, loss: torch.Tensor, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        self._model.disable_hooks()
        try:
            with without_hook_warning():
                return torch.autograd.grad(loss, outputs, retain_graph=True, allow_unused=True)
        finally:
            self._model.enable_hooks()

    def _keeper(self, name: str) -> Callable[..., None]:
        def keep(module: torch.nn.Module, args: Any, output: Any) -> None:
            if module.training and torch.is_grad_enabled() and not self._is_looking:  # not what checkpoints run again
                for place, value in enumerate(tree_leaves(output)):
                    if isinstance(value, torch.Tensor):
                        self._outputs.append((name, value, output_axis(module, place)))

        return keep


def _reaches_others(gradient: torch.Tensor, own: int) -> bool:
    # 0 times a gradient that is not finite is NaN: such a sample is left out later.
    others = torch.cat([gradient[:own], gradient[own + 1 :]])
    return bool(others.nan_to_num(0.0, 0.0, 0.0).any())


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
