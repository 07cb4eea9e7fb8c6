"""Opacus' optimizer, fed with a sum of clipped gradients that was formed in float32 or better.

Sums of weights that are trained in a subspace are of another shape. Of sharded weights each process has some rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch.distributed.tensor import DTensor

from dprmt._validation import TrainingStateError
from dprmt.training.optimizers import DPGrape
from dprmt.training.randomness import SecureRandom
from dprmt.training.randomness._secure import uniform

ONLY_STEP = "private.step(...) alone, which adds the noise, moves the optimizer and clears the sum"


class CleanSum(torch.Tensor):  # type: ignore[misc]  # torch is skipped by mypy
    """A sum without noise, which is saved nowhere: parameters hold it, and optimizers hold these."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # what is computed from it is a plain tensor

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be saved."""
        found = "a parameter, or an optimizer of it, in the middle of a step: its sum has no noise yet"
        raise TrainingStateError(f"{found}.\nFix: save before private.step(...) or after it.")


def sum_of(parameter: torch.nn.Parameter, shape: Sequence[int] | None = None) -> torch.Tensor:
    """Return the parameter's sum of clipped gradients, to be added to in place; zeros at first.

    Parameters
    ----------
    parameter : Parameter
        The parameter.
    shape : sequence of int, optional
        Shape of the sum, if the parameter is trained in a subspace.

    Returns
    -------
    Tensor
        float64 if the parameter is, else float32.

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.ones(2, 3))
    >>> _ = sum_of(weight).add_(1.0)
    >>> weight.summed_grad.sum()
    tensor(6.)
    """
    if getattr(parameter, "summed_grad", None) is None:
        size = tuple(parameter.shape if shape is None else shape)
        total = torch.zeros(size, dtype=sum_dtype(parameter), device=parameter.device)
        parameter.summed_grad = total.as_subclass(CleanSum)
    return parameter.summed_grad


def sum_dtype(parameter: torch.nn.Parameter) -> torch.dtype:
    """Return the dtype of the parameter's sum."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def add_product(parameter: torch.nn.Parameter, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add a product of matrices to the sum; the first one is the sum, which then is filled with no zeros before."""
    if getattr(parameter, "summed_grad", None) is None:
        parameter.summed_grad = (left @ right).as_subclass(CleanSum)
    else:
        parameter.summed_grad.addmm_(left, right)


def add_normal(total: torch.Tensor, std: float, generator: torch.Generator | None) -> torch.Tensor:
    """Add what ``torch.normal`` would draw for the whole sum, bit for bit, a piece that a CPU's cache holds at a time.

    Memory as large as the sum, touched for the first time, takes half as long as the normal numbers in it.
    """
    flat, start = total.view(-1), 0
    piece, together = 1 << 16, 16  # torch draws 16 together; a shorter tail would use another method
    drawn = torch.empty(min(len(flat), piece + together), dtype=total.dtype)
    while start < len(flat):
        end = start + piece if len(flat) - start >= piece + together else len(flat)
        flat[start:end] += drawn[: end - start].normal_(0.0, std, generator=generator)
        start = end
    return total


class NoisySumOptimizer(DPOptimizer):  # type: ignore[misc]
    """``DPOptimizer`` over the sums of :func:`sum_of`, divided by the expected batch size once.

    Opacus' own one divides by the expected batch size times the number of micro-batches.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Optimizer to give the noisy mean to.
    shared : bool
        Whether the processes of a group share each logical batch, of which ``expected_batch_size`` counts all samples.
        The first one adds the noise, and the sums are added in their dtype before anything else happens: rounding
        before another process' noise arrives would act on private values, and a step hook must see what is used.
        If parameters are sharded, every process adds noise to the rows that only it has.
    projected : bool
        Whether the sums of a `DPGrape` are of projected gradients. If not, whole ones are noised, and projected by it.
    **options
        As for Opacus' ``DPOptimizer``.

    Attributes
    ----------
    is_shared : bool
        As ``shared``.
    keeps_sums : bool
        Whether sums without noise stay until ``zero_grad``, for those who study them; else what is released takes
        their place.
    stability : float or None
        γ where gradients are divided by their norm plus γ instead of clipped.
    padding_rows : dict of Parameter and int
        Rows of embedding tables that no sample trains. What is released is zero there, as without privacy: else texts
        of a batch would depend on the length of the longest one, by the noise in that row.
    correlation : object or None
        Where noise is correlated between steps: its ``following(place, drawn)`` returns a step's noise.

    Raises
    ------
    TrainingStateError
        In all processes, if parameters are sharded and two processes have a generator in the same state: rows would get
        the same noise.

    Formal guarantees
    -----------------
    A step gives the inner optimizer (sum + N(0, σ²C²))/L, with the sum over all processes. The sum must be clipped by
    the code that forms it. An entry of a sharded parameter is in one process, and gets noise there once, from a stream
    that no other process has.

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = NoisySumOptimizer(
    ...     torch.optim.SGD([weight], lr=1.0), noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=4
    ... )
    >>> _ = sum_of(weight).add_(1.0)
    >>> _ = optimizer.step()
    >>> weight.detach()
    tensor([-0.2500, -0.2500])
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, shared: bool = False, projected: bool = False, **options: Any
    ) -> None:
        super().__init__(optimizer, **options)
        self.is_shared, self.keeps_sums = shared, True
        self.stability: float | None = None
        self.correlation: Any = None
        self.padding_rows: dict[torch.nn.Parameter, int] = {}
        self.rank = torch.distributed.get_rank() if shared else 0
        self._is_spread = any(isinstance(value, DTensor) for value in self.params)
        if self._is_spread:
            self.is_shared = True
            self._check_streams()
        self._projected = {layer.weight: layer for layer in optimizer.subspaces} if projected else {}

    def step(self, closure: Any = None) -> None:
        """Add noise, divide by the expected batch size, and let the inner optimizer move."""
        self.add_noise()
        self.original_optimizer.step()

    def add_noise(self) -> None:
        """Put the noisy mean where the optimizer reads it: noise in the sum's dtype, rounded to the parameter's after.

        A `DPGrape` is checked first; it and a `DPAdamBC` receive σC/L, which may follow schedules.
        """
        std = float(self.noise_multiplier * self.max_grad_norm)
        if isinstance(self.original_optimizer, DPGrape):
            self.original_optimizer.check()
        for group in self.param_groups:
            if "noise_variance" in group:  # of DPAdamBC and DPGrape
                group["noise_variance"] = (std / float(self.expected_batch_size)) ** 2
        for place, parameter in enumerate(self.params):
            total = getattr(parameter, "summed_grad", None)
            if total is None:  # there is no sample
                total = sum_of(parameter, self.released_shape(parameter))
            if self.correlation is None:
                noisy = self._noisy_sum(total, std)
            else:
                noisy = (self.correlation.following(place, self._drawn(total, std)) + total).to(total.dtype)
            if parameter in self.padding_rows and parameter not in self._projected:
                noisy[self.padding_rows[parameter]] = 0.0
            self.release(parameter, noisy.as_subclass(torch.Tensor))
            if not self.keeps_sums:
                parameter.summed_grad = total.new_empty(0)

    def released_shape(self, parameter: torch.nn.Parameter) -> Sequence[int]:
        """Return the shape of what is released: (r, n) for a weight with a projector, else (m, n); a shard's rows."""
        if parameter in self._projected:
            return self.original_optimizer.subspaces.released_shape(parameter)
        return tuple((parameter.to_local() if isinstance(parameter, DTensor) else parameter).shape)

    def release(self, parameter: torch.nn.Parameter, noisy: torch.Tensor) -> None:
        """Put the noisy sum over the *expected* batch size where the optimizer reads it.

        Torch requires of p.grad to have p's shape and sharding.
        """
        layer = self._projected.get(parameter)
        parameter.grad, parameter.projected_grad = None, None
        if layer is not None and self.original_optimizer.subspaces.projects(parameter):
            parameter.projected_grad = noisy.div_(self.expected_batch_size)
            return
        whole = (noisy if layer is None else layer.orient(noisy).contiguous()).to(parameter.dtype)
        whole.div_(self.expected_batch_size)
        if isinstance(parameter, DTensor):
            options = {"run_check": False, "shape": parameter.shape, "stride": parameter.stride()}
            whole = DTensor.from_local(whole, parameter.device_mesh, parameter.placements, **options)
        parameter.grad = whole

    def _check_streams(self) -> None:
        # 124 random bits each; equal ones mean the same stream at the same place.
        assert self.generator is not None  # a plan makes one
        tag = uniform(2, 2**62, self.generator).tolist()
        tags: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(tags, tag)
        if len({tuple(one) for one in tags}) < len(tags):
            raise TrainingStateError(
                "two processes have the same noise generator.\nFix: give each process a separate generator"
            )

    def _noisy_sum(self, total: torch.Tensor, std: float) -> torch.Tensor:
        """Return the sum over all processes and its noise, which one of them adds; in place where it may be."""
        is_added = self.is_shared and not self._is_spread
        if is_added and self.rank > 0:
            noisy = total.clone()
        elif self.keeps_sums or total.device.type != "cpu" or not total.is_contiguous():
            noisy = self._drawn(total, std).add_(total).to(total.dtype)  # rounded once, after the noise
        elif isinstance(self.generator, SecureRandom):
            noisy = self.generator.add_normal(total, std=std)
        else:
            noisy = add_normal(total, std, self.generator)
        if is_added:
            torch.distributed.all_reduce(noisy, op=torch.distributed.ReduceOp.SUM)
        return noisy

    def _drawn(self, total: torch.Tensor, std: float) -> torch.Tensor:
        shape, generator = total.shape, self.generator
        if isinstance(generator, SecureRandom):
            return generator.normal(shape, std=std, device=total.device)
        return torch.normal(0.0, std, shape, device=total.device, generator=generator, dtype=total.dtype)
