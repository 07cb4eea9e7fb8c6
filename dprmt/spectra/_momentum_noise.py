r"""The noise in an exponential moving average of privatised gradients.

Let ``m_t = βm_{t-1} + (1 - β)(g_t + ξ_t)``, ``m_0 = 0``, with independent ξ_s of variance σ² per entry. Then
``m_t = Σ_{s<=t} (1 - β)β^{t-s}(g_s + ξ_s)``, and the variance of its noise, by independence, is
``(1 - β)² Σ_{k<t} β^{2k} σ² = σ²(1 - β)²(1 - β^{2t})/(1 - β²)``. The weights add up to ``1 - β^t``, by which Adam
divides. With ``1 - β² = (1 - β)(1 + β)`` and ``1 - β^{2t} = (1 - β^t)(1 + β^t)``, the bias-corrected ``m̂_t`` has the
noise

    ``σ̄_t = σ·√[(1 - β)(1 + β^t) / ((1 + β)(1 - β^t))]``,

σ at t = 1, falling to ``σ√((1 - β)/(1 + β))``: to σ/√19 at β = 0.9. The noise is Gaussian again, if the ξ_s are, and
white over the entries: the theory of a single noisy gradient holds of the momentum with σ̄_t for σ and the weighted mean
of the g_s for the signal. A signal that stays in place is √19 times as far above the bulk edge. Consecutive momenta
share most of their noise, though: what is said of one of them is not news about the next.
"""

from __future__ import annotations

import math

from dprmt._validation import check_count, check_real


def momentum_noise_scale(decay: float, step: int) -> float:
    """Noise of the bias-corrected momentum after some steps, in units of that of one gradient: σ̄_t/σ.

    Parameters
    ----------
    decay : float
        β in [0, 1), Adam's β₁ or the momentum of SGD.
    step : int
        t >= 1, counted from the first gradient.

    Returns
    -------
    float
        ``√[(1 - β)(1 + β^t)/((1 + β)(1 - β^t))]`` in (0, 1], non-increasing in t. For the momentum of SGD without
        dampening, ``b_t = βb_{t-1} + g̃_t``, multiply by ``(1 - β^t)/(1 - β)``.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Formal guarantees
    -----------------
    Exact for independent noise of one variance, whatever the gradients.

    References
    ----------
    Derived at the head of ``dprmt/spectra/_momentum_noise.py``.

    Examples
    --------
    >>> momentum_noise_scale(0.9, 1), round(momentum_noise_scale(0.9, 10), 3), round(momentum_noise_scale(0.9, 1000), 3)
    (1.0, 0.33, 0.229)
    """
    β = check_real("decay", decay, low=0.0, high=1.0, high_open=True)
    t = check_count("step", step)
    if β == 0:
        return 1.0
    vanished = -math.expm1(t * math.log(β))  # 1 - β^t, accurate for β near 1
    return math.sqrt((1 - β) / vanished * (2 - vanished) / (1 + β))
