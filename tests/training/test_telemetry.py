"""Telemetry: what it reads is right, is all that it reads, and survives a stop."""

from __future__ import annotations

import copy
import itertools
from functools import partial

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer

from audits.steps import make_private
from dprmt import ParameterError
from dprmt.training.denoising import Denoising, DenoisingStep
from dprmt.training.harness import ItemTask, Observer, read_metrics, run_in_memory, train_task
from dprmt.training.optimizers import DPAdamBC
from dprmt.training.recipes import Settings
from dprmt.training.telemetry import Telemetry

S = 0.3
OPTIMIZERS = {
    "gd": partial(torch.optim.SGD, lr=0.1),
    "gd, decay": partial(torch.optim.SGD, lr=0.1, weight_decay=0.2),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": partial(torch.optim.Adam, lr=0.05, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.05, weight_decay=0.1),
    "adambc": partial(DPAdamBC, lr=0.02, noise_variance=S**2, floor=1e-2, weight_decay=0.1),
}


def noisy_descent(name, seed, steps=30, d=400, every=30, **options):
    """A quadratic under an optimizer: telemetry, the places, the Hessian, the readings of z."""
    generator = torch.Generator().manual_seed(seed)
    H = torch.linspace(0.1, 1.0, d)
    x = torch.nn.Parameter(torch.ones(d))
    optimizer = OPTIMIZERS[name]([x])
    telemetry = Telemetry(optimizer, {"x": x}, S, every=every, window=10, **options)
    places, zs = [], []
    for _ in range(steps):
        places.append(x.detach().clone())
        x.grad = H * x.detach() + S * torch.randn(d, generator=generator)
        optimizer.step()
        zs.append(telemetry.last.get("z"))
    return telemetry, places, H, zs


@pytest.mark.parametrize("name", ["gd", "momentum", "adam", "adambc"])
def test_readings_hold_the_truth(name):
    """Of 40 runs: the interval of the signal holds it in at least 36, as a 95 % one nearly always does; each z is the
    true slope along the update plus a standard normal.
    """
    hits, errors = 0, []
    for seed in range(40):
        telemetry, places, H, zs = noisy_descent(name, seed)
        window = [(H * x).square().sum() / S**2 for x in places[-10:]]
        share, found = float(sum(window) / (sum(window) + 10 * 400)), telemetry.last["signal"]
        assert found["x"] == found["*"]
        hits += found["*"]["low"] <= share <= found["*"]["high"]
        updates = [(x, y - x) for x, y in itertools.pairwise(places)]
        slopes = [-float((H * (x + u)) @ u / (S * u.norm())) for x, u in updates]
        errors += [z - slope for z, slope in zip(zs[1:], slopes, strict=True)]
        assert telemetry.last["z_window"] == pytest.approx(sum(zs[-10:]) / 10**0.5)
    assert hits >= 36
    assert abs(np.mean(errors)) < 3.5 / len(errors) ** 0.5
    assert 0.93 < np.std(errors) < 1.07


def test_pure_noise_is_seen_to_be_pure_noise():
    """The z are standard normal, and no share of signal is claimed."""
    zs, claims = [], 0
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        W = torch.nn.Parameter(torch.zeros(20, 30))
        optimizer = torch.optim.SGD([W], lr=0.1, momentum=0.9)
        telemetry = Telemetry(optimizer, {"W": W}, S, every=20)
        for _ in range(20):
            W.grad = S * torch.randn(20, 30, generator=generator)
            optimizer.step()
            zs.append(telemetry.last.get("z", np.nan))
        claims += telemetry.last["signal"]["*"]["low"] > 0
    zs = np.array(zs)[~np.isnan(zs)]
    assert len(zs) == 30 * 19
    assert abs(zs.mean()) < 3.5 / len(zs) ** 0.5
    assert 0.85 < zs.std() < 1.15
    assert claims <= 2


class Clean(torch.Tensor):
    """A clean gradient: whatever uses it is detected."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"a clean gradient was used by {func}")


def clean(values):
    return torch.Tensor._make_subclass(Clean, values)


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_readings_follow_from_what_was_released_alone(name):
    """A private run's noisy gradients, given to an optimizer that has never seen model or data, give the same readings:
    so nothing, a distinguishing game least of all, finds more in telemetry than in the gradients.
    """
    torch.manual_seed(1)
    model = torch.nn.Linear(6, 4)
    start = {key: p.detach().clone() for key, p in model.named_parameters()}
    step = make_private(
        model,
        OPTIMIZERS[name](model.parameters()),
        norms="exact",
        clipping_norm=1.0,
        noise_multiplier=2.0,
        expected_batch_size=10.0,
    )
    options = {"every": 5, "window": 5}
    telemetry = Telemetry.attach(step.optimizer, model.named_parameters(), **options)
    released, read = [], []
    step.optimizer.original_optimizer.register_step_pre_hook(
        lambda *_: released.append({key: p.grad.clone() for key, p in model.named_parameters()})
    )
    for number in range(25):
        step.accumulate(step.model(torch.randn(8, 6)).square().sum(1), samples=range(8), step=number)
        step.step()
        read.append(telemetry.last)
    alone = {key: torch.nn.Parameter(value) for key, value in start.items()}
    optimizer = OPTIMIZERS[name](alone.values())
    outside = Telemetry(optimizer, alone, 0.2, **options)
    for gradients_, expected in zip(released, read, strict=True):
        for key, p in alone.items():
            p.grad = gradients_[key]
        optimizer.step()
        assert outside.last == expected
    assert {"z", "z_window", "signal"} == read[-1].keys()


def test_before_a_denoiser_it_reads_what_was_released():
    """Energies are those of the noisy gradient."""
    W = torch.nn.Parameter(torch.zeros(40, 60))
    inner = torch.optim.SGD([W], lr=0.1)
    private = DPOptimizer(inner, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10)
    telemetry = Telemetry.attach(private, {"W": W}, every=1, window=2)
    denoiser = DenoisingStep.attach(private, {"W": W}, Denoising())
    noisy = []
    denoiser.observers["test"] = lambda before, after, sigma: noisy.append((before["W"].clone(), after["W"].clone()))
    for _ in range(3):
        W.grad_sample = 5 * torch.ones(30, 40, 60)
        private.step()
        private.zero_grad()
    assert not torch.equal(*noisy[-1])
    energy = sum(float(before.square().sum()) for before, _ in noisy[-2:]) / 0.01
    share = 1 - 2 * 2400 / energy
    assert telemetry.last["signal"]["W"]["value"] == pytest.approx(share, rel=1e-4)
    assert telemetry.last["z"] > 3


def test_whatever_moves_the_parameters_counts():
    _, places, H, _ = noisy_descent("gd", 0)
    x = torch.nn.Parameter(torch.ones(400))
    optimizer = torch.optim.RMSprop([x], lr=0.1)
    other = Telemetry(optimizer, {"x": x}, S, every=1)
    for place in places[:2]:
        with torch.no_grad():
            x.copy_(place)
        x.grad = H * place
        optimizer.step()
        with torch.no_grad():
            x.copy_(places[1])  # whatever moves parameters between two steps counts
    update = places[1] - places[0]
    assert other.last["z"] == pytest.approx(float(-(H * places[1]) @ update / (S * update.norm())), rel=1e-4)


@pytest.mark.parametrize("name", ["momentum", "adambc"])
def test_a_run_in_pieces_reads_like_the_run_in_one(name):
    whole, _, H, zs = noisy_descent(name, 7, steps=26, every=13)
    generator = torch.Generator().manual_seed(7)
    x = torch.nn.Parameter(torch.ones(400))
    optimizer = OPTIMIZERS[name]([x])
    make = partial(Telemetry, sigma=S, every=13, window=10)
    telemetry, read = make(optimizer, {"x": x}), []
    for step in range(26):
        if step in (1, 5, 14):
            state = copy.deepcopy((telemetry.state_dict(), optimizer.state_dict(), x.detach()))
            telemetry.detach()
            x = torch.nn.Parameter(torch.ones(400))
            optimizer = OPTIMIZERS[name]([x])
            telemetry = make(optimizer, {"x": x})
            with torch.no_grad():
                x.copy_(state[2])
            optimizer.load_state_dict(state[1])
            telemetry.load_state_dict(state[0])
        x.grad = H * x.detach() + S * torch.randn(400, generator=generator)
        optimizer.step()
        read.append(telemetry.last.get("z"))
    assert read[0] is zs[0] is None
    assert read[1:] == pytest.approx(zs[1:], rel=1e-6)
    assert telemetry.last == whole.last


def settings(optimizer="adam", steps=12, **changes):
    return Settings(
        privacy={"noise_multiplier": 1.0, "delta": 1e-5},
        optimizer={"name": optimizer, "learning_rate": 0.1, "rank": 2, **changes.pop("optimizer", {})},
        training={"batch_size": 10, "steps": steps},
        **changes,
    )


def task():
    def losses(model, labels):
        return torch.nn.functional.cross_entropy(model(torch.eye(8)[labels]), labels, reduction="none")

    return ItemTask([0, 1, 2, 3] * 10, torch.tensor, losses)


class StopAt(Observer):
    """Ends a run before a step."""

    def __init__(self, step):
        self._step = step

    def before_step(self, run, step):
        if step == self._step:
            run.stop()


def test_a_resumed_run_folder_reads_like_one_that_was_not_stopped(tmp_path):
    """In the metrics, and not under "private"."""
    entries = []
    for folder, stops in (("one", []), ("pieces", [2, 7])):
        for number, stop in enumerate([*stops, None]):
            torch.manual_seed(0)
            result = train_task(
                torch.nn.Linear(8, 4),
                task(),
                settings(telemetry={"every": 3, "window": 3}),
                tmp_path / folder,
                noise_seed=3,
                resume=number > 0,
                observers=[] if stop is None else [StopAt(stop)],
            )
        assert result.finished
        entries.append([entry["telemetry"] for entry in read_metrics(tmp_path / folder) if "telemetry" in entry])
    assert entries[0] == entries[1]
    assert len(entries[0]) == 11
    assert {"signal", "z", "z_window"} <= entries[0][-1].keys()


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, {"z", "signal", "z_window"}),
        ({"optimizer": {"name": "grape"}}, {"signal"}),
        ({"denoising": {"method": "paper"}}, {"z", "signal", "z_window"}),
        ({"optimizer": {"name": "grape"}, "denoising": {"method": "paper"}}, None),
        ({"telemetry": {"on": False}}, None),
        ({"privacy": {"clip_only": True, "delta": 1e-5}}, None),
    ],
)
def test_what_a_run_says_of_itself(changes, keys):
    values = settings().to_dict()
    for section, change in changes.items():
        values[section] = change if section == "privacy" else {**values.get(section, {}), **change}
    with run_in_memory(torch.nn.Linear(8, 4), task(), Settings(**values)) as run:
        last = [record.entry() for record in run.steps()][-1]
    assert ("telemetry" in last) == (keys is not None)
    if keys is not None:
        assert keys == last["telemetry"].keys()


@pytest.mark.parametrize("projector", ["gaussian", "svd"])
def test_signal_of_projected_weights_is_that_of_the_entries_released(projector):
    """In pure noise intervals cover 0 and estimates are near it."""
    values = settings(telemetry={"every": 1, "window": 8}).to_dict()
    values["optimizer"] |= {"name": "grape", "rank": 2, "projector": projector, "refresh_every": 4}
    values["privacy"] |= {"noise_multiplier": 1e6}
    shares = []
    for seed in range(4):  # one run's mean has a standard deviation of 0.2
        with run_in_memory(torch.nn.Linear(8, 4), task(), Settings(**values), noise_seed=seed) as run:
            read = [record.telemetry for record in run.steps()]
        shares += [reading["signal"]["weight"] for reading in read if "signal" in reading]
    assert len(shares) > 16
    assert all(share["low"] == 0 < share["high"] for share in shares)
    assert abs(np.mean([share["value"] for share in shares])) < 0.3


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"every": 0}, "every"),
        ({"window": 1}, "window"),
        ({"sigma": -1.0}, "sigma"),
        ({"named_parameters": {}}, "named_parameters"),
    ],
)
def test_bad_input(options, name):
    x = torch.nn.Parameter(torch.ones(3))
    given = {"named_parameters": {"x": x}, "sigma": 1.0, **options}
    with pytest.raises(ParameterError, match=name):
        Telemetry(torch.optim.SGD([x], lr=0.1), **given)


def test_a_state_of_other_parameters_is_refused():
    telemetry, *_ = noisy_descent("gd", 0, steps=3)
    y = torch.nn.Parameter(torch.ones(3))
    other = Telemetry(torch.optim.SGD([y], lr=0.1), {"y": y}, S)
    with pytest.raises(ParameterError, match="state"):
        other.load_state_dict(telemetry.state_dict())
