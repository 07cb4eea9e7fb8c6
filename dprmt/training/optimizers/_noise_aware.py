"""Shared base of optimizers that use the gradients' noise variance: values for one step, and typed moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from dprmt._validation import ParameterError, check_real

MOMENTS = ("exp_avg", "exp_avg_sq")
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

    def _check_noise_is_known(self) -> None:
        for group in self.param_groups:
            unknown = [p for p in group["params"] if _ANNOUNCED not in self.state.get(p, {})]
            if unknown and group["noise_variance"] is None:
                raise ParameterError("noise_variance", None, "given, or left to make_private, which sets it")

    def _take_noise_variance(self, p: Any, group: Mapping[str, Any]) -> float:
        announced = self.state[p].pop(_ANNOUNCED, None) if p in self.state else None
        return float(group["noise_variance"] if announced is None else announced)

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
        for key, p in self._saved_keys(state_dict):
            state, dtype = state_dict["state"].get(key, {}), torch.promote_types(p.dtype, torch.float32)
            for name in MOMENTS:
                if name in state:
                    self.state[p][name] = state[name].to(device=p.device, dtype=dtype, copy=True)

    def _check_saved(self, state_dict: Mapping[str, Any]) -> None:
        for group in state_dict["param_groups"]:
            missing = [name for name in _CHECKS if name in self.defaults and name not in group]
            if missing:
                allowed = f"of a {type(self).__name__}, whose groups have {', '.join(missing)}"
                raise ParameterError("state_dict", sorted(group), allowed)
            checked(group)

    def _saved_keys(self, state_dict: Mapping[str, Any]) -> Iterable[tuple[Any, Any]]:
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        return zip(keys, [p for group in self.param_groups for p in group["params"]], strict=True)


def checked(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in a group, as plain floats, or a ParameterError."""
    return {name: check(group[name]) for name, check in _CHECKS.items() if name in group}


def checked_betas(betas: Any) -> tuple[float, float]:
    """Check that β₁ and β₂ are in [0, 1) and return them as floats."""
    try:
        β1, β2 = (check_real("betas", β, low=0.0, high=1.0, high_open=True) for β in betas)
    except (TypeError, ValueError):
        raise ParameterError("betas", betas, "a pair of numbers in [0, 1)") from None
    return β1, β2


def _checked_variance(variance: Any) -> float | None:
    return None if variance is None else check_real("noise_variance", variance, low=0.0)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    **{name: partial(check_real, name, low=0.0) for name in ("lr", "eps", "weight_decay")},
    "noise_variance": _checked_variance,
    "betas": checked_betas,
    "floor": partial(check_real, "floor", low=0.0, low_open=True),
}
