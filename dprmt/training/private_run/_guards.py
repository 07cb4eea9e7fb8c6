"""Checks for common mistakes in the middle of a private step, before anything is released."""

from __future__ import annotations

from typing import Any

import torch

from dprmt._validation import TrainingStateError

_LOOP = "private.step(losses_of, batch), or private.accumulate(losses_of, part) and private.finish(), and nothing else"


class Guard:
    """Checks that the model is the planned one, in training mode, and that nothing else touches its gradients.

    Between two calls of a private step one parameter, the smallest, holds a gradient of ones. ``zero_grad``, clipping,
    unscaling and a backward pass all replace it or write into it.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self._planned = model, _facts(model)
        trained = [value for value in model.parameters() if value.requires_grad]
        self._watched = min(trained, key=lambda value: value.numel())
        self._ones: Any = None
        self._version = 0

    def begin(self) -> None:
        """Raise unless the next batch may be computed by this model."""
        if not self._model.training:
            raise TrainingStateError(
                "the model is in evaluation mode: dropout and other layers do not train.\n"
                "Fix: model.train() after every evaluation."
            )
        now = _facts(self._model)
        if now != self._planned:
            name = min(now.items() ^ self._planned.items())[0]
            raise TrainingStateError(
                f"the model has changed since make_private: parameter {name!r}.\n"
                "Fix: add, replace, freeze and move parameters first, then call make_private."
            )

    def watch(self) -> None:
        """Leave gradients of ones, until the private step goes on."""
        with torch.no_grad():
            self._ones = torch.ones_like(self._watched)
        self._watched.grad = self._ones
        self._version = self._ones._version

    def release(self) -> None:
        """Take them away, and raise if something changed them."""
        ones, self._ones = self._ones, None
        if ones is None:
            return
        found, self._watched.grad = self._watched.grad, None
        if found is not ones or ones._version != self._version or not bool((ones == 1).all()):
            raise TrainingStateError(
                "gradients were changed in the middle of a private step: by zero_grad(), clip_grad_norm_(), a "
                f"GradScaler or loss.backward().\nFix: {_LOOP}."
            )

    def forget(self) -> None:
        """Take them away unseen."""
        if self._ones is not None:
            self._ones = self._watched.grad = None


def _facts(model: torch.nn.Module) -> dict[str, tuple[Any, ...]]:
    return {
        name: (id(value), tuple(value.shape), str(value.dtype), str(value.device))
        for name, value in model.named_parameters()
        if value.requires_grad
    }
