r"""DP-AdamBC: Adam whose second moment estimate is freed of the variance that the noise adds.

The noise part of the second moment
-----------------------------------
Let the gradients be ``g̃_s = g_s + z_s`` with independent noise of mean 0 and variance Φ_s per entry. Then ``v_t = Σ_s
w_s g̃_s²`` with weights ``w_s = (1 - β₂)β₂^{t-s}`` has the expectation ``Σ_s w_s(E g_s² + Φ_s)``. So ``v̂_t = v_t/(1 -
β₂^t)`` has the expectation for clean gradients plus

    ``Φ̂_t = φ_t/(1 - β₂^t),  φ_t = β₂φ_{t-1} + (1 - β₂)Φ_t,  φ_0 = 0``.

If Φ changes, subtract this average of all Φ_s with the weights of v̂, not the latest Φ_t. For constant Φ, Φ̂_t is Φ,
and the result is Algorithm 2 as printed.

A denoised layer
----------------
`dprmt.spectra.denoise` (Eq. 10 of arXiv:2510.01137v3) either does not change the layer ``Y = X + Δ``, with Φ per
entry, or replaces it by ``cŶ`` with Ŷ the shrunk matrix and ``c = ‖Y‖/‖Ŷ‖``. In the second case 0 is subtracted, for
two reasons:

- Ŷ has less energy than the signal, not more. For large matrices the Frobenius shrinker satisfies ``‖Ŷ - X‖² = ‖X‖² -
  ‖Ŷ‖²`` (Eqs. 4-6 and 9): the error is matched by lost signal. So the excess ``(E‖Ŷ‖² - ‖X‖²)/(mn)``, which is Φ for
  Y, is at most 0 for Ŷ.
- The factor c multiplies both m̂ and √v̂, and cancels from the update while it is steady and the floor is not active.
  It does add the noise energy, ``E‖cŶ‖² = E‖Y‖² = ‖X‖² + mnΦ``, but in proportion to Ŷ², where the estimated signal
  is. Subtracting Φ from every entry would push most of the layer to the floor, where steps are longest.

This holds for sums over the entries. Entries with almost no signal keep an uncorrected share of the estimation error,
of the order of ``rank·(1/m + 1/n)·c²Φ``, and others lose some. For a signal near the detection threshold, where c is
large, this is of the order of Φ, and such layers are scaled more as in DP-Adam.

References
----------
Algorithm 2 (appendix A) of the heavy-tail class imbalance article on DP-AdamBC. Tang et al., arXiv:2312.14334. Kingma
and Ba, arXiv:1412.6980. Loshchilov and Hutter, arXiv:1711.05101 for the weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from dprmt._validation import ParameterError, check_real

_ANNOUNCED = "next_noise_variance"


class NoiseAwareOptimizer(Optimizer):  # type: ignore[misc]  # torch is skipped by mypy
    """An optimizer with a noise variance Φ per parameter group, and other ones for single parameters and one step."""

    def __init__(self, params: Iterable[Any], options: Mapping[str, Any]) -> None:
        super().__init__(params, checked(options))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with its own options where it names them.

        Parameters
        ----------
        param_group : dict
            "params" and any of the options of the class.

        Raises
        ------
        ParameterError
            If an option is outside its range; nothing is added then.
        """
        super().add_param_group({**param_group, **checked({**self.defaults, **param_group})})

    def set_noise_variance(self, values: Mapping[Any, float]) -> None:
        """Set the noise variance of single parameters for the next step only.

        Use it if a layer changes between noise and optimizer. A denoiser passes 0 for a replaced layer and omits the
        others, as derived at the head of `dprmt.training.optimizers._adambc`.

        Parameters
        ----------
        values : mapping of parameter to float
            Φ_t >= 0 by parameter, instead of ``group["noise_variance"]``. The average Φ̂ includes it.

        Raises
        ------
        ParameterError
            If a key is not a parameter of this optimizer or a value is negative or not finite; nothing is set then.

        Examples
        --------
        >>> import torch
        >>> from dprmt.spectra import denoise
        >>> from dprmt.training.optimizers import DPAdamBC
        >>> weights = torch.nn.Parameter(torch.zeros(16, 64))
        >>> optimizer = DPAdamBC([weights], lr=0.1, noise_variance=0.01, floor=1e-4)
        >>> noise = torch.Generator().manual_seed(0)
        >>> weights.grad = torch.ones(16, 64) + 0.1 * torch.randn(16, 64, generator=noise)
        >>> denoised = denoise(weights.grad, sigma=0.1)
        >>> if denoised is not weights.grad:
        ...     weights.grad = denoised
        ...     optimizer.set_noise_variance({weights: 0.0})
        >>> optimizer.step()
        >>> optimizer.state[weights]["noise_average"]
        0.0
        """
        known = {p for group in self.param_groups for p in group["params"]}
        for p, value in values.items():
            if not isinstance(p, torch.Tensor) or p not in known:
                raise ParameterError("values", type(p).__name__, "keyed by parameters of this optimizer")
            check_real("noise_variance", value, low=0.0)
        for p, value in values.items():
            self.state[p][_ANNOUNCED] = float(value)

    def check(self) -> None:
        """Raise if the next step cannot be taken; nothing is changed then.

        Raises
        ------
        ParameterError
            If an option has been set to something outside its range, a noise variance is missing, or a gradient is
            sparse.
        """
        for group in self.param_groups:
            group.update(checked(group))
            for p in group["params"]:
                if group["noise_variance"] is None and _ANNOUNCED not in self.state.get(p, {}):
                    raise ParameterError("noise_variance", None, "given, or left to make_private, which sets it")
                if p.grad is not None and p.grad.layout != torch.strided:
                    allowed = "a dense tensor (sparse embedding gradients carry no noise)"
                    raise ParameterError("grad", p.grad.layout, allowed)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step with the released gradients.

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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.check()
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    Φ = self.state.get(p, {}).pop(_ANNOUNCED, group["noise_variance"])
                    if p.grad is not None or getattr(p, "projected_grad", None) is not None:
                        θ = p.to(torch.promote_types(p.dtype, torch.float32))
                        if group["weight_decay"] != 0:
                            θ.mul_(1 - group["lr"] * group["weight_decay"])
                        self._move(p, θ, group, Φ)
                        if θ is not p:
                            p.copy_(θ)
        return loss

    def _move(self, p: Any, θ: torch.Tensor, group: dict[str, Any], Φ: float) -> None:
        # Moves θ, the parameter in single precision or better, by its gradient with noise of variance Φ.
        raise NotImplementedError

    def _moments(
        self, p: Any, g: torch.Tensor, group: dict[str, Any], Φ: float, *, corrects: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        # The first moment, the root of the second, corrected for the noise or with ε, and the rate without bias.
        state = self.state[p]
        if "step" not in state:
            state.update(step=0, noise_average=0.0, exp_avg=torch.zeros_like(g), exp_avg_sq=torch.zeros_like(g))
        (β1, β2), m, v = group["betas"], state["exp_avg"], state["exp_avg_sq"]
        state["step"] += 1
        state["noise_average"] = β2 * state["noise_average"] + (1 - β2) * Φ
        debias = 1 - β2 ** state["step"]
        m.lerp_(g, 1 - β1)
        v.mul_(β2).addcmul_(g, g, value=1 - β2)
        root = v.div(debias)
        if corrects:
            limits = torch.finfo(v.dtype)
            floor = min(max(group["floor"], limits.tiny), limits.max)
            root.sub_(state["noise_average"] / debias).clamp_min_(floor).sqrt_()
        else:
            root.sqrt_().add_(group["eps"])
        return m, root, group["lr"] / (1 - β1 ** state["step"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of `state_dict`, to continue the saved optimizer.

        Parameters
        ----------
        state_dict : dict
            State of an optimizer of this class with as many parameters in each group.

        Raises
        ------
        ParameterError
            If it belongs to another optimizer, or holds options outside their range.
        """
        self._check_saved(state_dict)
        super().load_state_dict(state_dict)
        # torch has cast the moments to the dtype of the parameters; take them as they were saved.
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        mine = [p for group in self.param_groups for p in group["params"]]
        for key, p in zip(keys, mine, strict=True):
            state, dtype = state_dict["state"].get(key, {}), torch.promote_types(p.dtype, torch.float32)
            for name in ("exp_avg", "exp_avg_sq"):
                if name in state:
                    self.state[p][name] = state[name].to(device=p.device, dtype=dtype, copy=True)

    def _check_saved(self, state_dict: Mapping[str, Any]) -> None:
        groups = state_dict["param_groups"]
        saved, sizes = ([len(group["params"]) for group in some] for some in (groups, self.param_groups))
        if saved != sizes:
            raise ParameterError("state_dict", saved, f"of groups of {sizes} parameters")
        for group in groups:
            if missing := [name for name in self.defaults if name not in group]:
                allowed = f"of a {type(self).__name__}, whose groups have {', '.join(missing)}"
                raise ParameterError("state_dict", sorted(group), allowed)
            checked(group)


def checked(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in a group, as plain floats, or a ParameterError."""
    names = [name for name in ("lr", "eps", "weight_decay", "noise_variance", "floor") if name in group]
    given = {name: group[name] for name in names if name != "noise_variance" or group[name] is not None}
    found: dict[str, Any] = dict.fromkeys(names)
    found |= {name: check_real(name, value, low=0.0, low_open=name == "floor") for name, value in given.items()}
    if "betas" in group:
        try:
            β1, β2 = (check_real("betas", β, low=0.0, high=1.0, high_open=True) for β in group["betas"])
        except (TypeError, ValueError):
            raise ParameterError("betas", group["betas"], "a pair of numbers in [0, 1)") from None
        found["betas"] = β1, β2
    return found


class DPAdamBC(NoiseAwareOptimizer):
    r"""Adam with the variance of the DP noise subtracted from its second moment (Algorithm 2, DP-AdamBC).

    With g̃_t the noisy gradient, all operations entry by entry:

    - ``m_t = β₁m_{t-1} + (1 - β₁)g̃_t``, ``v_t = β₂v_{t-1} + (1 - β₂)g̃_t²``,
    - ``m̂_t = m_t/(1 - β₁^t)``, ``v̂_t = v_t/(1 - β₂^t)``,
    - ``θ_t = (1 - ηλ)θ_{t-1} - η m̂_t/√max(v̂_t - Φ̂_t, γ')``.

    Φ̂_t is the average of the noise variances so far with the weights of v̂_t, derived at the head of this module.
    There is no ε.

    Parameters
    ----------
    params : iterable of tensors, of (name, tensor) pairs or of dicts
        Tensors of real floating dtype to optimize. Dicts are parameter groups and may override every option below.
    lr : float
        Learning rate η >= 0.
    betas : pair of float
        β₁, β₂ in [0, 1).
    noise_variance : float, optional
        Variance Φ = (σC/L)² >= 0 of the noise in one entry of ``p.grad``, with L the divisor of the clipped sum.
        `dprmt.make_private` sets it. Under Poisson sampling L is the expected batch size, for Opacus times the
        accumulated iterations; with ``loss_reduction="sum"`` it is 1. A schedule sets ``group["noise_variance"]``
        before each step, as schedulers set "lr".
    floor : float
        Floor γ' > 0 of the second moment, in the units of Φ: no entry moves by more than η|m̂|/√γ'.
    weight_decay : float
        λ >= 0, decoupled as in AdamW.

    Raises
    ------
    ParameterError
        If an option is outside its range, here, in a group, or set later (then at `step`).

    Formal guarantees
    -----------------
    The parameters are as private as the gradients, because they are a function of the gradients and of the options.
    The options must not depend on the private data, as the size of a Poisson batch does.

    Notes
    -----
    State per parameter: "step", "exp_avg" (m), "exp_avg_sq" (v) and "noise_average" (φ, a float). v is in float32 for
    parameters of lower precision, also after `load_state_dict`, since v̂ - Φ is a small difference of large numbers.
    Parameters without a gradient are skipped; sparse gradients raise an error.

    References
    ----------
    Algorithm 2, line 12 (appendix A), of the heavy-tail class imbalance article on DP-AdamBC.

    Examples
    --------
    Gradients of 1 and of 0.1 under noise of variance 1: Adam would divide both by much the same, √2 and √1.01.

    >>> import torch
    >>> from dprmt.training.optimizers import DPAdamBC
    >>> noise = torch.Generator().manual_seed(0)
    >>> weights = torch.nn.Parameter(torch.zeros(2, 10_000))
    >>> optimizer = DPAdamBC([weights], lr=0.01, betas=(0.9, 0.99), noise_variance=1.0, floor=1e-3)
    >>> for _ in range(200):
    ...     weights.grad = torch.tensor([[1.0], [0.1]]) + torch.randn(2, 10_000, generator=noise)
    ...     optimizer.step()
    >>> v = optimizer.state[weights]["exp_avg_sq"] / (1 - 0.99**200)
    >>> [round(mean, 1) for mean in (v - 1.0).mean(1).sqrt().tolist()]
    [1.0, 0.1]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        *,
        noise_variance: float | None = None,
        floor: float,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "noise_variance": noise_variance, "floor": floor}
        super().__init__(params, {**options, "weight_decay": weight_decay})

    def _move(self, p: Any, θ: torch.Tensor, group: dict[str, Any], Φ: float) -> None:
        m, root, rate = self._moments(p, p.grad.to(θ.dtype), group, Φ)
        θ.addcdiv_(m, root, value=-rate)
