r"""Denoising the momentum: signals that no single gradient shows.

The optimizer keeps its own moments, of the noisy gradients, as if there were no denoiser. If a matrix passes the gate,
its step is repeated from where it began, with the denoised momentum ``D(m_t)`` instead of m_t:

| optimizer         | step of a denoised matrix                                                 |
|-------------------|---------------------------------------------------------------------------|
| Adam, AdamW       | ``θ_t = (1 - ηλ)θ_{t-1} - η m̂'/(√max(v̂_t, σ²) + ε)``,  λ of AdamW only     |
| DPAdamBC          | ``θ_t = (1 - ηλ)θ_{t-1} - η m̂'/√max(v̂_t - Φ̂_t, γ')``                       |
| SGD with momentum | ``θ_t = θ_{t-1} - η D(b_t)``                                              |

with ``m̂' = D(m_t)/(1 - β₁^t)``. The noise of one entry of m_t has the variance ``n_t = β²n_{t-1} + w²σ_t²``, with
w = 1 - β for Adam and 1 for SGD: exactly, whatever σ_t does. For constant σ there is a closed form,
`dprmt.spectra.momentum_noise_scale`. A denoiser commutes with scaling, so that bias correction may come afterwards.

In Adam's root, σ² is a lower bound, since ``E g̃² >= σ²`` for every entry. Early, or for β₂ far from 1, v̂_t is not
bounded: denoised numerators over a small √v̂_t then make heavy-tailed steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.optimizers import DPAdamBC

VARIANCE = "momentum_noise_variance"
"""Where an optimizer's state holds n_t, so that it is in every checkpoint of the optimizer."""

_MOMENT = {"adam": "exp_avg", "sgd": "momentum_buffer"}


class MomentumSteps:
    """The steps of one optimizer, before and after: which noise its momenta have, and how a step is taken again."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]) -> None:
        _family(optimizer)
        for group in optimizer.param_groups:
            if _decay(optimizer, group) == 0:
                raise ParameterError("optimizer", type(optimizer).__name__, "one with momentum, for on='momentum'")
            for option in ("amsgrad", "maximize", "nesterov", "dampening"):
                if group.get(option):
                    raise ParameterError(f"optimizer's {option}", group[option], "off, for on='momentum'")
        self.optimizer = optimizer
        self.parameters = {name: p for name, p in parameters.items() if p.ndim == 2}
        self.starts: dict[str, torch.Tensor] = {}  # where the parameters were before the step

    def before(self) -> None:
        """Remember where the parameters are."""
        moving = {name: p for name, p in self.parameters.items() if p.grad is not None}
        for p in moving.values():
            state = self.optimizer.state.get(p, {})
            if VARIANCE not in state and any(state.get(key) is not None for key in _MOMENT.values()):
                todo = "take one without momentum yet, or from a checkpoint of a run with the same denoiser"
                raise TrainingStateError(f"the optimizer has momentum of unknown noise: {todo}")
        self.starts = {name: p.detach().clone() for name, p in moving.items()}

    def after(self, sigma: float) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """Count the noise of the step that was made.

        ``sigma``: standard deviation of the noise in one entry of its gradient.
        Returns: by name m_t, or b_t, and the standard deviation of the noise in one entry of it. Released values.
        """
        family = _family(self.optimizer)
        moments, sigmas = {}, {}
        for name in self.starts:
            p = self.parameters[name]
            state, β = self.optimizer.state[p], _decay(self.optimizer, self._group(p))
            weight = 1.0 if family == "sgd" else 1 - β
            state[VARIANCE] = β**2 * state.get(VARIANCE, 0.0) + (weight * sigma) ** 2
            moments[name], sigmas[name] = state[_MOMENT[family]], math.sqrt(state[VARIANCE])
        return moments, sigmas

    def again(self, name: str, momentum: torch.Tensor, sigma: float) -> None:
        """Take the step of one parameter again, with another momentum.

        ``sigma``: standard deviation of the noise in one entry of the last gradient.
        """
        p, start = self.parameters[name], self.starts[name].to(momentum.dtype)
        group = self._group(p)
        with torch.no_grad():
            if _family(self.optimizer) == "sgd":
                p.copy_(start.add(momentum, alpha=-float(group["lr"])))
                return
            (β1, β2), state = group["betas"], self.optimizer.state[p]
            step, rate = float(state["step"]), float(group["lr"])
            decoupled = isinstance(self.optimizer, (torch.optim.AdamW, DPAdamBC))
            if decoupled or group.get("decoupled_weight_decay"):
                start = start * (1 - rate * group["weight_decay"])
            v = state["exp_avg_sq"] / (1 - β2**step)
            if isinstance(self.optimizer, DPAdamBC):
                floor = max(float(group["floor"]), torch.finfo(v.dtype).tiny)
                root = (v - state["noise_average"] / (1 - β2**step)).clamp_min_(floor).sqrt_()
            else:
                root = v.clamp_min_(sigma**2).sqrt_().add_(group["eps"])
            p.copy_(start.addcdiv(momentum, root, value=-rate / (1 - β1**step)))

    def _group(self, p: torch.Tensor) -> Mapping[str, Any]:
        # Asked for anew: loading a state replaces the groups of an optimizer.
        return next(group for group in self.optimizer.param_groups if any(q is p for q in group["params"]))


def _family(optimizer: torch.optim.Optimizer) -> str:
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW, DPAdamBC)):
        return "adam"
    if isinstance(optimizer, torch.optim.SGD):
        return "sgd"
    allowed = "Adam, AdamW, DPAdamBC or SGD with momentum, for on='momentum'"
    raise ParameterError("optimizer", type(optimizer).__name__, allowed)


def _decay(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> float:
    return float(group["momentum"] if _family(optimizer) == "sgd" else group["betas"][0])
