"""What is looked at between noise and optimizer: the noisy gradient's norm, and spectra before and after denoising."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from dprmt.training.harness._sharding import squared_norm


class ReleasedGradients:
    """Reads noisy gradients as they pass; all it sees was released already, so that it costs no privacy.

    Singular values of the matrices that ``patterns`` name are kept at steps that are multiples of ``every``.
    """

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], patterns: Sequence[str], every: int | None
    ) -> None:
        self._parameters = dict(parameters)
        self._chosen = [
            name
            for name, value in self._parameters.items()
            if value.ndim == 2 and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        ]
        self._every = every
        self._kept: dict[str, np.ndarray] = {}
        self.layers: Callable[[], Mapping[str, Any]] | None = None  # what the denoiser reports
        self.norm = math.nan  # of the last noisy gradient over all trainable parameters, before denoising
        self.step = 0
        self.changed = False  # whether there are singular values that were not there when it was last set to False

    def before(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at the gradients of ``optimizer`` before any hook that is registered later."""
        optimizer.register_step_pre_hook(partial(self.look, "noisy"))

    def after(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at the gradients of ``optimizer`` after all hooks that are registered already."""
        if self._every is not None:
            optimizer.register_step_pre_hook(partial(self.look, "denoised"))

    def look(self, kind: str, *_: object) -> None:
        """Take the gradients that are there for ``"noisy"`` or ``"denoised"`` ones."""
        # DP-GRAPE releases the gradient of a projected weight in its subspace, and no other.
        released = {}
        for name, value in self._parameters.items():
            projected: torch.Tensor | None = getattr(value, "projected_grad", None)
            gradient = value.grad if projected is None else projected
            if gradient is not None:
                released[name] = gradient
        if kind == "noisy":
            squares = [
                squared_norm(value) if hasattr(value, "device_mesh") else value.double().square().sum()
                for value in released.values()
            ]
            self.norm = math.sqrt(float(sum(squares))) if squares else math.nan
        if self._every is not None and self.step % self._every == 0:
            self._keep(kind, released)

    def _keep(self, kind: str, released: Mapping[str, torch.Tensor]) -> None:
        for name in self._chosen:
            if name in released:
                self.changed = True
                values = torch.linalg.svdvals(released[name].detach().float())
                self._kept[f"step{self.step:06d}/{kind}/{name}"] = values.cpu().numpy()

    @property
    def denoising(self) -> dict[str, int]:
        """How many matrices the last step replaced, out of how many; empty without a denoiser."""
        if self.layers is None:
            return {}
        layers = self.layers().values()
        return {"denoised_layers": sum(layer.denoised for layer in layers), "matrices": len(layers)}

    def spectra(self) -> dict[str, np.ndarray]:
        """Return singular values in decreasing order, by ``stepNNNNNN/noisy|denoised/parameter``."""
        return dict(self._kept)

    def restore(self, spectra: Mapping[str, np.ndarray], last_step: int) -> None:
        """Take over what an earlier start kept, up to the step from which the run continues."""
        self._kept = {key: value for key, value in spectra.items() if int(key[4:10]) <= last_step}
