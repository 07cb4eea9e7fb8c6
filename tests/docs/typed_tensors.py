"""What a type checker sees of tensors, mechanisms and pictures; checked in `test_types.py`, and run there too."""

from __future__ import annotations

from typing import assert_type

import numpy as np
import torch
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
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
from dprmt.spectra import bulk_edge, denoise, denoise_layers, estimate_sigma, shrink, spike_map, vector_overlaps

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
