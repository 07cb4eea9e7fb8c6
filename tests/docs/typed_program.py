"""What a user's type checker sees of spectra, tensors and mechanisms; checked in `test_types.py`, and run there too."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import torch
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from prv_accountant import PrivacyRandomVariable

from dprmt.accounting import (
    DPSGD,
    Hutchinson,
    PrivacyBounds,
    PrivacyCurve,
    RandomAllocation,
    TradeOff,
    calibrate,
    compose,
)
from dprmt.spectra import (
    MarchenkoPastur,
    bulk_edge,
    denoise,
    denoise_layers,
    detection_threshold,
    estimate_sigma,
    false_alarm_rate,
    hard_threshold,
    kappa_for,
    momentum_noise_scale,
    shrink,
    spike_map,
    spike_map_inverse,
    vector_overlaps,
)

Floats = NDArray[np.float64]
matrix: Floats = np.random.default_rng(0).standard_normal((4, 9))
values: Floats = np.array([7.0, 9.0])

assert_type(bulk_edge(matrix.shape, 1.0), float)  # a shape of any length to the checker, two numbers at run time
assert_type(detection_threshold([4, 9], sigma=1.0), float)
assert_type(false_alarm_rate(matrix.shape, 1.02), float)
assert_type(kappa_for((4, 9), 0.01), float)
assert_type(hard_threshold(matrix.shape), float)
assert_type(momentum_noise_scale(0.9, 3), float)
assert_type(spike_map(7.0, matrix.shape, 1.0), float)
assert_type(spike_map(values, matrix.shape, 1.0), Floats)
assert_type(spike_map_inverse(values, (4, 9), 1.0), Floats)
assert_type(vector_overlaps(values, (4, 9), 1.0), tuple[Floats, Floats])
assert_type(shrink(values, matrix.shape, 1.0, loss="nuclear"), Floats)
assert_type(MarchenkoPastur(matrix.shape, 1.0).cdf(values), Floats)
assert_type(MarchenkoPastur((4, 9), 1.0).ppf(0.5), float)
assert_type(denoise(matrix, 1.0), Floats)
assert_type(estimate_sigma(np.stack([matrix, matrix])), Floats)
layers, report = denoise_layers({"w": matrix}, 1.0, kappa=lambda shape: kappa_for(shape, 0.01))
assert_type(layers, dict[str, Floats])
assert_type(report["w"].spikes, int)
single = matrix.astype(np.float32)
assert_type(denoise(single, 1.0), NDArray[np.float32])
anything: Any = matrix
denoise(anything, 1.0)

tensor = torch.eye(3)
assert_type(bulk_edge(tensor.shape, 1.0), float)
assert_type(denoise(tensor, 1.0), torch.Tensor)
assert_type(estimate_sigma(tensor), torch.Tensor)
assert_type(spike_map(tensor, tensor.shape, 1.0), torch.Tensor)
assert_type(shrink(tensor, list(tensor.shape), 1.0), torch.Tensor)
assert_type(vector_overlaps(tensor, (3, 3), 1.0), tuple[torch.Tensor, torch.Tensor])
assert_type(denoise_layers({"w": tensor}, 1.0)[0], dict[str, torch.Tensor])

mechanism = DPSGD(2.0, 0.1, Hutchinson(8, secret=False))
assert_type(mechanism.epsilon(steps=3, delta=1e-5), PrivacyBounds)
assert_type(mechanism.epsilon(steps=3, delta=1e-5).upper, float)
assert_type(DPSGD(2.0, 0.1).trade_off(steps=3, alpha=[0.0, 0.5]), TradeOff)
assert_type(compose([(mechanism, 3)]).delta(1.0), PrivacyBounds)
assert_type(mechanism.epsilon(steps=[1, 2, 3], delta=1e-5), PrivacyCurve)
assert_type(mechanism.epsilon(steps=range(1, 4), delta=1e-5)[0], PrivacyBounds)
shuffled = DPSGD(2.0, RandomAllocation(5))
assert_type(shuffled.epsilon(epochs=np.arange(1, 4), delta=1e-5), PrivacyCurve)
assert_type(mechanism.delta(steps=3, epsilon=[0.5, 1.0]), PrivacyCurve)
assert_type(float(mechanism.epsilon(steps=3, delta=1e-5)), float)
assert_type(calibrate(DPSGD(1.0, 0.1), steps=3, target_epsilon=2.0, delta=1e-5).noise_multiplier, float)
random_variable: PrivacyRandomVariable = mechanism.to_prv()
distribution: PrivacyLossDistribution = mechanism.to_pld()
