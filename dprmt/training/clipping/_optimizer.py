"""Opacus' optimizers, fed with a sum of clipped gradients that somebody else has formed in float32 or better."""

from __future__ import annotations

import torch
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.optimizers.ddpoptimizer_fast_gradient_clipping import DistributedDPOptimizerFastGradientClipping
from opacus.optimizers.optimizer import _check_processed_flag, _generate_noise, _mark_as_processed


def sum_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The parameter's sum of clipped gradients, to be added to in place; zeros before anything was added.

    Returns
    -------
    Tensor
        Of the parameter's shape, float64 if the parameter is, else float32.
    """
    if getattr(parameter, "summed_grad", None) is None:
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        parameter.summed_grad = torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)
    return parameter.summed_grad


class _NoisySum:
    """What both optimizers below change in Opacus': where the sum comes from, and its dtype."""

    def accumulate(self) -> None:
        """Nothing is left to add; without a sample the sum is zero."""
        for parameter in self.params:  # type: ignore[attr-defined]
            sum_of(parameter)

    def add_noise(self) -> None:
        """Noise in the sum's dtype; what the parameter's dtype rounds away is rounded after the noise."""
        for parameter in self.params:  # type: ignore[attr-defined]
            _check_processed_flag(parameter.summed_grad)
            parameter.grad = self._noisy_sum(parameter.summed_grad).to(parameter.dtype)
            _mark_as_processed(parameter.summed_grad)

    def _noisy_sum(self, total: torch.Tensor) -> torch.Tensor:
        std = self.noise_multiplier * self.max_grad_norm  # type: ignore[attr-defined]
        generator, secure = self.generator, self.secure_mode  # type: ignore[attr-defined]
        return total + _generate_noise(std=std, reference=total, generator=generator, secure_mode=secure)


class NoisySumOptimizer(_NoisySum, DPOptimizerFastGradientClipping):  # type: ignore[misc]
    """``DPOptimizerFastGradientClipping`` over the sums of :func:`sum_of`, divided by the expected batch size once.

    Opacus' own ``DPOptimizer`` divides by the expected batch size times the number of micro-batches.
    """


class DistributedNoisySumOptimizer(_NoisySum, DistributedDPOptimizerFastGradientClipping):  # type: ignore[misc]
    """The same over several processes: rank 0 adds the noise, the sums are added before anything else happens.

    Opacus reduces the gradients after rounding and dividing them, and after its step hook ran. Here sums are
    reduced in their own dtype inside ``add_noise``: rounding to bfloat16 before another rank's noise arrives
    would be rounding of something that is not private yet, and a step hook sees the gradient that is used.
    ``expected_batch_size`` is that of all processes together.
    """

    def _noisy_sum(self, total: torch.Tensor) -> torch.Tensor:
        shared = super()._noisy_sum(total) if self.rank == 0 else total.clone()
        torch.distributed.all_reduce(shared, op=torch.distributed.ReduceOp.SUM)
        return shared

    def reduce_gradients(self) -> None:
        """Done already, in ``add_noise``."""
