"""Optimizers for noisy gradients by the names that recipes and studies use."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

import torch

from dprmt._validation import ParameterError, check_choice, check_real
from dprmt.training.optimizers._adambc import checked
from dprmt.training.recipes import OPTIMIZERS
from dprmt.training.subspaces import Subspaces


def make_optimizer(
    name: str,
    params: Iterable[Any],
    *,
    lr: float,
    momentum: float = 0.9,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    noise_variance: float | None = None,
    floor: float | None = None,
    subspaces: Subspaces | None = None,
) -> torch.optim.Optimizer:
    """Make an optimizer for noisy gradients by its name in a recipe.

    | name    | class                   | in the paper on DP-AdamBC                          |
    |---------|-------------------------|----------------------------------------------------|
    | gd      | ``torch.optim.SGD``     | DP-GD (Algorithm 1)                                |
    | gdm     | ``torch.optim.SGD``     | DP-GDM: momentum μ, no dampening (Algorithm 1)     |
    | adam    | ``torch.optim.Adam``    | DP-Adam: ``m̂/(√v̂ + γ)`` (Algorithm 2)              |
    | adamw   | ``torch.optim.AdamW``   | DP-Adam with decoupled weight decay                |
    | adambc  | `DPAdamBC`              | DP-AdamBC: ``m̂/√max(v̂ - Φ, γ')`` (Algorithm 2)     |
    | grape   | `DPGrape`               | –                                                  |

    Parameters
    ----------
    name : {"gd", "gdm", "adam", "adamw", "adambc", "grape"}
        Name of the optimizer. Names registered in `dprmt.training.recipes.OPTIMIZERS` work too; their function
        receives those of these options that it names.
    params : iterable
        Tensors or parameter groups, as for any torch optimizer.
    lr : float
        Learning rate >= 0.
    momentum : float
        μ in [0, 1), of "gdm" alone.
    betas : pair of float
        β₁, β₂ in [0, 1), of the Adam family.
    eps : float
        γ >= 0, of "adam", "adamw" and "grape".
    weight_decay : float
        λ >= 0. Decoupled for "adamw", "adambc" and "grape", added to the noisy gradient for the others, as torch does.
    noise_variance : float, optional
        Variance Φ = (σC/L)² of the noise in one entry of the gradient, for "adambc" and "grape"; by default
        `dprmt.make_private` sets it.
    floor : float, optional
        Floor γ' > 0; required by "adambc", ignored by the others.
    subspaces : Subspaces, optional
        Subspaces of the projected weights; required by "grape", ignored by the others.

    Returns
    -------
    torch.optim.Optimizer
        An instance of the class in the table.

    Raises
    ------
    ParameterError
        If the name is unknown, a number is out of its range, or a required option is missing.

    Formal guarantees
    -----------------
    The parameters are as private as the gradients, as long as the options do not depend on the private data.

    References
    ----------
    Algorithms 1 and 2 (appendix A) of the heavy-tail class imbalance article on DP-AdamBC.

    Examples
    --------
    >>> weights = torch.nn.Parameter(torch.zeros(3))
    >>> type(make_optimizer("gdm", [weights], lr=0.1)).__name__
    'SGD'
    >>> type(make_optimizer("adambc", [weights], lr=0.1, noise_variance=1e-4, floor=1e-6)).__name__
    'DPAdamBC'
    """
    make = OPTIMIZERS.load(check_choice("name", name, tuple(OPTIMIZERS)))
    options: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    options |= {"noise_variance": noise_variance, "floor": floor, "subspaces": subspaces}
    for wants, option in (("adambc", "floor"), ("grape", "subspaces")):
        if name == wants and options[option] is None:
            raise ParameterError(option, None, f"given for {name!r}")
    options = {option: value for option, value in options.items() if value is not None}
    options |= checked(options)
    options["momentum"] = 0.0 if name == "gd" else check_real("momentum", momentum, low=0.0, high=1.0, high_open=True)
    known = signature(make).parameters
    return make(params, **{option: value for option, value in options.items() if option in known})
