"""Read the last update of a parameter, and its response to the gradient, from an optimizer's state.

The response is ``D = -∂U/∂g̃``, entry by entry, of (T4) in ``docs/theory/telemetry.md``. It exists only for optimizers
whose every entry moves by the same entry of the gradient; the ones below are supported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dprmt.training.optimizers import DPAdamBC
from dprmt.training.telemetry._vectors import Vector, joined, vector

_TINY = 1e-30  # added to a root of 0, where the gradient was 0 too


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
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor], group: Mapping[str, Any], gradient: Vector
) -> tuple[Vector, Vector | float]:
    """Return the update that the optimizer has just made of this gradient, as a new vector, and its response.

    Parameters of one group are one vector, in their order; the response is one number for all entries, or one an entry.
    """
    state = [optimizer.state[p] for p in parameters]
    if isinstance(optimizer, torch.optim.SGD):
        return _descent(parameters, state, group, gradient)
    times = [(float(own["step"]), float(own.get("noise_average", 0.0))) for own in state]
    if len(set(times)) == 1:
        return _adam(optimizer, parameters, state, group, gradient)
    found, start = [], 0
    for p in parameters:
        end = start + p.numel()
        found.append(last_update(optimizer, [p], group, gradient[start:end]))
        start = end
    return joined([update for update, _ in found]), joined([response for _, response in found])


def _descent(
    parameters: Sequence[torch.Tensor], state: Sequence[Mapping[str, Any]], group: Mapping[str, Any], g: Vector
) -> tuple[Vector, float]:
    α, β, λ = float(group["lr"]), float(group["momentum"]), float(group["weight_decay"])
    if β and not group["nesterov"]:
        return _entries(state, "momentum_buffer") * -α, α
    # x_{t+1} = x_t - α(g + λx_t + βb) is solved for x_t, of which U is a multiple.
    moved = g if not β else g + β * _entries(state, "momentum_buffer")
    update = moved * -α
    if λ:
        update -= α * λ / (1 - α * λ) * (_places(parameters) - update)
    return update, α * (1 + β)


def _adam(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.Tensor],
    state: Sequence[Mapping[str, Any]],
    group: Mapping[str, Any],
    g: Vector,
) -> tuple[Vector, Vector]:
    (β1, β2), step = group["betas"], float(state[0]["step"])
    α, λ = float(group["lr"]), float(group["weight_decay"])
    debias1, debias2 = 1 - β1**step, 1 - β2**step
    root, inverse, factor = _roots(optimizer, group, state, debias2)
    update = _entries(state, "exp_avg") * inverse
    update *= -α * factor / debias1
    decoupled = isinstance(optimizer, torch.optim.AdamW | DPAdamBC) or group.get("decoupled_weight_decay")
    if λ and not decoupled:
        g = g + λ * (_places(parameters) - update)
    # D = h(αc₁ + c₂Ug/r), where c₂ is 0 for entries at DP-AdamBC's floor.
    response = update * g
    response /= root
    response *= factor**2 * (1 - β2) / debias2
    response += α * factor * (1 - β1) / debias1
    response *= inverse
    if λ and decoupled:
        update -= α * λ / (1 - α * λ) * (_places(parameters) - update)
    return update, response


def _roots(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], state: Sequence[Mapping[str, Any]], debias: float
) -> tuple[Vector, Vector, float]:
    # The r that g̃ moves, infinite where it moves nothing, and h by which the moment is multiplied: both except for a
    # factor, which divides r and multiplies h, so that no pass over the entries is spent on it.
    second = _entries(state, "exp_avg_sq")
    xp: Any = np if isinstance(second, np.ndarray) else torch
    if isinstance(optimizer, DPAdamBC):
        floor = max(float(group["floor"]), float(xp.finfo(second.dtype).tiny))
        square = second / debias - float(state[0]["noise_average"]) / debias
        inverse = 1 / xp.sqrt(xp.clip(square, floor, None))
        return xp.where(square > floor, 1 / inverse, math.inf), inverse, 1.0
    root, factor = xp.sqrt(second), math.sqrt(debias)
    root += _TINY
    inverse = root + factor * float(group["eps"])
    return root, xp.reciprocal(inverse, out=inverse), factor


def _entries(state: Sequence[Mapping[str, Any]], name: str) -> Vector:
    return joined([vector(own[name]) for own in state])


def _places(parameters: Sequence[torch.Tensor]) -> Vector:
    return joined([vector(p) for p in parameters])
