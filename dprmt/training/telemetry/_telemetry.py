"""The telemetry hook: statistics of a run from its released gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.optimizers import DPOptimizer

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.spectra import Estimate
from dprmt.training.denoising import gradient_noise_std
from dprmt.training.denoising._step import NamedParameters, checked_parameters
from dprmt.training.optimizers import DPGrape, released_gradient
from dprmt.training.telemetry._displacement import Displacement
from dprmt.training.telemetry._history import ROWS, History, advice
from dprmt.training.telemetry._optimizers import dot, flat, has_known_response, last_update, memory_of, white_noise_step

_POWERS = np.array([[0], [0], [2], [2], [0], [4], [2], [2], [0]])  # powers of s in each of `ROWS`


class Telemetry:
    """Estimate signal and progress of a run from its noisy gradients, by hooks around the optimizer's step.

    :attr:`last` then has a reading: ``z`` at every step, and all keys at every ``every``-th step.

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
    horizon : int
        Approximate number of steps of the run, >= 1.
    untouched : bool
        Whether the optimizer uses the gradient as it was released. With False, for example under a denoiser, only
        energies, slopes and displacements are read.
    displacement : bool
        Whether full readings include the displacement from the present parameters.

    Attributes
    ----------
    last : dict
        Reading of the last step; empty before the first.

        ``z``, ``z_window``
            Slope along the last update, and over the window, in units of its noise (T2). Above 0 the objective still
            falls.
        ``signal``
            Share of the signal in the squared norm over the window, by parameter and ``"*"`` for all, with ``value``,
            ``low`` and ``high`` (T1).
        ``rate_factor``, ``best_rate``
            Factor by which each of the window's updates was too short, and its product with the learning rate (T3).
        ``curvature``
            ``UᵀHU/‖U‖²`` along the window's updates (T3).
        ``change``
            Change of the objective since the third step; with clipping, the work of clipped gradients (T4).
        ``z_displacement``
            Slope from here back to the start of ``change`` (T2).
        ``advice``
            Advice from step 20 on (T6): ``rate`` is "too low", "about right", "too high" or "unknown". ``factor`` is
            how much longer the whole displacement should have been, with ``low`` and ``high``. ``says`` is a sentence.
        ``displacement``
            ``spikes`` of every matrix, their ``share`` of its squared norm, and ``top_over_edge`` (T5).

    Raises
    ------
    ParameterError
        If a parameter of the optimizer has no name or comes twice, or a number is out of range.

    Privacy
    -------
    Covers: all readings, because they are functions of released gradients, parameters and public numbers. Intervals
    are at 95 % each; ``change`` holds at all steps together. Proof: ``docs/theory/telemetry.md``.

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
    >>> found["z_window"] > 2, round(found["signal"]["*"]["value"], 1), round(found["rate_factor"]["low"])
    (True, 0.2, 3)
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters,
        sigma: float | Callable[[], float],
        *,
        every: int = 20,
        window: int = 20,
        horizon: int = 1000,
        untouched: bool = True,
        displacement: bool = True,
    ) -> None:
        self._optimizer = optimizer
        self._groups = _named_groups(optimizer, named_parameters)
        self._sigma = sigma if callable(sigma) else partial(check_real, "sigma", sigma, low=0.0)
        self._sigma()
        self._every, self._step = check_count("every", every), 0
        self._updates: dict[str, torch.Tensor] = {}
        self._pending: NDArray[np.float64] | None = None  # of the last update, whose next gradient is not there yet
        self._noisy: dict[str, torch.Tensor] = {}
        self._now = 0.0  # σ of the step under way
        self._slope = (0.0, 0.0)  # along the displacement, and its standard deviation
        self._known = untouched and has_known_response(optimizer)
        self.last: dict[str, Any] = {}
        parameters = {name: p for name, (p, _) in self._groups.items()}
        self._displacement = Displacement(parameters, _confined(optimizer, parameters)) if displacement else None
        sizes = [p.numel() for p in parameters.values()]
        self._history = History(
            list(parameters),
            sizes,
            check_count("window", window, low=2),
            check_count("horizon", horizon),
            memory_of(optimizer) if self._known else 0.0,
        )
        self._handles = [optimizer.register_step_pre_hook(lambda *_: self._before())]
        self._handles.append(optimizer.register_step_post_hook(lambda *_: self._after()))

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
            As for the class, by name. Attach it before a denoiser, so that it reads the released gradient, and pass
            ``untouched=False``.

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
        >>> for _ in range(3):
        ...     weights.grad_sample = torch.zeros(0, 4, 3)  # Poisson sampling drew nobody: pure noise
        ...     private.step()
        ...     private.zero_grad()
        >>> {"signal", "z", "best_rate", "curvature"} <= telemetry.last.keys()
        True
        """
        gradient_noise_std(dp_optimizer)  # refuses what it does not know
        return cls(
            dp_optimizer.original_optimizer, named_parameters, partial(gradient_noise_std, dp_optimizer), **options
        )

    def detach(self) -> None:
        """Undo it; without effect if it was undone."""
        while self._handles:
            self._handles.pop().remove()

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, so that a run in pieces reads like the run in one.

        Returns
        -------
        dict
            Tensors, numbers and dicts of such, of released values: the last update, and sums.
        """
        return {
            "step": self._step,
            "updates": dict(self._updates),
            "pending": None if self._pending is None else torch.tensor(self._pending),
            "history": self._history.state_dict(),
            "displacement": None if self._displacement is None else self._displacement.state_dict(),
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
        if not state["updates"].keys() <= self._groups.keys():
            raise ParameterError("state", sorted(state["updates"]), f"of the parameters {sorted(self._groups)}")
        self._step = int(state["step"])
        self._updates = {name: u.to(self._groups[name][0].device).clone() for name, u in state["updates"].items()}
        self._pending = None if state["pending"] is None else state["pending"].numpy().copy()
        self._history.load_state_dict(state["history"])
        if self._displacement is not None and state["displacement"] is not None:
            self._displacement.load_state_dict(state["displacement"])

    def _before(self) -> None:
        # The noisy gradient is there, and the parameters are where the last update led.
        with torch.no_grad(), np.errstate(all="ignore"):
            self._look()

    def _look(self) -> None:
        self._now = check_real("sigma", self._sigma(), low=0.0)
        self._step += 1
        self.last = {}
        released = {name: released_gradient(p) for name, (p, _) in self._groups.items()}
        gradients = {name: g for name, g in released.items() if g is not None}
        self._noisy = {name: flat(g) for name, g in gradients.items()}
        if self._now == 0 or len(self._noisy) < len(self._groups):
            self._forget()
            return
        whole = all(g.shape == self._groups[name][0].shape for name, g in gradients.items())
        squares, after = self._products(whole)
        if not math.isfinite(squares.sum()):  # a run that diverges is no reason to end it here
            self._forget()
            return
        if after is not None:
            self._look_back(after)
        if self._displacement is not None and self._history.begins:
            self._displacement.begin()
        self._history.add_energy(squares, self._now, [len(g) for g in self._noisy.values()])
        if self._step % self._every == 0:
            self.last["signal"] = {name: _plain(e) for name, e in self._history.signal_share(by_layer=True).items()}
            if whole and self._displacement is not None:
                self._slope = self._displacement.along(gradients, self._now)
                if self._slope[1] > 0:
                    self.last["z_displacement"] = -self._slope[0] / self._slope[1]
        if whole and self._known:
            return
        self._noisy = {}
        if not whole:
            self._updates = {}
            return
        self._updates = {name: flat(p).clone() for name, (p, _) in self._groups.items()}  # places, until the next one

    def _forget(self) -> None:
        self._updates, self._pending, self._noisy = {}, None, {}

    def _products(self, whole: bool) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        # ‖g̃‖² of every parameter, and g̃ along the last update, read off the device together.
        products = [dot(g, g) for g in self._noisy.values()]
        if not self._updates or not whole:
            return _numbers(products), None
        if not self._known:
            self._updates = {name: flat(p) - self._updates[name] for name, (p, _) in self._groups.items()}
        products += [dot(g, self._updates[name]) for name, g in self._noisy.items()]
        squares, after = _numbers(products).reshape(2, -1)
        return squares, after

    def _look_back(self, after: NDArray[np.float64]) -> None:
        # Along the last update, with the gradient that it led to.
        if self._pending is not None:
            rows = self._pending
            squares = rows[ROWS.index("squared_update")]
            rows[ROWS.index("after")], rows[ROWS.index("variance_after")] = after, self._now**2 * squares
            squared = float(squares.sum())
            if math.isfinite(rows.sum()):
                self._history.add_record(rows)
        else:
            squared = float(_numbers([dot(u, u) for u in self._updates.values()]).sum())
        if squared > 0:
            self.last["z"] = -float(after.sum()) / (self._now * math.sqrt(squared))
            self._history.zs.append(self.last["z"])
        self._pending = None

    def _after(self) -> None:
        # The optimizer has moved.
        with torch.no_grad(), np.errstate(all="ignore"):
            self._look_at_the_update()

    def _look_at_the_update(self) -> None:
        if self._known and self._noisy:
            self._pending = self._taken()
            if self._displacement is not None:
                self._displacement.count(white_noise_step(self._optimizer.param_groups[0]), self._now)
        elif self._displacement is not None:
            self._displacement.count(None, self._now)
        self._noisy = {}
        if self._step % self._every == 0 and self._now > 0:
            self._read()

    def _taken(self) -> NDArray[np.float64]:
        found: list[Any] = []
        for name, (p, group) in self._groups.items():
            g, former = self._noisy[name], self._updates.get(name)
            update, response = last_update(self._optimizer, p, group(), g)
            squared, link = dot(update, update), 0.0 if former is None else dot(update, former)
            if isinstance(response, float):
                sums: tuple[Any, ...] = (p.numel() * response, p.numel() * response**2, response)
            else:
                sums = response.sum(), dot(response, response), response.abs().max()
            total, squares, largest = sums
            found += [dot(g, update), 0.0, total, squared, 0.0, squares, largest, link, squared]
            self._updates[name] = update
        return _numbers(found).reshape(-1, len(ROWS)).T * self._now**_POWERS

    def _read(self) -> None:
        # The full reading.
        if self._history.zs:
            self.last["z_window"] = self._history.mean_z()
        for name, found in self._history.rate().items():
            self.last[name] = _plain(found)
            if name == "rate_factor":
                self.last["best_rate"] = _plain(found.scaled(float(self._optimizer.param_groups[0]["lr"])))
        change = self._history.change()
        if change is not None:
            self.last["change"] = _plain(change)
            self._advise()
        if self._displacement is not None:
            self.last["displacement"] = self._displacement.spectra()

    def _advise(self) -> None:
        # Half of a failure probability of 5 % for the change, at all steps together, half for the slopes. Before the
        # twentieth step the best factor means little.
        if "z_displacement" not in self.last or self._step < 20:
            return
        readings = max(1, self._history.horizon // self._every)
        change = self._history.change(0.025)
        if change is not None:
            self.last["advice"] = advice(*self._slope, change, 0.025 / readings)


def _named_groups(
    optimizer: torch.optim.Optimizer, named_parameters: NamedParameters
) -> dict[str, tuple[torch.Tensor, Callable[[], Mapping[str, Any]]]]:
    # Parameters by name, each with a function that gives its group: loading a state replaces the groups.
    names = {id(p): name for name, p in checked_parameters(named_parameters).items()}
    found: dict[str, tuple[torch.Tensor, Callable[[], Mapping[str, Any]]]] = {}
    for place, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if id(p) not in names:
                allowed = f"names for all, for one of shape {tuple(p.shape)} too"
                raise ParameterError("named_parameters", list(names.values()), allowed)
            found[names[id(p)]] = (p, partial(optimizer.param_groups.__getitem__, place))
    return found


def _confined(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]) -> frozenset[str]:
    # What DP-GRAPE moves within a subspace: so does its noise, which then stands out of white noise all by itself.
    subspaces = optimizer.subspaces if isinstance(optimizer, DPGrape) else ()
    return frozenset(name for name, p in parameters.items() if p in subspaces)


def _numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    # Tensors are read from their device together.
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    read = iter(torch.stack(tensors).to(device="cpu", dtype=torch.float64).tolist()) if tensors else iter(())
    return np.array([next(read) if isinstance(value, torch.Tensor) else value for value in values], dtype=np.float64)


def _plain(found: Estimate) -> dict[str, float]:
    return {"value": float(found.value), "low": float(found.low), "high": float(found.high)}
