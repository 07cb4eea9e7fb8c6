"""Displacement of a weight matrix over a run: its noise level and its spikes (T5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dprmt._validation import ParameterError, check_real
from dprmt.spectra._arrays import MatrixT, check_matrix, is_tensor
from dprmt.spectra._formulas import checked_scales
from dprmt.spectra._noise_level import median_sigma
from dprmt.spectra._noisy_spectrum import GramSpectrum
from dprmt.spectra._phase_transition import bulk_edge, spike_map_inverse
from dprmt.spectra._tensor_files import as_numpy
from dprmt.spectra._tracy_widom import kappa_for


class DisplacementNoise:
    """The noise in ``W_t - W_0`` under gradient descent with momentum: white, of a known standard deviation.

    For steps ``b_t = β_t b_{t-1} + (1 - dampening)g̃_t``, ``W_t = W_{t-1} - α_t b_t``, let the noise of step r have
    weight ``c_r(t)`` in W_t. The standard deviation of an entry is ``√Σ_r (c_r(t) s_r)²``. Three numbers carry this
    sum from step to step, for any α, β and s.

    Parameters
    ----------
    state : sequence of float, optional
        An earlier :attr:`state`, to continue from.

    Attributes
    ----------
    state : tuple of float
        ``Σc²s²``, ``Σcws²`` and ``Σw²s²``, with w_r the weight of the noise of step r in b_t.

    Formal guarantees
    -----------------
    Exact for gradient descent and momentum without Nesterov's correction or weight decay. The noise is white and
    Gaussian; signals may depend on it through earlier steps.

    References
    ----------
    (T5) of ``docs/theory/telemetry.md``.

    Examples
    --------
    >>> noise = DisplacementNoise()
    >>> for _ in range(4):
    ...     noise.add(rate=0.5, sigma=2.0)
    >>> noise.sigma  # 0.5 · 2 · √4
    2.0
    """

    def __init__(self, state: Sequence[float] = (0.0, 0.0, 0.0)) -> None:
        if len(state) != 3:
            raise ParameterError("state", state, "three numbers")
        self.state = tuple(check_real("state", value) for value in state)

    def add(self, rate: float, sigma: float, *, momentum: float = 0.0, weight: float = 1.0) -> None:
        """Add a step.

        Parameters
        ----------
        rate : float
            Learning rate α >= 0 of the step.
        sigma : float
            Standard deviation s >= 0 of the noise in one entry of its gradient.
        momentum : float
            Momentum β >= 0.
        weight : float
            Weight of the gradient in b_t: 1 minus the dampening.

        Raises
        ------
        ParameterError
            If an argument is out of range.
        """
        α, s = check_real("rate", rate, low=0.0), check_real("sigma", sigma, low=0.0)
        β, a = check_real("momentum", momentum, low=0.0), check_real("weight", weight, low=0.0)
        cc, cw, ww = self.state
        cw, ww = β * cw, β**2 * ww + (a * s) ** 2
        self.state = (cc + 2 * α * cw + α**2 * ww, cw + α * ww, ww)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in one entry of the displacement."""
        return math.sqrt(self.state[0])


@dataclass(frozen=True)
class DisplacementSpectrum:
    """Spikes of a displacement: singular values above the noise.

    Attributes
    ----------
    sigma : float
        Standard deviation of the noise in one entry, as given or as estimated.
    top_over_edge : float
        The largest singular value over the bulk edge.
    spikes : int
        Number of singular values above the gate, which noise alone passes with probability ``false_alarm``.
    share : float
        Estimated squared norm of the signal behind these spikes over the squared norm of the displacement, in [0, 1].
    """

    sigma: float
    top_over_edge: float
    spikes: int
    share: float


def displacement_spectrum(
    displacement: MatrixT, sigma: float | None = None, *, false_alarm: float = 0.01
) -> DisplacementSpectrum:
    """Return the singular values of a displacement above what noise alone would give.

    Parameters
    ----------
    displacement : array, shape (m, n)
        ``W_t - W_0``, NumPy or torch, of floating dtype.
    sigma : float, optional
        Standard deviation of the noise in one entry, >= 0, from `DisplacementNoise`. By default it is estimated from
        the median singular value, which is for other optimizers and takes the noise for white.
    false_alarm : float
        In (0, 1): chance that the largest singular value of white noise of this level is a spike.

    Returns
    -------
    DisplacementSpectrum
        With a displacement of zeros, no spike.

    Raises
    ------
    ParameterError
        If an argument is out of range or not finite.

    Formal guarantees
    -----------------
    With a known sigma and no signal, a spike is seen with the probability ``false_alarm``, as far as `kappa_for` knows
    the Tracy–Widom law. With an estimated one, or after an optimizer that scales entries, it is a heuristic. A function
    of released weights: post-processing.

    References
    ----------
    (T5) of ``docs/theory/telemetry.md``; Eq. 3 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).standard_normal((64, 256))
    >>> learnt = 40 * np.outer(np.eye(64)[0], np.ones(256) / 16)
    >>> displacement_spectrum(noise).spikes
    0
    >>> found = displacement_spectrum(noise + learnt, sigma=1.0)
    >>> found.spikes, round(found.top_over_edge, 1), round(found.share, 2)
    (1, 1.8, 0.09)
    """
    values = check_matrix("displacement", displacement)
    shape = (int(values.shape[0]), int(values.shape[1]))
    found = GramSpectrum(as_numpy(values) if is_tensor(values) else values).values
    s = median_sigma(found, shape) if sigma is None else check_real("sigma", sigma, low=0.0)
    squared = float((found**2).sum())
    if s == 0 or squared == 0:
        spikes = int((found > 0).sum()) if sigma is not None else 0
        return DisplacementSpectrum(s, math.inf if squared else 0.0, spikes, float(spikes > 0))
    edge = bulk_edge(shape, s)
    above = found[found > kappa_for(shape, false_alarm) * edge]
    signals = spike_map_inverse(above, shape, s) if len(above) else above
    return DisplacementSpectrum(s, float(found[0] / edge), len(above), float((signals**2).sum()) / squared)


def steps_until_visible(
    signal: float, shape: Sequence[int], sigma: float, *, false_alarm: float | None = None
) -> float:
    """Predict the number of steps until a steady signal exceeds the noise of the displacement.

    Signals grow like t and noise like √t. So the displacement after t steps is one noisy matrix with a signal of
    ``λ√t`` in units of the noise of a step.

    Parameters
    ----------
    signal : float
        λ > 0, the singular value of the mean gradient of a step.
    shape : tuple of int
        (m, n) of the matrix.
    sigma : float
        Standard deviation s >= 0 of the noise in one entry of a step's gradient.
    false_alarm : float, optional
        False-alarm rate of the gate in `displacement_spectrum`. By default the bulk edge is used: ``s²√(mn)/λ²``.

    Returns
    -------
    float
        Number of steps at a constant rate; momentum delays it by at most about ``1/(1 - β)``.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    References
    ----------
    (T5) of ``docs/theory/telemetry.md``.

    Examples
    --------
    >>> steps_until_visible(3.0, (16, 81), sigma=1.0), round(steps_until_visible(3.0, (16, 81), 1.0, false_alarm=0.01))
    (4.0, 8)
    """
    m, n, s, scales = checked_scales(shape, sigma)
    λ = check_real("signal", signal, low=0.0, low_open=True)
    needed = scales.threshold.high
    if false_alarm is not None and s > 0:
        gate = kappa_for((m, n), false_alarm) * bulk_edge((m, n), s)
        needed = max(needed, float(spike_map_inverse(gate, (m, n), s)))
    return (needed / λ) ** 2
