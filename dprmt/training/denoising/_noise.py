"""How large the noise in the gradient of an Opacus optimizer is."""

from __future__ import annotations

from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, FSDPOptimizerFastGradientClipping
from opacus.optimizers.ddp_perlayeroptimizer import DistributedPerLayerOptimizer
from opacus.optimizers.ddpoptimizer import DistributedDPOptimizer
from opacus.optimizers.ddpoptimizer_fast_gradient_clipping import DistributedDPOptimizerFastGradientClipping

from dprmt._validation import ParameterError, check_real

_REFUSED = {
    AdaClipDPOptimizer: "its clipping norm already belongs to the next step",
    FSDPOptimizerFastGradientClipping: "its parameters are shards, without separate singular values",
    DistributedPerLayerOptimizer: "it adds noise within the backward pass",
}
_AVERAGING = DistributedDPOptimizer.reduce_gradients, DistributedDPOptimizerFastGradientClipping.reduce_gradients


def gradient_noise_std(dp_optimizer: DPOptimizer) -> float:
    """Compute the standard deviation σ_DP·C/L of the noise in one entry of ``.grad``, as the inner optimizer sees it.

    The present settings are read from the optimizer, so the value follows schedules of noise multiplier and clipping
    norm.

    Parameters
    ----------
    dp_optimizer : opacus.optimizers.DPOptimizer
        Its variants for ghost clipping and for several processes work too.

    Returns
    -------
    float
        Noise multiplier times clipping norm, divided by the *expected* batch size times the accumulated iterations for
        ``loss_reduction="mean"``, or by 1 for ``"sum"``. Opacus' distributed optimizers also divide by the number of
        processes; the optimizers of `dprmt.training.clipping` do not.

    Raises
    ------
    ParameterError
        If it is another optimizer, or the noise at the gradient is unknown: adaptive clipping (whose noise in Opacus
        depends on the realised batch size), sharded parameters, per-layer clipping over several processes, or an
        unknown gradient reduction.

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
    if not isinstance(dp_optimizer, DPOptimizer):
        raise ParameterError("dp_optimizer", type(dp_optimizer).__name__, "an Opacus DPOptimizer")
    for kind, reason in _REFUSED.items():
        if isinstance(dp_optimizer, kind):
            raise ParameterError("dp_optimizer", type(dp_optimizer).__name__, f"another DPOptimizer: {reason}")
    if hasattr(dp_optimizer, "_adjusted_noise_multiplier"):
        raise ParameterError("dp_optimizer", type(dp_optimizer).__name__, "one without adaptive clipping")
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
    reduce = getattr(type(dp_optimizer), "reduce_gradients", None)
    if reduce is None:
        return divisor
    if reduce not in _AVERAGING:
        raise ParameterError("dp_optimizer", type(dp_optimizer).__name__, "one that reduces gradients as Opacus does")
    return divisor * float(dp_optimizer.world_size)
