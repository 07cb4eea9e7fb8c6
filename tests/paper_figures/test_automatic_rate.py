"""The rate that sets itself: its derivation, its problems' gradients, its rule, and the page beside the stored runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dprmt._files import read_lines
from paper_figures._pieces import raw_file
from paper_figures._reproduction import RESULTS
from paper_figures.automatic_rate import findings, regrets, text
from paper_figures.automatic_rate._cells import CELLS, NOTHING, Cell
from paper_figures.automatic_rate._problems import EXPECTED, Adapted, Logistic, Nothing, Perceptron, Problem, Quadratic
from paper_figures.automatic_rate._rules import Fixed, Retroactive
from paper_figures.automatic_rate._runs import LANES, piece
from paper_figures.automatic_rate._simulation import simulate
from paper_figures.automatic_rate._sums import common_rate
from paper_figures.long_runs.automatic_rate import PAGE, stored


def some(rows: int = 60, columns: int = 12, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return 2 * torch.randn(rows, columns, generator=generator), torch.arange(rows) % classes


PROBLEMS: dict[str, Callable[[], Any]] = {
    "logistic": lambda: Logistic(some(), some()),
    "perceptron": lambda: Perceptron(some(), some(), width=5),
    "LoRA": lambda: Adapted(some(), some()),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_clipped_sums_are_those_of_gradients_one_by_one(name: str) -> None:
    problem: Any = PROBLEMS[name]()
    generator = torch.Generator().manual_seed(1)
    x = [w + 0.3 * torch.randn(w.shape, generator=generator) for w in problem.start(2, generator)]
    rows, labels = problem._train
    found = problem.clipped(x, torch.arange(len(labels)))
    for lane in range(2):
        total = [torch.zeros_like(w[lane]) for w in x]
        lengths = []
        for row, label in zip(rows, labels, strict=True):
            weights = [w[lane : lane + 1].clone().requires_grad_() for w in x]
            loss = torch.nn.functional.cross_entropy(problem._logits(weights, row[None])[0], label[None])
            gradients = torch.autograd.grad(loss, weights)
            lengths.append(math.sqrt(sum(float(g.square().sum()) for g in gradients)))
            for kept, g in zip(total, gradients, strict=True):
                kept += g[0] * min(1.0, 1 / lengths[-1]) / EXPECTED
        assert max(lengths) > 1 > min(lengths)  # some are clipped, some are not
        for kept, part in zip(total, found, strict=True):
            torch.testing.assert_close(part[lane], kept, rtol=1e-4, atol=1e-7)


def test_projected_gradients_are_those_of_the_projected_weights() -> None:
    problem = Perceptron(some(), some(), width=5, rank=4)
    generator = torch.Generator().manual_seed(1)
    x = problem.start(1, generator)
    problem.begin(0, generator)
    low = torch.zeros(1, 4, 5, requires_grad=True)
    head = x[1].clone().requires_grad_()
    moved = [x[0] + problem.lift([low, head])[0], head]
    rows, labels = problem._train
    loss = torch.nn.functional.cross_entropy(problem._logits(moved, rows[:1])[0], labels[:1])
    one, two = torch.autograd.grad(loss, [low, head])
    length = float((one.square().sum() + two.square().sum()).sqrt())
    found = problem.clipped(x, torch.tensor([0]))
    torch.testing.assert_close(found[0], one / max(1.0, length) / EXPECTED, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(problem.project(problem.lift([low + 1, head]))[0].shape, low.shape)


def test_rescaling_is_another_rate_to_first_order() -> None:
    """R1: the derivative along an eigenvector, by differences of gradient descent itself."""
    h = np.array([1e-4, 0.003, 0.03, 0.2])
    α, t, step = 0.9, 30, 1e-4

    def way(rate: float) -> Any:
        x = np.zeros_like(h)
        for _ in range(t):
            x = x - rate * (1 + h * x)
        return x

    measured = (way(α * math.exp(step)) - way(α * math.exp(-step))) / (2 * step) / way(α)
    stated = t * α * h * (1 - α * h) ** (t - 1) / (1 - (1 - α * h) ** t)
    np.testing.assert_allclose(measured, stated, rtol=1e-5)
    assert stated[0] > 0.99  # on its way
    assert stated[-1] < 0.05  # has arrived


def test_the_fixed_point_on_a_quadratic() -> None:
    """R2: where z is ω along a ray, and what of the best decrease is had there."""
    rng = np.random.default_rng(0)
    h, g, Δ, s, ω = rng.uniform(0.1, 1, 50), rng.standard_normal(50), rng.standard_normal(50), 0.3, 0.6
    Δ -= g
    best, z0 = -(g @ Δ) / (Δ @ (h * Δ)), -(g @ Δ) / (s * np.linalg.norm(Δ))
    c = best * (1 - ω / z0)
    assert -((g + c * h * Δ) @ Δ) / (s * np.linalg.norm(Δ)) == pytest.approx(ω)
    decrease = [k * (g @ Δ) + k**2 * (Δ @ (h * Δ)) / 2 for k in (c, best)]
    assert decrease[0] / decrease[1] == pytest.approx(1 - (ω / z0) ** 2)


def errors(gain: Any, steps: int, z0: float = 6.0, ω: float = 0.6) -> Any:
    """log(c/c_ω) of 4,000 rules on the ray of R2, with the exact slope and drawn noise."""
    rng = np.random.default_rng(0)
    e = np.zeros(4000)
    for t in range(1, steps + 1):
        z = z0 - (z0 - ω) * np.exp(e) + rng.standard_normal(len(e))
        e = e + gain(t) * (z - ω) / 2
    return e


def test_the_gain() -> None:
    """R3: the variance under a constant gain and under the best falling one; half and twice of it are rejected."""
    κ, γ = 2.7, 0.05
    constant = errors(lambda t: γ, 300).var() / (γ / (4 * κ * (2 - γ * κ)))
    falling = errors(lambda t: min(0.2, 1 / (κ * t)), 400).var() * 400 * 5.4**2
    assert 0.9 < constant < 1.1
    assert 0.85 < falling < 1.15
    assert errors(lambda t: min(0.2, 0.3 / (κ * t)), 400).var() * 400 * 5.4**2 > 2  # aκ < ½
    assert np.isnan(errors(lambda t: 0.9, 300)).any() or errors(lambda t: 0.9, 300).std() > 0.3  # γ > 4/(z_0 - ω)


def test_clipping_hides_overshoot() -> None:
    """R4: at the loss's lowest point along a run's displacement the clipped field still falls, by the covariance."""
    from scipy.optimize import brentq
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows, y = np.c_[digits.data / 16, np.ones(len(digits.target))], digits.target

    def per_sample(W: Any) -> tuple[Any, Any]:
        logits = rows @ W
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        return p, np.linalg.norm(rows, axis=1) * np.linalg.norm(p, axis=1)

    W = np.zeros((65, 10))
    for _ in range(60):
        p, lengths = per_sample(W)
        W -= 3.0 * rows.T @ (p * np.minimum(1, 1 / lengths)[:, None]) / len(y)

    def slopes(c: float) -> tuple[Any, Any]:
        p, lengths = per_sample(c * W)
        return ((rows @ W) * p).sum(1), np.minimum(1, 1 / lengths)

    lowest = brentq(lambda c: slopes(c)[0].sum(), 0.1, 20.0)
    a, w = slopes(lowest)
    assert -(w * a).sum() == pytest.approx(-len(y) * np.cov(w, a, bias=True)[0, 1], rel=1e-6)
    assert -(w * a).sum() > 0
    assert brentq(lambda c: (slopes(c)[0] * slopes(c)[1]).sum(), 0.1, 20.0) > 1.05 * lowest


def literal(problem: Problem, sigma: float, steps: int, rate: float, seed: int) -> tuple[torch.Tensor, float]:
    """The page's rule, line by line, on plain steps and without samples."""
    generator = torch.Generator().manual_seed(seed)
    (x,) = problem.start(1, generator)
    x0, l, n, sign = x.clone(), math.log(rate), 0, 1
    for t in range(1, steps + 1):
        torch.rand(0, generator=generator)
        (g,) = problem.clipped([x], torch.zeros(0))
        g = g + sigma * torch.randn(g.shape, generator=generator)
        if t > 1:
            Δ = x - x0
            z = -float((g * Δ).sum()) / (sigma * float(Δ.norm()))
            r = z - 0.6 * min(1, 2 * t / steps)
            if (r > 0) != (sign > 0):
                n, sign = n + 1, -sign
            D = min(3.5, 5 / (1 + n)) * min(1.0, max(-1.0, r / 2))
            l, x = l + D, x0 + math.exp(D) * Δ
        x = x - math.exp(l) * min(1, (1 - (t - 1) / steps) / 0.05) * g
    return x, math.exp(l)


def test_the_rule_is_the_page_s() -> None:
    problem, steps = Quadratic(50), 20
    found = simulate(problem, "gd", 40.0, steps, 3, {"r": (Retroactive, [1e-3])})
    x, rate = literal(problem, 40.0 / EXPECTED, steps, 1e-3, 3)
    assert found["r"]["rate"][0] == pytest.approx(rate, rel=1e-3)
    assert found["r"]["objective"][0] == pytest.approx(float(problem.scores([x])["objective"]), rel=1e-3)


def test_on_noise_alone_it_says_that_it_does_not_know() -> None:
    runs = [simulate(Nothing(), "gd", 1.0, 60, seed, {"r": (Retroactive, [1e-3, 1e-1])})["r"] for seed in range(8)]
    zs = np.array([run["z"] for run in runs])
    assert (abs(zs) < 4 / math.sqrt(30)).all()
    assert np.mean([np.log(np.array(run["rate"]) / run["rates"]) for run in runs]) < -1  # a factor of e
    signal = simulate(Quadratic(200), "gd", 0.5, 60, 0, {"r": (Retroactive, [1e-3, 1e-1])})["r"]
    assert min(signal["z"]) > 0.5


def test_lanes_do_not_see_each_other() -> None:
    problem = PROBLEMS["logistic"]()
    alone = simulate(problem, "adam", 1.0, 8, 0, {"f": (Fixed, [0.01])})["f"]["objective"]
    beside = simulate(problem, "adam", 1.0, 8, 0, {"r": (Retroactive, [9.0]), "f": (Fixed, [5.0, 0.01])})
    assert beside["f"]["objective"][1] == pytest.approx(alone[0], rel=1e-4)


def test_regret_of_made_up_runs() -> None:
    cell = CELLS[0]
    fixed = {"rates": [0.1, 1.0], "objective": [0.5, None]}
    ours = {"objective": [0.55, 0.4, None], "z": [0.6, 0.6, 0.1]}
    values = {piece(cell, 0): {"start": {"objective": 1.0}, "fixed": fixed, "retroactive": ours}}
    assert regrets(values, cell, "retroactive") == pytest.approx([10.0, -20.0, 100.0])


def test_the_common_rate_is_that_of_problems_that_can_be_learnt() -> None:
    """Where every rate ends above the start a regret has the wrong sign: such a problem would choose the worst one."""
    first, second = [cell for cell in CELLS if cell.optimizer == "gdm"][:2]
    start = {"objective": 1.0}
    values: dict[str, Any] = {
        piece(first, 1000): {"start": start, "fixed": {"rates": [0.1, 1.0], "objective": [0.5, 0.9]}},
        piece(second, 1000): {"start": start, "fixed": {"rates": [0.1, 1.0], "objective": [1.01, 9.0]}},
    }
    assert common_rate(values, "gdm") == 0


def test_the_page_has_what_the_stored_runs_say() -> None:
    known, page = stored(), PAGE.read_text(encoding="utf-8")
    assert text(known) in page
    assert all(sentence in page for sentence in findings(known))
    assert ("is not offered" in page) == any("it is missed" in sentence for sentence in findings(known))
    assert all(run["retroactive"]["objective"] for name, run in known.items() if not name.endswith("1000"))


def test_the_page_says_what_whole_models_would_cost() -> None:
    """47 runs of a seed, at the cost of steps that are stored for another study."""
    page = PAGE.read_text(encoding="utf-8")
    runs = sum(len(rates) for _, rates in LANES.values())
    costs = {line["name"]: line["cpu_seconds"] for line in read_lines(raw_file(RESULTS, "telemetry", "small"))}
    assert f"A seed of one problem is {runs} runs of 100 steps" in page
    for name, steps, said in (
        ("minilm-sst2, batch 400, seed 0", 60, "takes {step:.1f} s of a core and the {runs} runs {hours:.1f} hours"),
        ("smollm2-e2e, batch 8, seed 0", 20, "takes {step:.1f} s for a step of 8 rows, and {hours:.1f} hours"),
    ):
        step = costs[name] / steps
        assert said.format(step=step, runs=runs, hours=100 * runs * step / 3600) in page


def test_stored_noise_alone_is_known_for_what_it_is() -> None:
    known = stored()
    runs = [known[name] for cell in NOTHING for seed in range(5) if (name := piece(cell, seed)) in known]
    assert runs
    assert all(z < 0.5 for run in runs for z in run["retroactive"]["z"])


def test_names_of_problems_differ() -> None:
    assert len({piece(cell, 0) for cell in CELLS}) == len(CELLS)
    assert piece(Cell("a", "gd", 0.5), 1) == "a; gd; 0.5; 100; seed 1"
