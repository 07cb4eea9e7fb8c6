"""The diagonal matrix by which an optimizer of Adam's kind multiplies its momentum, read from its state."""

from __future__ import annotations

import torch

from dprmt.training.optimizers._adambc import DPAdamBC
from dprmt.training.optimizers._grape import DPGrape


def preconditioner(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.Tensor | None:
    """Compute P of the last step ``-ηPm̂`` of a parameter: ``1/(√v̂ + ε)``, or ``1/√max(v̂ - Φ̂, γ')`` for DP-AdamBC.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        An optimizer of `make_optimizer`, or Opacus' wrapper of it.
    parameter : Tensor
        A parameter in one of its groups.

    Returns
    -------
    Tensor or None
        A new positive tensor with the shape of the gradient; for a weight that DP-GRAPE projects, of the gradient in
        the subspace. None if the parameter has no second moment, as in gradient descent.

    Formal guarantees
    -----------------
    A function of the optimizer's state, and so of released gradients.

    References
    ----------
    Proposition I.1 of arXiv:2510.01137v3.

    Examples
    --------
    >>> weights = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = torch.optim.Adam([weights], lr=0.1)
    >>> weights.grad = torch.tensor([0.5, -4.0])
    >>> optimizer.step()
    >>> preconditioner(optimizer, weights).tolist()
    [2.0, 0.25]
    """
    inner = getattr(optimizer, "original_optimizer", optimizer)
    state = inner.state.get(parameter, {})
    if "exp_avg_sq" not in state:
        return None
    group = next(group for group in inner.param_groups if any(q is parameter for q in group["params"]))
    debias = 1 - group["betas"][1] ** float(state["step"])
    square = state["exp_avg_sq"].detach() / debias
    if isinstance(inner, DPAdamBC) or (isinstance(inner, DPGrape) and inner.rule == "adambc"):
        floor = max(float(group["floor"]), torch.finfo(square.dtype).tiny)
        return (square - float(state["noise_average"]) / debias).clamp_min(floor).rsqrt()
    return square.sqrt().add(float(group["eps"])).reciprocal()
