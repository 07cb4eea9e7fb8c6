"""Opacus' optimizer for gradients that are clipped and noised in the projected space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _generate_noise

from dprmt._validation import ParameterError
from dprmt.spectra import LayerReport
from dprmt.training.norms import clip_factors
from dprmt.training.optimizers._grape import DPGrape
from dprmt.training.projection._module import ProjectedGradSampleModule, check_batch
from dprmt.training.projection._samplers import squared_norms, weighted_sum

Denoiser: TypeAlias = Callable[
    [dict[str, torch.Tensor], float], tuple[Mapping[str, torch.Tensor], Mapping[str, LayerReport]]
]
"""Noisy matrices by name and the noise's standard deviation to denoised ones and a report: ``denoise_layers``."""


class ProjectedDPOptimizer(DPOptimizer):  # type: ignore[misc]  # opacus is skipped by mypy
    """Clips the per-sample gradients of all parameters, projected and not, under one norm, and noises their sum.

    Works in Opacus' own loop (``loss.backward(); optimizer.step(); optimizer.zero_grad()`` with a *summed* loss, its
    Poisson loader and ``BatchMemoryManager``) and under ``ProjectedStep``.

    Parameters
    ----------
    optimizer : DPGrape
        What moves the parameters.
    module : ProjectedGradSampleModule
        Where the per-sample gradients come from.
    noise_multiplier, max_grad_norm, expected_batch_size, generator, secure_mode
        As in Opacus.
    denoise : callable, optional
        Applied to the released matrices, see ``Denoiser``.

    Formal guarantees
    -----------------
    A step releases (Σ_i c_i R_i + N(0, σ²C²))/L, with c_i from exact norms over all parameters and L the *expected*
    batch size; Poisson sampling that drew nobody releases noise alone. See :func:`make_private_projected` for what
    that is worth and under which conditions. The realised batch size is not used.

    Examples
    --------
    In Opacus' way, with a summed loss:

    >>> from dprmt.training.projection import make_private_projected
    >>> network = torch.nn.Linear(300, 40)
    >>> step = make_private_projected(
    ...     network, rank=8, clipping_norm=1.0, noise_multiplier=1.0, expected_batch_size=2.0, lr=1e-3
    ... )
    >>> model, optimizer = step.model, step.optimizer
    >>> optimizer.noise_std  # of an entry of the projected gradient: σC/L
    0.5
    >>> inputs = torch.ones(2, 300, requires_grad=True)
    >>> model(inputs).square().mean(1).sum().backward()
    >>> _ = optimizer.step()
    >>> optimizer.zero_grad()
    """

    def __init__(
        self,
        optimizer: DPGrape,
        module: ProjectedGradSampleModule,
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_batch_size: float,
        generator: torch.Generator | None = None,
        secure_mode: bool = False,
        denoise: Denoiser | None = None,
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=expected_batch_size,
            loss_reduction="mean",
            generator=generator,
            secure_mode=secure_mode,
        )
        self.module = module
        self.denoise = denoise
        self.report: Mapping[str, LayerReport] = {}
        self.names = {p: name for name, p in module._module.named_parameters() if p.requires_grad}

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in one entry of the averaged gradient: σC/L."""
        return float(self.noise_multiplier * self.max_grad_norm / self.expected_batch_size)

    @property
    def accumulated_iterations(self) -> int:
        """One Poisson batch per step: two would be two mechanisms, and the hooks refuse them."""
        return 1

    def clip_and_accumulate(self) -> None:
        """Add the clipped gradients that the hooks left to the sum, and forget them.

        Raises
        ------
        ParameterError
            If a trainable parameter got no gradient, or a layer's first axis is not the batch; the sum is as before.
        """
        if any(p.grad_sample is not None for p in self.params):
            self.accumulate(max(len(p.grad_sample) for p in self.params if p.grad_sample is not None))

    def accumulate(self, size: int) -> None:
        """Clip and add what a backward pass of a batch of known size left, and forget it.

        Parameters
        ----------
        size : int
            B, the number of samples.

        Raises
        ------
        ParameterError
            As in :meth:`clip_and_accumulate`.
        """
        try:
            self._clip_and_accumulate(size)
        finally:
            self.module.clear()

    def add_noise(self) -> None:
        """Draw N(0, σ²C²) noise for every entry of every sum, whether or not anybody was sampled."""
        for p in self.params:
            total = p.summed_grad
            if total is None:
                shape, dtype = self._released_shape(p), torch.promote_types(p.dtype, torch.float32)
                total = torch.zeros(shape, dtype=dtype, device=p.device)
            noise = _generate_noise(
                std=self.noise_multiplier * self.max_grad_norm,
                reference=total,
                generator=self.generator,
                secure_mode=self.secure_mode,
            )
            p.summed_grad = None
            self._release(p, noise.add_(total))

    def scale_grad(self) -> None:
        """Divide by the expected batch size: the realised one is private."""
        for p in self.params:
            for released in (p.grad, p.projected_grad):
                if released is not None:
                    released.div_(self.expected_batch_size)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients; sums stay between the micro-batches of a logical step.

        Parameters
        ----------
        set_to_none : bool
            As in torch.
        """
        super().zero_grad(set_to_none)

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Everything between the hooks and the optimizer.

        Parameters
        ----------
        closure : callable, optional
            Not used.

        Returns
        -------
        bool
            False if this was a micro-batch that is not the last of its logical step.
        """
        del closure
        self.original_optimizer.check()
        self.clip_and_accumulate()
        if self._check_skip_next_step():
            self._is_last_step_skipped = True
            return False
        for group in self.param_groups:
            group["noise_variance"] = self.noise_std**2  # σ, C and L may follow schedules
        self.add_noise()
        self.scale_grad()
        self._denoise()
        if self.step_hook:
            self.step_hook(self)
        self._is_last_step_skipped = False
        return True

    def _clip_and_accumulate(self, size: int) -> None:
        factors = self.module.factors
        for p, name in self.names.items():
            if p.grad_sample is None:
                allowed = "one that every trainable parameter has a part in"
                raise ParameterError("losses", f"none that depends on {name}", allowed)
        norms = torch.zeros(size, dtype=torch.float64, device=self.params[0].device)
        for p, name in self.names.items():
            check_batch(name, {len(p.grad_sample)}, size)
            of_p = factors[p].squared_norms() if p in factors else squared_norms(p.grad_sample)
            norms += of_p.to(norms.device)
        weights = clip_factors(norms, self.max_grad_norm)
        for p in self.params:
            here = weights.to(p.device)
            clipped = factors[p].weighted_sum(here) if p in factors else weighted_sum(p.grad_sample, here)
            p.summed_grad = clipped if p.summed_grad is None else p.summed_grad.add_(clipped)

    def _released_shape(self, p: torch.nn.Parameter) -> tuple[int, ...]:
        layer = self.module.subspaces.layer(p)
        if layer is None:
            return tuple(p.shape)
        projector = self.module.subspaces.projector(p) if self.module.project else None
        return (layer.m if projector is None else projector.shape[1], layer.n)

    def _release(self, p: torch.nn.Parameter, total: torch.Tensor) -> None:
        # torch insists that p.grad looks like p; what is projected has an attribute of its own.
        layer = self.module.subspaces.layer(p)
        p.grad, p.projected_grad = None, None
        if layer is not None and self.module.project and self.module.subspaces.projector(p) is not None:
            p.projected_grad = total
        elif layer is not None:
            p.grad = layer.orient(total).to(p.dtype).contiguous()
        else:
            p.grad = total.to(p.dtype)

    def _denoise(self) -> None:
        # Whatever matrix was released: its noise is independent with equal variances, projected or not.
        if self.denoise is None or self.noise_std == 0:
            return
        released = {layer.name: layer.weight for layer in self.module.subspaces}
        noisy = {n: p.grad if p.projected_grad is None else p.projected_grad for n, p in released.items()}
        denoised, self.report = self.denoise(noisy, self.noise_std)
        changed = {}
        for name, p in released.items():
            if denoised[name] is not noisy[name]:
                changed[p] = 0.0
            if p.projected_grad is None:
                p.grad = denoised[name]
            else:
                p.projected_grad = denoised[name]
        self.original_optimizer.set_noise_variance(changed)
