"""Read the last update of a parameter, and its response to the gradient, from an optimizer's state.

The response is ``D = -∂U/∂g̃``, entry by entry, of (T4) in ``docs/theory/telemetry.md``. It exists only for optimizers
whose every entry moves by the same entry of the gradient; the ones below are supported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from dprmt.training.optimizers import DPAdamBC


def has_known_response(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether `last_update` knows this optimizer with these options."""
    if type(optimizer) not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, DPAdamBC):
        return False
    refused = ("amsgrad", "maximize", "dampening")
    return not any(group.get(option) for group in optimizer.param_groups for option in refused)


def memory_of(optimizer: torch.optim.Optimizer) -> float:
    """Return β of the optimizer's momentum: what neighbouring updates share of their noise."""
    group = optimizer.param_groups[0]
    return float(group.get("momentum", group.get("betas", (0.0,))[0]))


def white_noise_step(group: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return rate and momentum if the displacement's noise is white and known: gradient descent without decay."""
    if "momentum" not in group or group.get("nesterov") or group.get("weight_decay"):
        return None
    return float(group["lr"]), float(group["momentum"])


def last_update(
    optimizer: torch.optim.Optimizer, p: torch.Tensor, group: Mapping[str, Any], gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | float]:
    """Return the update that the optimizer has just made of a parameter's gradient, as a new vector, and its response.

    The response is one number for all entries, or one an entry.
    """
    if isinstance(optimizer, torch.optim.SGD):
        return _descent(p, optimizer.state[p], group, gradient)
    return _adam(optimizer, p, group, gradient)


def _descent(
    p: torch.Tensor, state: Mapping[str, Any], group: Mapping[str, Any], g: torch.Tensor
) -> tuple[torch.Tensor, float]:
    α, β, λ = float(group["lr"]), float(group["momentum"]), float(group["weight_decay"])
    if β and not group["nesterov"]:
        return flat(state["momentum_buffer"]) * -α, α
    # x_{t+1} = x_t - α(g + λx_t + βb) is solved for x_t, of which U is a multiple.
    moved = g if not β else g + β * flat(state["momentum_buffer"])
    update = moved * -α
    if λ:
        update -= α * λ / (1 - α * λ) * (flat(p) - update)
    return update, α * (1 + β)


def _adam(
    optimizer: torch.optim.Optimizer, p: torch.Tensor, group: Mapping[str, Any], g: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    state = optimizer.state[p]
    (β1, β2), step = group["betas"], float(state["step"])
    α, λ = float(group["lr"]), float(group["weight_decay"])
    debias1, debias2 = 1 - β1**step, 1 - β2**step
    root, inverse, factor = _roots(optimizer, group, state, debias2)
    update = flat(state["exp_avg"]) * inverse
    update *= -α * factor / debias1
    decoupled = isinstance(optimizer, torch.optim.AdamW | DPAdamBC) or group.get("decoupled_weight_decay")
    if λ and not decoupled:
        g = g + λ * (flat(p) - update)
    # D = h(αc₁ + c₂Ug/r), where c₂ is 0 for entries at DP-AdamBC's floor.
    response = update * g
    response /= root
    response *= factor**2 * (1 - β2) / debias2
    response += α * factor * (1 - β1) / debias1
    response *= inverse
    if λ and decoupled:
        update -= α * λ / (1 - α * λ) * (flat(p) - update)
    return update, response


def _roots(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], state: Mapping[str, Any], debias: float
) -> tuple[torch.Tensor, torch.Tensor, float]:
    # The r that g̃ moves, infinite where it moves nothing, and h by which the moment is multiplied: both except for a
    # factor, which divides r and multiplies h, so that no pass over the entries is spent on it.
    second = flat(state["exp_avg_sq"])
    if isinstance(optimizer, DPAdamBC):
        floor = max(float(group["floor"]), torch.finfo(second.dtype).tiny)
        square = second / debias - float(state["noise_average"]) / debias
        inverse = square.clamp_min(floor).rsqrt()
        return torch.where(square > floor, 1 / inverse, math.inf), inverse, 1.0
    root, factor = second.sqrt().add_(1e-30), math.sqrt(debias)  # a root of 0, where the gradient was 0 too
    return root, (root + factor * float(group["eps"])).reciprocal_(), factor


def flat(values: torch.Tensor) -> torch.Tensor:
    """Return the entries in a row, without a graph."""
    return values.detach().reshape(-1)


def dot(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the inner product of two vectors, in single precision or better."""
    if first.dtype.itemsize < 4 or first.dtype != second.dtype:
        first, second = first.float(), second.float()
    return torch.dot(first, second)
