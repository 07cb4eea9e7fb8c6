r"""DP-AdamBC: Adam whose second moment estimate is freed of the variance that the noise adds.

The noise part of the second moment
-----------------------------------
Let the gradients be ``g̃_s = g_s + z_s`` with independent noise of mean 0 and variance Φ_s per entry. Then ``v_t = Σ_s
w_s g̃_s²`` with weights ``w_s = (1 - β₂)β₂^{t-s}`` has the expectation ``Σ_s w_s(E g_s² + Φ_s)``. So ``v̂_t = v_t/(1 -
β₂^t)`` has the expectation for clean gradients plus

    ``Φ̂_t = φ_t/(1 - β₂^t),  φ_t = β₂φ_{t-1} + (1 - β₂)Φ_t,  φ_0 = 0``.

If Φ changes, subtract this average of all Φ_s with the weights of v̂, not the latest Φ_t. For constant Φ, Φ̂_t is Φ,
and the result is Algorithm 2 as printed.

A denoised layer
----------------
`dprmt.spectra.denoise` (Eq. 10 of arXiv:2510.01137v3) either does not change the layer ``Y = X + Δ``, with Φ per
entry, or replaces it by ``cŶ`` with Ŷ the shrunk matrix and ``c = ‖Y‖/‖Ŷ‖``. In the second case 0 is subtracted, for
two reasons:

- Ŷ has less energy than the signal, not more. For large matrices the Frobenius shrinker satisfies ``‖Ŷ - X‖² = ‖X‖² -
  ‖Ŷ‖²`` (Eqs. 4-6 and 9): the error is matched by lost signal. So the excess ``(E‖Ŷ‖² - ‖X‖²)/(mn)``, which is Φ for
  Y, is at most 0 for Ŷ.
- The factor c multiplies both m̂ and √v̂, and cancels from the update while it is steady and the floor is not active.
  It does add the noise energy, ``E‖cŶ‖² = E‖Y‖² = ‖X‖² + mnΦ``, but in proportion to Ŷ², where the estimated signal
  is. Subtracting Φ from every entry would push most of the layer to the floor, where steps are longest.

This holds for sums over the entries. Entries with almost no signal keep an uncorrected share of the estimation error,
of the order of ``rank·(1/m + 1/n)·c²Φ``, and others lose some. For a signal near the detection threshold, where c is
large, this is of the order of Φ, and such layers are scaled more as in DP-Adam.

References
----------
Algorithm 2 (appendix A) of the heavy-tail class imbalance article on DP-AdamBC. Tang et al., arXiv:2312.14334. Kingma
and Ba, arXiv:1412.6980. Loshchilov and Hutter, arXiv:1711.05101 for the weight decay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dprmt.training.optimizers._noise_aware import NoiseAwareOptimizer


class DPAdamBC(NoiseAwareOptimizer):
    r"""Adam with the variance of the DP noise subtracted from its second moment (Algorithm 2, DP-AdamBC).

    With g̃_t the noisy gradient, all operations entry by entry:

    - ``m_t = β₁m_{t-1} + (1 - β₁)g̃_t``, ``v_t = β₂v_{t-1} + (1 - β₂)g̃_t²``,
    - ``m̂_t = m_t/(1 - β₁^t)``, ``v̂_t = v_t/(1 - β₂^t)``,
    - ``θ_t = (1 - ηλ)θ_{t-1} - η m̂_t/√max(v̂_t - Φ̂_t, γ')``.

    Φ̂_t is the average of the noise variances so far with the weights of v̂_t, derived at the head of this module.
    There is no ε.

    Parameters
    ----------
    params : iterable of tensors, of (name, tensor) pairs or of dicts
        Tensors of real floating dtype to optimize. Dicts are parameter groups and may override every option below.
    lr : float
        Learning rate η >= 0.
    betas : pair of float
        β₁, β₂ in [0, 1).
    noise_variance : float, optional
        Variance Φ = (σC/L)² >= 0 of the noise in one entry of ``p.grad``, with L the divisor of the clipped sum.
        `dprmt.make_private` sets it. Under Poisson sampling L is the expected batch size, for Opacus times the
        accumulated iterations; with ``loss_reduction="sum"`` it is 1. A schedule sets ``group["noise_variance"]``
        before each step, as schedulers set "lr".
    floor : float
        Floor γ' > 0 of the second moment, in the units of Φ: no entry moves by more than η|m̂|/√γ'.
    weight_decay : float
        λ >= 0, decoupled as in AdamW.

    Raises
    ------
    ParameterError
        If an option is outside its range, here, in a group, or set later (then at `step`).

    Formal guarantees
    -----------------
    The parameters are as private as the gradients, because they are a function of the gradients and of the options.
    The options must not depend on the private data, as the size of a Poisson batch does.

    Notes
    -----
    State per parameter: "step", "exp_avg" (m), "exp_avg_sq" (v) and "noise_average" (φ, a float). v is in float32 for
    parameters of lower precision, also after `load_state_dict`, since v̂ - Φ is a small difference of large numbers.
    Parameters without a gradient are skipped; sparse gradients raise an error.

    References
    ----------
    Algorithm 2, line 12 (appendix A), of the heavy-tail class imbalance article on DP-AdamBC.

    Examples
    --------
    Gradients of 1 and of 0.1 under noise of variance 1: Adam would divide both by much the same, √2 and √1.01.

    >>> import torch
    >>> from dprmt.training.optimizers import DPAdamBC
    >>> noise = torch.Generator().manual_seed(0)
    >>> weights = torch.nn.Parameter(torch.zeros(2, 10_000))
    >>> optimizer = DPAdamBC([weights], lr=0.01, betas=(0.9, 0.99), noise_variance=1.0, floor=1e-3)
    >>> for _ in range(200):
    ...     weights.grad = torch.tensor([[1.0], [0.1]]) + torch.randn(2, 10_000, generator=noise)
    ...     optimizer.step()
    >>> v = optimizer.state[weights]["exp_avg_sq"] / (1 - 0.99**200)
    >>> [round(mean, 1) for mean in (v - 1.0).mean(1).sqrt().tolist()]
    [1.0, 0.1]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        *,
        noise_variance: float | None = None,
        floor: float,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "noise_variance": noise_variance, "floor": floor}
        super().__init__(params, {**options, "weight_decay": weight_decay})

    def _move(self, p: Any, θ: torch.Tensor, group: dict[str, Any], Φ: float) -> None:
        m, root, rate = self._moments(p, p.grad.to(θ.dtype), group, Φ)
        θ.addcdiv_(m, root, value=-rate)
