"""What an optimizer just did, from its state: the update of a parameter, and its response to the gradient.

The response is ``D = -∂U/∂g̃``, entry by entry, of (T4) in ``docs/theory/telemetry.md``. Only optimizers whose every
entry moves by its own entry of the gradient have one, and of these the ones below are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from dprmt.training.optimizers import DPAdamBC

Response: TypeAlias = float | torch.Tensor
"""One number for all entries, or one an entry."""

_TINY = 1e-30  # in place of a root of 0, where the gradient was 0 too


def has_known_response(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `last_update` knows this optimizer with these options."""
    if type(optimizer) not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, DPAdamBC):
        return False
    refused = ("amsgrad", "maximize", "dampening")
    return not any(group.get(option) for group in optimizer.param_groups for option in refused)


def memory_of(optimizer: torch.optim.Optimizer) -> float:
    """β of the optimizer's momentum: what neighbouring updates share of their noise."""
    group = optimizer.param_groups[0]
    return float(group.get("momentum", group.get("betas", (0.0,))[0]))


def white_noise_step(group: Mapping[str, Any]) -> tuple[float, float] | None:
    """Rate and momentum, where the displacement's noise is white and known: gradient descent without decay."""
    if "momentum" not in group or group.get("nesterov") or group.get("weight_decay"):
        return None
    return float(group["lr"]), float(group["momentum"])


def last_update(
    optimizer: torch.optim.Optimizer, p: torch.Tensor, group: Mapping[str, Any], gradient: torch.Tensor
) -> tuple[torch.Tensor, Response]:
    """The update that the optimizer has just made of this gradient, as a new tensor, and its response."""
    if isinstance(optimizer, torch.optim.SGD):
        return _descent(optimizer.state[p], p, group, gradient)
    return _adam(optimizer, p, group, gradient)


def _descent(
    state: Mapping[str, Any], p: torch.Tensor, group: Mapping[str, Any], g: torch.Tensor
) -> tuple[torch.Tensor, Response]:
    α, β, λ = float(group["lr"]), float(group["momentum"]), float(group["weight_decay"])
    if β and not group["nesterov"]:
        return state["momentum_buffer"] * -α, α
    # x_{t+1} = x_t - α(g + λx_t + βb) is solved for x_t, of which U is a multiple.
    moved = g if not β else g.add(state["momentum_buffer"], alpha=β)
    update = moved * -α
    if λ:
        update.sub_(p.detach() - update, alpha=α * λ / (1 - α * λ))
    return update, α * (1 + β)


def _adam(
    optimizer: torch.optim.Optimizer, p: torch.Tensor, group: Mapping[str, Any], g: torch.Tensor
) -> tuple[torch.Tensor, Response]:
    state, (β1, β2) = optimizer.state[p], group["betas"]
    α, λ, step = float(group["lr"]), float(group["weight_decay"]), float(state["step"])
    debias1, debias2 = 1 - β1**step, 1 - β2**step
    root, inverse, factor = _roots(optimizer, group, state, debias2)
    update = torch.mul(state["exp_avg"], inverse).mul_(-α * factor / debias1)
    decoupled = isinstance(optimizer, torch.optim.AdamW | DPAdamBC) or group.get("decoupled_weight_decay")
    if λ and not decoupled:
        g = g.add(p.detach() - update, alpha=λ)
    # D = αc₁h + U·h·c₂g/r, where c₂ is 0 for entries at DP-AdamBC's floor.
    bent = torch.mul(update, g).mul_(inverse)
    response = inverse.mul_(α * factor * (1 - β1) / debias1).addcdiv_(bent, root, value=factor**2 * (1 - β2) / debias2)
    if λ and decoupled:
        update.sub_(p.detach() - update, alpha=α * λ / (1 - α * λ))
    return update, response


def _roots(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], state: Mapping[str, Any], debias: float
) -> tuple[torch.Tensor, torch.Tensor, float]:
    # The r that g̃ moves, infinite where it moves nothing, and h by which the moment is multiplied: both except for a
    # factor, which divides r and multiplies h, so that no pass over the entries is spent on it.
    if isinstance(optimizer, DPAdamBC):
        floor = max(float(group["floor"]), torch.finfo(state["exp_avg_sq"].dtype).tiny)
        square = state["exp_avg_sq"].div(debias).sub_(float(state["noise_average"]) / debias)
        inverse = square.clamp_min(floor).rsqrt_()
        return torch.where(square > floor, 1 / inverse, torch.inf), inverse, 1.0
    root, factor = state["exp_avg_sq"].sqrt().clamp_min_(_TINY), math.sqrt(debias)
    return root, root.add(factor * float(group["eps"])).reciprocal_(), factor
