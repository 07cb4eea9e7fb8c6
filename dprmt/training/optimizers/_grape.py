r"""DP-GRAPE's optimizer: Adam in randomly projected coordinates, its steps lifted back to the weights.

For a weight with gradient G (m × n, the longer side first) and projector P (m × r), entry by entry in r × n:

- ``R_t = PᵀG_t``, already private; ``M_t = β₁M_{t-1} + (1 - β₁)R_t``, ``V_t = β₂V_{t-1} + (1 - β₂)R_t²``,
- ``W_t = (1 - ηλ)W_{t-1} - η P(M̂_t/(√V̂_t + ε))`` with M̂, V̂ freed of their start at 0.

What becomes of the moments when the subspace changes
-----------------------------------------------------
V may stay: given G, the entries of a column of PᵀG all have mean square ``‖g‖²/r``, in the old coordinates and in the
new ones (Gaussian and Stiefel). M may not: P_new is independent of M, so that in the new coordinates M points nowhere
in particular. Keeping it adds ``β₁^s P_new M_old`` to the M that starts from 0, s steps after a change. This has mean
0, so it does not improve alignment, and energy (m/r)‖M_old‖² on average. Setting M to 0 hence keeps the mean of M and
lowers its variance. But it also shortens M: s steps after a change it has the share 1 - β₁^s of its length. Restarting
the correction by 1 - β₁^t would make the first step of every subspace as long as a sign step. Instead all steps of a
subspace that began with M = 0 are divided by the mean share over its F steps,

    ``c = (1/F) Σ_s (1 - β₁^s) = 1 - β₁(1 - β₁^F)/(F(1 - β₁))``,

so that a small constant gradient moves the weights in F steps as far as without changes. Without it the effective
learning rate is 0.41 of the nominal one at F = 10 and β₁ = 0.9, and 0.1 at F = 1. The published algorithm,
read plainly, keeps M.

References
----------
DP-GRAPE: arXiv:2506.15588, section 3. Kingma and Ba, arXiv:1412.6980. GaLore: Zhao et al., arXiv:2403.03507.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import torch

from dprmt._validation import ParameterError, check_choice
from dprmt.training.norms._clipping import full_precision
from dprmt.training.optimizers._adambc import NoiseAwareOptimizer
from dprmt.training.subspaces import Subspaces

Rule = Literal["adam", "adambc", "sgd"]


class DPGrape(NoiseAwareOptimizer):
    """Adam whose moments live in the projected space (DP-GRAPE, arXiv:2506.15588).

    The gradient of a weight of ``subspaces`` is read from ``p.projected_grad`` (r × n), which ``make_private`` sets.
    If there is none, ``p.grad`` is projected after it was privatized. Other parameters are optimized without
    projection. Each step advances the subspaces' counter.

    Parameters
    ----------
    params : iterable of tensors or of dicts
        Tensors to optimize; dicts are parameter groups and may override the options from ``lr`` to ``floor``.
    lr : float
        Learning rate η >= 0.
    subspaces : Subspaces
        Subspaces of the projected weights among them.
    betas : pair of float
        β₁, β₂ in [0, 1).
    eps : float
        ε >= 0, of "adam".
    weight_decay : float
        λ >= 0, decoupled, on the weights themselves.
    rule : {"adam", "adambc", "sgd"}
        "adambc" subtracts the noise's variance from V̂ (see `DPAdamBC`); "sgd" steps along the gradient.
    noise_variance : float
        Φ = (σC/L)² >= 0, of the noise in one released entry; for "adambc".
    floor : float
        γ' > 0, the least V̂ - Φ̂, for "adambc".

    Formal guarantees
    -----------------
    The parameters are as private as the gradients: they are a function of private gradients, of options, and of
    projectors that are independent of the data or computed from private gradients.

    Raises
    ------
    ParameterError
        If an option is outside its range, here, in a group, or set later (then at `step`).

    Examples
    --------
    >>> import torch
    >>> from dprmt.training.optimizers import DPGrape
    >>> from dprmt.training.subspaces import Subspaces
    >>> layer = torch.nn.Linear(300, 40)
    >>> optimizer = DPGrape(layer.parameters(), lr=1e-3, subspaces=Subspaces(layer, rank=8, seed=0))
    >>> layer(torch.ones(1, 300)).sum().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["exp_avg"].shape
    torch.Size([8, 40])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        subspaces: Subspaces,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        rule: Rule = "adam",
        noise_variance: float = 0.0,
        floor: float = 1e-12,
    ) -> None:
        self.rule = check_choice("rule", rule, get_args(Rule))
        self.subspaces = subspaces
        options = {"lr": lr, "betas": betas, "eps": eps, "noise_variance": noise_variance, "floor": floor}
        super().__init__(params, {**options, "weight_decay": weight_decay})
        known = {p for group in self.param_groups for p in group["params"]}
        if missing := [layer.name for layer in subspaces if layer.weight not in known]:
            raise ParameterError("params", [tuple(p.shape) for p in known], f"all projected weights, {missing[0]} too")
        for p in known:
            p.projected_grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, projected ones included.

        Parameters
        ----------
        set_to_none : bool
            As in torch.
        """
        super().zero_grad(set_to_none)
        for group in self.param_groups:
            for p in group["params"]:
                p.projected_grad = None

    def check(self) -> None:
        """Raise if the next step cannot be taken, also if a weight has changed its shape; nothing is changed then.

        Raises
        ------
        ParameterError
            Naming the option or the weight.
        """
        super().check()
        self.subspaces.check_shapes()

    def step(self, closure: Any = None) -> Any:
        """Take one step, and count it in the subspaces.

        Parameters
        ----------
        closure : callable, optional
            Clears and computes the gradients and returns the loss.

        Returns
        -------
        float or tensor or None
            The return value of the closure.

        Raises
        ------
        ParameterError
            As in :meth:`check`; nothing is changed then.
        """
        loss = super().step(closure)
        self.subspaces.advance()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """State of the moments and of the subspaces, seed included.

        Returns
        -------
        dict
            As in torch, with "subspaces" besides.
        """
        return {**super().state_dict(), "subspaces": self.subspaces.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`, to continue the saved optimizer.

        Parameters
        ----------
        state_dict : dict
            State of an optimizer of this class with as many parameters in each group and the same subspaces.

        Raises
        ------
        ParameterError
            If it belongs to another optimizer or to other subspaces.
        """
        if "subspaces" not in state_dict:
            raise ParameterError("state_dict", sorted(state_dict), "the state of a DPGrape, with 'subspaces'")
        self._check_saved(state_dict)
        self.subspaces.load_state_dict(state_dict["subspaces"])
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "subspaces"})

    def _move(self, p: Any, θ: torch.Tensor, group: dict[str, Any], Φ: float) -> None:
        layer = self.subspaces.layer(p)
        with full_precision(p.device):
            if layer is None:
                θ.sub_(self._step_of(p, p.grad.to(θ.dtype), group, Φ))
                return
            P, R = self.subspaces.projector(p), p.projected_grad
            if R is None:
                G = layer.orient(p.grad.to(θ.dtype))
                P = self.subspaces.find(p, G) if P is None else P
                R, Φ = P.mT @ G, Φ * self.subspaces.noise_gain(p)
            state = self.state[p]
            if state.get("period", 0) != self.subspaces.period and "exp_avg" in state:
                state["exp_avg"].zero_()
                β1, F = group["betas"][0], self.subspaces.refresh_every
                state["share"] = 1 - β1 * (1 - β1**F) / (F * (1 - β1))
            state["period"] = self.subspaces.period
            layer.orient(θ).addmm_(P, self._step_of(p, R.to(θ.dtype), group, Φ), alpha=-1)

    def _step_of(self, p: Any, g: torch.Tensor, group: dict[str, Any], Φ: float) -> torch.Tensor:
        # What is to be subtracted, in the coordinates of g.
        if self.rule == "sgd":
            return group["lr"] * g
        m, root, rate = self._moments(p, g, group, Φ, corrects=self.rule == "adambc")
        return root.reciprocal_().mul_(m).mul_(rate / self.state[p].get("share", 1.0))


def released_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return what a step releases of a parameter's gradient: for a weight that DP-GRAPE projects, the projection.

    Parameters
    ----------
    parameter : Tensor
        A trained parameter, between the noise and the optimizer's step.

    Returns
    -------
    Tensor or None
        Its noisy gradient, if there is one.

    Examples
    --------
    >>> released_gradient(torch.nn.Parameter(torch.zeros(2))) is None
    True
    """
    projected: torch.Tensor | None = getattr(parameter, "projected_grad", None)
    return parameter.grad if projected is None else projected
