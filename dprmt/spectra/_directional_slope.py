"""The slope of the objective along a direction, from a noisy gradient (T2 of ``docs/theory/telemetry.md``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from dprmt._validation import ParameterError, check_real
from dprmt.spectra._estimate import Estimate, Numbers, as_numbers
from dprmt.spectra._layer_products import layer_products


@dataclass(frozen=True)
class DirectionalSlope(Estimate):
    """``⟨w, g⟩`` with its interval, and the test of its sign.

    Attributes
    ----------
    z : float or array, shape (layers,)
        The estimate over its standard deviation s‖w‖: standard normal plus the true slope in these units.
    """

    z: Numbers = 0.0


def directional_slope(noisy: Any, direction: Any, sigma: float, *, failure: float = 0.05) -> DirectionalSlope:
    """The slope along a direction that was fixed before the noise was drawn.

    Parameters
    ----------
    noisy : array or mapping of str to array
        g̃ = g + sξ, NumPy or torch: a whole gradient as one array, or its layers by name.
    direction : array or mapping of str to array
        w, of the same shapes and names; any function of what was released before g̃. Minus the last update asks
        whether the objective still falls along it.
    sigma : float
        Standard deviation s > 0 of the noise in one entry.
    failure : float
        In [1e-12, 0.5]: chance that an interval misses; of each layer's on its own.

    Returns
    -------
    DirectionalSlope
        Of ``⟨w, g⟩``; along w = 0 everything is 0.

    Raises
    ------
    ParameterError
        If an argument is out of range or not finite, or names or shapes differ.

    Formal guarantees
    -----------------
    Given the past, ``⟨w, g̃⟩`` is normal with mean ``⟨w, g⟩`` and standard deviation ``s‖w‖``, whatever the optimizer,
    so the interval fails with probability ``failure`` exactly. The errors ``z - E z`` of all steps of a run are
    independent standard normals. Post-processing.

    References
    ----------
    (T2) of ``docs/theory/telemetry.md``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> update = rng.standard_normal(400)
    >>> slope = directional_slope(-0.3 * update + rng.standard_normal(400), -update, sigma=1.0)
    >>> round(slope.z, 1), slope.low > 0  # the objective still falls along it
    (4.0, True)
    """
    s = check_real("sigma", sigma, low=0.0, low_open=True)
    quantile = -float(special.ndtri(check_real("failure", failure, low=1e-12, high=0.5) / 2))
    inner = as_numbers(layer_products(noisy, direction))
    std = s * np.sqrt(as_numbers(layer_products(direction)))
    if not np.all(np.isfinite(std)):
        raise ParameterError("direction", float(np.max(std)), "of a finite norm")
    z = np.divide(inner, std, out=np.zeros_like(inner), where=std > 0)
    parts = (inner, inner - quantile * std, inner + quantile * std, z)
    return DirectionalSlope(*(float(part) if part.ndim == 0 else part for part in parts))
