"""Small parameters are read together, as arrays of NumPy: what is read is the same as one by one, on tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dprmt.training.optimizers import DPAdamBC
from dprmt.training.telemetry import Telemetry, _history, _vectors

SHAPES = {"a": (3, 4), "large": (70, 300), "b": (5,), "double": (4, 2), "c": (6, 2)}
OPTIMIZERS: dict[str, Any] = {
    "gd": lambda groups: torch.optim.SGD(groups, lr=0.1, weight_decay=0.1),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, weight_decay=0.1),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "adambc": lambda groups: DPAdamBC(groups, lr=0.01, noise_variance=0.09, floor=1e-2),
    "another": lambda groups: torch.optim.RMSprop(groups, lr=0.01),
}


def run(name: str, late: bool = False, steps: int = 12, size: float = 1.0) -> tuple[Telemetry, list[Any]]:
    """Readings of two groups of parameters; ``late``: one of them takes a step on its own before."""
    generator = torch.Generator().manual_seed(0)
    dtypes = {"double": torch.float64}
    named = {
        key: torch.nn.Parameter(torch.ones(shape, dtype=dtypes.get(key, torch.float32)))
        for key, shape in SHAPES.items()
    }
    first = [named[key] for key in ("a", "large", "b", "double")]
    optimizer = OPTIMIZERS[name]([{"params": first}, {"params": [named["c"]], "lr": 0.02}])
    if late:
        named["b"].grad = torch.ones(5)
        optimizer.step()
    telemetry = Telemetry(optimizer, named, 0.3, every=4, window=4, horizon=steps)
    read = []
    for _ in range(steps):
        for p in named.values():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.grad = (size * (p.detach() + 0.3 * noise)).to(p.dtype)
        optimizer.step()
        read.append(telemetry.last)
    return telemetry, read


def flat(value: Any, path: str = "") -> dict[str, float]:
    if isinstance(value, dict):
        return {key: v for k, part in value.items() for key, v in flat(part, f"{path}/{k}").items()}
    return {} if isinstance(value, str) else {path: float(value)}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_together_they_read_as_one_by_one(name: str, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry, together = run(name, late)
    assert sorted(len(pack.names) for pack in telemetry._packs) == [1, 1, 1, 2]  # a and b; other dtype, group, size
    monkeypatch.setattr(_vectors, "_SMALL", 0)
    telemetry, alone = run(name, late)
    assert len(telemetry._packs) == len(SHAPES)
    for first, second in zip(together, alone, strict=True):
        assert flat(first) == pytest.approx(flat(second), rel=2e-4, abs=1e-6)
    assert list(together[3]["signal"]) == list(alone[3]["signal"])


def test_a_state_goes_on_in_other_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry, _ = run("adam")
    state = telemetry.state_dict()
    assert {name: tuple(u.shape) for name, u in state["updates"].items()} == {
        name: (torch.Size(shape).numel(),) for name, shape in SHAPES.items()
    }
    monkeypatch.setattr(_vectors, "_SMALL", 0)
    other, _ = run("adam", steps=1)
    other.load_state_dict(state)
    for name, u in other.state_dict()["updates"].items():
        assert torch.equal(u, state["updates"][name])


def test_the_first_update_shares_nothing_with_one_before_it() -> None:
    telemetry, _ = run("adam", steps=1)
    assert telemetry._pending is not None
    assert (telemetry._pending[_history.ROWS.index("link")] == 0).all()
    telemetry, _ = run("adam", steps=2)
    assert telemetry._pending is not None
    assert (telemetry._pending[_history.ROWS.index("link")] != 0).all()
