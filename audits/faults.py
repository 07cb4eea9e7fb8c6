"""Six bugs that such code has had elsewhere, planted from outside, each with a game that must find it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from audits.canaries import bias_only, rank_one
from audits.game import Factory, Game
from audits.settings import LONG, PROBES, chi_square_law, parallel
from dprmt.training.norms import ProbeGenerator


class _Faulty:
    """A private step that does something else as well."""

    def __init__(self, private: Any) -> None:
        self._private = private

    def __getattr__(self, name: str) -> Any:
        return getattr(self._private, name)


class SharedProbes(ProbeGenerator):
    """The same probes for every layer of the same size."""

    def shared(self, **options: Any) -> torch.Tensor:
        """See `ProbeGenerator`."""
        return super().shared(**options | {"layer": "all"})

    def per_sample(self, samples: Sequence[Any] | torch.Tensor, **options: Any) -> torch.Tensor:
        """See `ProbeGenerator`."""
        return super().per_sample(samples, **options | {"layer": "all"})


class FreshProbes(ProbeGenerator):
    """Other probes for every micro-batch of a step."""

    __slots__ = ("micro_batch",)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.micro_batch = 0

    def shared(self, **options: Any) -> torch.Tensor:
        """See `ProbeGenerator`."""
        return super().shared(**options | {"step": options["step"] * 1000 + self.micro_batch})


class _Counting(_Faulty):
    def __init__(self, private: Any, probes: FreshProbes) -> None:
        super().__init__(private)
        self._probes = probes

    def accumulate(self, losses: torch.Tensor, **options: Any) -> None:
        self._private.accumulate(losses, **options)
        self._probes.micro_batch += 1

    def step(self) -> None:
        self._private.step()
        self._probes.micro_batch = 0


class _RealisedSize(_Faulty):
    count = 0

    def accumulate(self, losses: torch.Tensor, **options: Any) -> None:
        self.count += len(losses)
        self._private.accumulate(losses, **options)

    def step(self) -> None:
        self._private.optimizer.expected_batch_size = max(self.count, 1)
        self._private.step()
        self.count = 0


class _QuietLayer(_Faulty):
    def __init__(self, private: Any) -> None:
        super().__init__(private)
        optimizer = private.optimizer
        noisy = optimizer.add_noise

        def add_noise() -> None:
            first = optimizer.params[0]
            clean = first.summed_grad.clone()
            noisy()
            first.grad = clean / optimizer.expected_batch_size

        optimizer.add_noise = add_noise


class _LongBias(_Faulty):
    total: torch.Tensor | None = None

    def __init__(self, private: Any) -> None:
        super().__init__(private)
        (layer,) = (module for module in private.model.modules() if getattr(module, "bias", None) is not None)
        layer.register_forward_hook(self._keep)

    def _keep(self, module: torch.nn.Module, args: Any, output: torch.Tensor) -> None:
        self._output = output

    def accumulate(self, losses: torch.Tensor, **options: Any) -> None:
        capture = self._private._capture
        capture._must_be_zero = torch.zeros(len(losses), dtype=torch.bool)  # a backward pass that adds nothing
        (of_output,) = torch.autograd.grad(losses.sum(), self._output, retain_graph=True)
        capture._must_be_zero = None
        gradient = of_output.flatten(0, -2).sum(0)
        self.total = gradient if self.total is None else self.total + gradient
        self._private.accumulate(losses, **options)

    def step(self) -> None:
        (bias,) = (value for value in self._private.optimizer.params if value.ndim == 1)
        if self.total is not None:
            bias.summed_grad = self.total
        self._private.step()
        self.total = None


class _NoiseTwice(_Faulty):
    def accumulate(self, losses: torch.Tensor, **options: Any) -> None:
        self._private.accumulate(losses, **options)
        optimizer = self._private.optimizer
        for value in optimizer.params:
            std = optimizer.noise_multiplier * optimizer.max_grad_norm
            value.summed_grad += std * torch.randn(value.shape, dtype=value.dtype)


def planted() -> dict[str, Game]:
    """Name of the bug and the game that finds it."""
    everything = {"everything": True, "tokens": 6, "secret": False}
    double, canary = (6, 6), rank_one((6,), LONG)
    # Pairs that share a micro-batch, and with the canary before them no longer do.
    pairs = [canary, canary, canary.scaled(-1.0), canary.scaled(-1.0)]
    against = [canary.scaled(-1.0)] * 4
    shared = parallel("hutchinson", double, generator=lambda: SharedProbes(1), **everything)
    plain = parallel("exact")
    return {
        "one probe for all layers": Game("hutchinson", shared, rank_one(double, LONG), law=chi_square_law(2 * PROBES)),
        "fresh probes per micro-batch": Game(
            "hutchinson", _fresh(everything), canary, others=pairs * 20, micro_batch=2, canary_first=True
        ),
        "realised batch size": Game(
            "exact", _with(parallel("exact", size=4.0), _RealisedSize), canary, others=against, expected_batch_size=4.0
        ),
        "a layer without noise": Game("exact", _with(parallel("exact", double), _QuietLayer), rank_one(double, LONG)),
        "the bias is not clipped": Game("exact", _with(parallel("exact", bias=True), _LongBias), bias_only(6, LONG)),
        "noise in every micro-batch": Game("exact", _with(plain, _NoiseTwice), canary, others=against, micro_batch=1),
    }


def repaired(game: Game, bug: str) -> Game:
    """The same game without its bug: it must be won, or the bug is not what was found."""
    everything = {"everything": True, "tokens": 6, "secret": False}
    sound = {
        "one probe for all layers": parallel("hutchinson", (6, 6), **everything),
        "fresh probes per micro-batch": parallel("hutchinson", **everything),
        "realised batch size": parallel("exact", size=4.0),
        "a layer without noise": parallel("exact", (6, 6)),
        "the bias is not clipped": parallel("exact", bias=True),
        "noise in every micro-batch": parallel("exact"),
    }
    return replace(game, factory=sound[bug])


def _with(factory: Factory, fault: type[Any]) -> Factory:
    def make(noise_multiplier: float) -> tuple[torch.nn.Module, Any]:
        model, private = factory(noise_multiplier)
        return model, fault(private)

    return make


def _fresh(options: dict[str, Any]) -> Factory:
    def make(noise_multiplier: float) -> tuple[torch.nn.Module, Any]:
        probes = FreshProbes(1)
        model, private = parallel("hutchinson", generator=lambda: probes, **options)(noise_multiplier)
        return model, _Counting(private, probes)

    return make
