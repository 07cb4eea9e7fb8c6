"""Telemetry: statistics of a private run from released values, at no privacy cost.

`Telemetry` hooks into an optimizer and reads the signal by layer and the slope along each update, with intervals.
``docs/theory/telemetry.md`` has the proofs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer

import dprmt.training._needs_train  # noqa: F401
from dprmt._validation import ParameterError, check_count, check_real
from dprmt.spectra import signal_energy_over_steps
from dprmt.training.denoising import gradient_noise_std
from dprmt.training.denoising._step import NamedParameters, named_of
from dprmt.training.optimizers import released_gradient

__all__ = ["Telemetry"]


class Telemetry:
    """Estimate signal and progress of a run from its noisy gradients, by a hook before the optimizer's step.

    :attr:`last` then has a reading: ``z`` at every step, and all keys at every ``every``-th step. It needs one copy
    of the trained parameters.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Optimizer whose ``.grad`` is the noisy gradient when its step begins.
    named_parameters : mapping, or iterable of (str, Tensor)
        Names for all parameters of the optimizer.
    sigma : float or callable
        Standard deviation σ_DP·C/L > 0 of the noise in one entry of ``.grad``, with L the *expected* batch size; or a
        function that returns it.
    every : int
        Steps between full readings, >= 1.
    window : int
        Steps covered by a full reading, >= 2, typically at least ``every``.

    Attributes
    ----------
    last : dict
        Reading of the last step; empty before the first.

        ``z``, ``z_window``
            Slope along the last update, and over the window, in units of its noise (T2). Without a slope they are
            standard normal; far above 0 the objective still falls, far below 0 it rises and the learning rate is too
            high. They are missing under DP-GRAPE, which releases projections.
        ``signal``
            Share of the signal in the squared norm over the window, by parameter and ``"*"`` for all, with ``value``,
            ``low`` and ``high`` (T1).

    Raises
    ------
    ParameterError
        If a parameter of the optimizer has no name or comes twice, or a number is out of range.

    Privacy
    -------
    Covers: all readings, because they are functions of released gradients, parameters and public numbers. Intervals
    are at 95 % each. Proof: ``docs/theory/telemetry.md``.

    Examples
    --------
    f(x) = ½‖x‖² at a rate that is too low:

    >>> x = torch.nn.Parameter(torch.ones(1000))
    >>> optimizer = torch.optim.SGD([x], lr=0.05)
    >>> generator = torch.Generator().manual_seed(0)
    >>> telemetry = Telemetry(optimizer, {"x": x}, sigma=0.5, every=10)
    >>> for _ in range(40):
    ...     x.grad = x.detach() + 0.5 * torch.randn(1000, generator=generator)
    ...     optimizer.step()
    >>> found = telemetry.last
    >>> found["z_window"] > 2, round(found["signal"]["*"]["value"], 1)
    (True, 0.2)
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters,
        sigma: float | Callable[[], float],
        *,
        every: int = 20,
        window: int = 20,
    ) -> None:
        self._parameters = named_of((p for group in optimizer.param_groups for p in group["params"]), named_parameters)
        self._sigma = sigma if callable(sigma) else partial(float, check_real("sigma", sigma, low=0.0))
        self._every, self._step = check_count("every", every), 0
        self._places: dict[str, torch.Tensor] = {}  # parameters at the last step
        self._sizes: list[int] = []  # released entries by parameter
        self._energies: deque[list[float]] = deque(maxlen=check_count("window", window, low=2))  # ‖g̃‖²/s²
        self._zs: deque[float] = deque(maxlen=window)
        self.last: dict[str, Any] = {}
        self._handle = optimizer.register_step_pre_hook(lambda *_: self._read())

    @classmethod
    def attach(cls, dp_optimizer: DPOptimizer, named_parameters: NamedParameters, **options: Any) -> Telemetry:
        """Attach telemetry to an Opacus optimizer, or to ``make_private(...).optimizer``.

        Parameters
        ----------
        dp_optimizer : opacus.optimizers.DPOptimizer
            As ``PrivacyEngine.make_private`` returns it. σ is read from it at every step.
        named_parameters : mapping, or iterable of (str, Tensor)
            As for the class.
        **options
            As for the class, by name. Attach it before a denoiser, so that it reads the released gradient.

        Returns
        -------
        Telemetry
            Remove it with `detach`.

        Raises
        ------
        ParameterError
            As for the class or `dprmt.training.denoising.gradient_noise_std`.

        Examples
        --------
        >>> weights = torch.nn.Parameter(torch.zeros(4, 3))
        >>> inner = torch.optim.SGD([weights], lr=0.1)
        >>> private = DPOptimizer(inner, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10)
        >>> telemetry = Telemetry.attach(private, {"weights": weights}, every=1)
        >>> for _ in range(2):
        ...     weights.grad_sample = torch.zeros(0, 4, 3)  # Poisson sampling drew nobody: pure noise
        ...     private.step()
        ...     private.zero_grad()
        >>> sorted(telemetry.last)
        ['signal', 'z', 'z_window']
        """
        gradient_noise_std(dp_optimizer)  # refuses what it does not know
        sigma = partial(gradient_noise_std, dp_optimizer)
        return cls(dp_optimizer.original_optimizer, named_parameters, sigma, **options)

    def detach(self) -> None:
        """Undo it; without effect if it was undone."""
        self._handle.remove()

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, so that a run in pieces reads like the run in one.

        Returns
        -------
        dict
            Tensors, numbers and dicts of such, of released values.
        """
        return {
            "step": self._step,
            "places": dict(self._places),
            "sizes": list(self._sizes),
            "energies": torch.tensor(list(self._energies), dtype=torch.float64),
            "zs": torch.tensor(list(self._zs), dtype=torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint.

        Parameters
        ----------
        state : mapping
            A result of `state_dict`, for telemetry of the same parameters.

        Raises
        ------
        ParameterError
            If it belongs to other parameters.
        """
        places, sizes = state["places"], state["sizes"]
        if not places.keys() <= self._parameters.keys() or len(sizes) not in (0, len(self._parameters)):
            raise ParameterError("state", sorted(places), f"of the parameters {sorted(self._parameters)}")
        self._step, self._sizes = int(state["step"]), list(sizes)
        self._places = {name: place.to(self._parameters[name].device).clone() for name, place in places.items()}
        for kept, values in ((self._energies, state["energies"]), (self._zs, state["zs"])):
            kept.clear()
            kept.extend(values.tolist())

    def _read(self) -> None:
        # The noisy gradient is there, and the parameters are where the last update led.
        s = check_real("sigma", self._sigma(), low=0.0)
        self._step += 1
        self.last = {}
        released = {name: released_gradient(p) for name, p in self._parameters.items()}
        noisy = {name: _flat(g) for name, g in released.items() if g is not None}
        if s == 0 or len(noisy) < len(self._parameters):
            self._places = {}
            return
        whole = all(g.numel() == self._parameters[name].numel() for name, g in noisy.items())
        updates = self._places if whole else {}
        products = [_dot(g, g) for g in noisy.values()]
        for name, place in updates.items():
            update = _flat(self._parameters[name]) - place
            products += [_dot(noisy[name], update), _dot(update, update)]
        numbers = torch.stack(products).to(device="cpu", dtype=torch.float64).tolist()  # one transfer
        squares, slopes, lengths = numbers[: len(noisy)], numbers[len(noisy) :: 2], numbers[len(noisy) + 1 :: 2]
        if not math.isfinite(math.fsum(squares)):  # a run that diverges is no reason to end it here
            self._places = {}
            return
        if math.fsum(lengths) > 0:
            self.last["z"] = -math.fsum(slopes) / (s * math.sqrt(math.fsum(lengths)))
            self._zs.append(self.last["z"])
        sizes = [g.numel() for g in noisy.values()]
        if sizes != self._sizes:  # where the numbers of released entries change, a window begins
            self._sizes = sizes
            self._energies.clear()
        self._energies.append([square / s**2 for square in squares])
        self._places = {name: _flat(p).clone() for name, p in self._parameters.items()} if whole else {}
        if self._step % self._every == 0:
            self.last["signal"] = self._signal_shares()
            if self._zs:
                self.last["z_window"] = math.fsum(self._zs) / math.sqrt(len(self._zs))

    def _signal_shares(self) -> dict[str, dict[str, float]]:
        # ‖g‖²/(‖g‖² + ds²) over the window.
        total, n = np.sum(self._energies, axis=0), len(self._energies)
        d = np.array([*self._sizes, sum(self._sizes)], dtype=np.float64)
        found = signal_energy_over_steps(np.append(total, total.sum()), d, n)
        with np.errstate(divide="ignore"):
            ends = [np.clip(end / (end + n * d), -1.0, 1.0) for end in (found.value, found.low, found.high)]
        named = zip([*self._parameters, "*"], *(end.tolist() for end in ends), strict=True)
        return {name: {"value": value, "low": low, "high": high} for name, value, low, high in named}


def _flat(values: torch.Tensor) -> torch.Tensor:
    return values.detach().reshape(-1)


def _dot(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    # In single precision or better.
    if first.dtype.itemsize < 4 or first.dtype != second.dtype:
        first, second = first.float(), second.float()
    return torch.dot(first, second)
