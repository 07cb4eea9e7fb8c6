"""The noisy sums of weights that are trained in a subspace: of another shape, and denoised where their noise is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from dprmt.spectra import LayerReport
from dprmt.training.clipping._optimizer import DistributedNoisySumOptimizer, NoisySumOptimizer
from dprmt.training.optimizers import DPGrape
from dprmt.training.subspaces import Subspaces

Denoiser: TypeAlias = Callable[
    [dict[str, torch.Tensor], float], tuple[Mapping[str, torch.Tensor], Mapping[str, LayerReport]]
]
"""Noisy matrices by name and the noise's standard deviation to denoised ones and a report: ``denoise_layers``."""


class _InSubspaces:
    """What `DPGrape` needs of the optimizer around it.

    ``projected``: whether sums are of projected gradients. If not, whole ones are noised, and projected by the inner
    optimizer.
    ``denoise``: applied to the released matrices of the subspaces, see ``Denoiser``.
    """

    original_optimizer: DPGrape
    params: list[Any]
    param_groups: list[dict[str, Any]]
    noise_multiplier: float
    max_grad_norm: float
    expected_batch_size: float

    def __init__(self, optimizer: DPGrape, *, projected: bool, denoise: Denoiser | None = None, **options: Any) -> None:
        super().__init__(optimizer, **options)  # type: ignore[call-arg]
        self.subspaces: Subspaces = optimizer.subspaces
        self.denoise = denoise
        self.report: Mapping[str, LayerReport] = {}
        self._projected = projected

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in one entry of the averaged gradient: σC/L."""
        return float(self.noise_multiplier * self.max_grad_norm / self.expected_batch_size)

    def add_noise(self) -> None:
        """As ever, if the inner optimizer is as it should be; it is told of σ, C and L, which may follow schedules."""
        self.original_optimizer.check()
        for group in self.param_groups:
            group["noise_variance"] = self.noise_std**2
        super().add_noise()  # type: ignore[misc]

    def released_shape(self, parameter: torch.nn.Parameter) -> Sequence[int]:
        """(r, n) of a weight with a projector; (m, n) where the released gradient is to give one."""
        if self._projected and parameter in self.subspaces:
            return self.subspaces.released_shape(parameter)
        return parameter.shape

    def release(self, parameter: torch.nn.Parameter, noisy: torch.Tensor) -> None:
        """Torch insists that p.grad looks like p: what is projected has an attribute of its own."""
        layer = self.subspaces.layer(parameter) if self._projected else None
        parameter.grad, parameter.projected_grad = None, None
        if layer is not None and self.subspaces.projects(parameter):
            parameter.projected_grad = noisy
        else:
            whole = noisy if layer is None else layer.orient(noisy).contiguous()
            parameter.grad = whole.to(parameter.dtype)

    def scale_grad(self) -> None:
        """Divide by the expected batch size: the realised one is private. Then denoise."""
        for parameter in self.params:
            for released in (parameter.grad, parameter.projected_grad):
                if released is not None:
                    released.div_(self.expected_batch_size)
        if self.denoise is not None and self.noise_std > 0:
            self._denoise(self.denoise)

    def _denoise(self, denoise: Denoiser) -> None:
        # Whatever matrix was released: its noise is independent with equal variances, projected or not.
        weights = {layer.name: layer.weight for layer in self.subspaces}
        noisy = {n: p.grad if p.projected_grad is None else p.projected_grad for n, p in weights.items()}
        denoised, self.report = denoise(noisy, self.noise_std)
        changed = {}
        for name, p in weights.items():
            if denoised[name] is not noisy[name]:
                changed[p] = 0.0
            if p.projected_grad is None:
                p.grad = denoised[name]
            else:
                p.projected_grad = denoised[name]
        self.original_optimizer.set_noise_variance(changed)


class ProjectedSumOptimizer(_InSubspaces, NoisySumOptimizer):
    """In one process."""


class DistributedProjectedSumOptimizer(_InSubspaces, DistributedNoisySumOptimizer):
    """In several: a subspace is a function of a seed that they share, or of a gradient that they all have."""
