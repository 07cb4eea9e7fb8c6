"""How large the noise in the gradient of an Opacus optimizer is."""

from __future__ import annotations

from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, FSDPOptimizerFastGradientClipping
from opacus.optimizers.ddp_perlayeroptimizer import DistributedPerLayerOptimizer
from opacus.optimizers.ddpoptimizer import DistributedDPOptimizer
from opacus.optimizers.ddpoptimizer_fast_gradient_clipping import DistributedDPOptimizerFastGradientClipping

from dprmt._validation import ParameterError, check_real

_OF_OTHER_NOISE = (
    AdaClipDPOptimizer,  # its clipping norm already belongs to the next step
    DistributedDPOptimizer,  # of Opacus' own loop in several processes
    DistributedDPOptimizerFastGradientClipping,
    DistributedPerLayerOptimizer,
    FSDPOptimizerFastGradientClipping,
)


def gradient_noise_std(dp_optimizer: DPOptimizer) -> float:
    """Compute the standard deviation σ_DP·C/L of the noise in one entry of ``.grad``, as the inner optimizer sees it.

    The present settings are read from the optimizer, so the value follows schedules of noise multiplier and clipping
    norm.

    Parameters
    ----------
    dp_optimizer : opacus.optimizers.DPOptimizer
        Its variant for ghost clipping works too.

    Returns
    -------
    float
        Noise multiplier times clipping norm, divided by the *expected* batch size times the accumulated iterations for
        ``loss_reduction="mean"``, or by 1 for ``"sum"``.

    Raises
    ------
    ParameterError
        If it is another optimizer, such as Opacus' own ones for adaptive clipping (whose noise depends on the realised
        batch size) and for several processes.

    Formal guarantees
    -----------------
    Public: a function of the settings. The size of the drawn batch is not used.

    References
    ----------
    Algorithm 1 of arXiv:2510.01137v3, where |B| is the batch size; under Poisson sampling this is the expected one.

    Examples
    --------
    >>> import torch
    >>> inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(3, 2))], lr=0.1)
    >>> gradient_noise_std(DPOptimizer(inner, noise_multiplier=0.5, max_grad_norm=2.0, expected_batch_size=10))
    0.1
    """
    adapts = hasattr(dp_optimizer, "_adjusted_noise_multiplier") or isinstance(dp_optimizer, _OF_OTHER_NOISE)
    if not isinstance(dp_optimizer, DPOptimizer) or adapts:
        allowed = "an Opacus optimizer of one process without adaptive clipping, or one that make_private has made"
        raise ParameterError("dp_optimizer", type(dp_optimizer).__name__, allowed)
    std = check_real("noise_multiplier", dp_optimizer.noise_multiplier, low=0.0)
    std *= check_real("max_grad_norm", dp_optimizer.max_grad_norm, low=0.0)
    return std / released_sum_divisor(dp_optimizer)


def released_sum_divisor(dp_optimizer: DPOptimizer) -> float:
    """Return the divisor of the sum of clipped gradients and noise."""
    if dp_optimizer.loss_reduction == "sum":
        return 1.0
    divisor = check_real("expected_batch_size", dp_optimizer.expected_batch_size, low=0.0, low_open=True)
    sample = next((getattr(p, "grad_sample", None) for p in dp_optimizer.params), None)
    if isinstance(sample, list):  # as many batches; outside a step there are no per-sample gradients to count
        divisor *= dp_optimizer.accumulated_iterations
    return divisor
