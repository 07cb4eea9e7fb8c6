"""Where a run started, how far it is from there, and what stands out of the noise in between."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Set
from typing import Any

import torch

from dprmt.spectra import DisplacementNoise, displacement_spectrum


class Displacement:
    """``x_t - x_0`` of parameters. x_0 lies in a mapped file, not in memory.

    ``confined``: names of parameters whose noise is confined to a subspace, so that their spectra mean nothing.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], confined: Set[str] = frozenset()) -> None:
        self._parameters, self._confined = dict(parameters), confined
        self._start = {name: _outside_memory(p.detach()) for name, p in self._parameters.items()}
        self._begin: dict[str, torch.Tensor] = {}
        self.noise: DisplacementNoise | None = DisplacementNoise()

    def begin(self) -> None:
        """Start slopes of the displacement from the present parameters."""
        self._begin = {name: _outside_memory(p.detach()) for name, p in self._parameters.items()}

    def along(self, noisy: Mapping[str, torch.Tensor], sigma: float) -> tuple[float, float]:
        """Return the slope of the objective along the way since `begin`, and its standard deviation (T2); 0 before."""
        inner = squared = 0.0
        for name, start in self._begin.items():
            way = self._since(start, name)
            inner += float((way * noisy[name].detach()).sum(dtype=torch.float64))
            squared += float(way.square().sum(dtype=torch.float64))
        return inner, sigma * math.sqrt(squared)

    def spectra(self) -> dict[str, dict[str, float]]:
        """Return spikes of every matrix, their share, and the largest singular value over the edge of the noise.

        Of matrices whose shorter side is 2 to 4096.
        """
        sigma = None if self.noise is None else self.noise.sigma
        found = {}
        for name, p in self._parameters.items():
            if name not in self._confined and p.ndim == 2 and 2 <= min(p.shape) <= 4096:
                moved = self._since(self._start[name], name)
                if bool(torch.isfinite(moved).all()):
                    seen = displacement_spectrum(moved, sigma)
                    found[name] = {"spikes": seen.spikes, "share": seen.share, "top_over_edge": seen.top_over_edge}
        return found

    def count(self, step: tuple[float, float] | None, sigma: float) -> None:
        """Count the noise of a step, of a rate and a momentum; None if its noise is not white."""
        if step is None or self.noise is None:
            self.noise = None
        else:
            self.noise.add(step[0], sigma, momentum=step[1])

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints that x_0 cannot restore."""
        return {"noise": None if self.noise is None else self.noise.state, "begin": dict(self._begin)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.noise = None if state["noise"] is None else DisplacementNoise(state["noise"])
        self._begin = {name: _outside_memory(start) for name, start in state.get("begin", {}).items()}

    def _since(self, start: torch.Tensor, name: str) -> torch.Tensor:
        p = self._parameters[name].detach()
        return p.float() - start.to(p.device).float()


def _outside_memory(values: torch.Tensor) -> torch.Tensor:
    # On pages of a file that has no name any more: the system may drop them from memory whenever it likes.
    try:
        handle, path = tempfile.mkstemp()
    except OSError:
        return values.clone()
    try:
        os.posix_fallocate(handle, 0, max(values.numel(), 1) * values.element_size())
        kept = torch.from_file(path, shared=True, size=values.numel(), dtype=values.dtype).view(values.shape)
    except (OSError, RuntimeError, AttributeError):  # no space, or no such call on this system
        return values.clone()
    finally:
        os.close(handle)
        os.unlink(path)
    return kept.copy_(values.cpu())
