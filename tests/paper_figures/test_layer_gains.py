"""Predicted and measured gains of one step: products with the curvature, predictions where they are exact, the page."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from paper_figures.denoising._gains import (
    MOMENTUM,
    STRENGTHS,
    VARIANTS,
    Curvature,
    around,
    expected,
    gain,
    gains,
    measured,
    predicted,
    predicted_by_cosine,
    rho,
)
from paper_figures.denoising._gains_page import with_table
from paper_figures.long_runs._stored import PAGE, read
from paper_figures.long_runs.layer_gains import STUDY


class Made:
    """A gradient of one spike and a curvature that is a sum over entries."""

    def __init__(self, weights: torch.Tensor) -> None:
        self._weights = weights
        u, v = torch.zeros(weights.shape[0]).double(), torch.zeros(weights.shape[1]).double()
        u[0] = v[0] = 1.0
        self.gradient = 5 * torch.outer(u, v)
        self.gradient[1, 1] = 4.0

    def along(self, direction: torch.Tensor) -> float:
        return float((self._weights * direction**2).sum())


def found(curvature: Made, strength: float, draws: int = 10) -> dict[str, object]:
    found = {**measured(curvature, strength, draws=draws), **around(curvature)}  # type: ignore[arg-type]
    return {**found, "expected": expected(curvature, strength)}  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")  # torch's own, in func.jvp
def test_products_are_those_of_the_gauss_newton_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(6, 4, generator=generator), torch.randint(3, (6,), generator=generator)
    weight = torch.randn(3, 4, generator=generator)
    curvature = Curvature(lambda w: (x @ w.T).tanh(), weight, labels)
    jacobian = torch.autograd.functional.jacobian(lambda w: (x @ w.T).tanh(), weight).flatten(2).double()
    p = (x @ weight.T).tanh().softmax(-1).double()
    core = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    whole = (jacobian.mT @ core @ jacobian).mean(0)
    d = torch.randn(3, 4, generator=generator).double()
    assert curvature.along(d) == pytest.approx(float(d.flatten() @ whole @ d.flatten()), rel=1e-5)
    residual = p - torch.nn.functional.one_hot(labels, 3)
    expected = (residual[:, None] @ jacobian)[:, 0].mean(0).view(3, 4)
    torch.testing.assert_close(curvature.gradient.double(), expected, rtol=1e-5, atol=1e-6)


def test_with_one_curvature_everywhere_gains_are_what_cosines_say() -> None:
    seen = found(Made(torch.ones(60, 90).double()), 2.0)
    for variant in VARIANTS[1:]:
        # They differ in what is known exactly and what is a mean over draws.
        assert predicted_by_cosine(seen, variant) == pytest.approx(gain(seen, variant), rel=0.05)
        assert gain(seen, variant) > 1.5


def test_predictions_are_right_where_their_assumptions_hold() -> None:
    """Curvature that depends on the row, the column, or on neither; a wrong curvature around the spike is seen."""
    rows, columns = torch.linspace(0.2, 3.0, 120).double(), torch.linspace(2.0, 0.1, 160).double()
    for weights in (torch.ones(120, 160).double(), rows[:, None].expand(120, 160), torch.outer(rows, columns)):
        seen = found(Made(weights), 2.0)
        for variant in ("gate", "momentum", "momentum gate"):
            assert predicted(seen, variant) == pytest.approx(gain(seen, variant), rel=0.1)
            assert predicted(seen, variant) != pytest.approx(0.8 * gain(seen, variant), rel=0.1)
    wrong = dict(seen) | {"directions": [[9 * value for value in entry] for entry in seen["directions"]]}  # type: ignore[attr-defined]
    assert predicted(wrong, "gate") < 0.8 * gain(seen, "gate")  # type: ignore[operator]
    first, second, *rest = seen["directions"]  # type: ignore[misc]
    wrong = dict(seen) | {"directions": [first, [9 * value for value in second], *rest]}
    assert predicted(wrong, "gate") < 0.95 * predicted(seen, "gate")  # type: ignore[operator]


def test_a_gate_that_stays_closed_gains_nothing_and_is_predicted_to() -> None:
    seen = found(Made(torch.ones(200, 300).double()), 0.5)  # so large that κ = 1.02 is no false alarm
    assert predicted(seen, "gate") == 1.0
    assert gain(seen, "gate") == pytest.approx(1.0, rel=0.01)
    assert predicted(seen, "blend") is None
    assert predicted(seen, "momentum") == pytest.approx((1 + rho(seen)) / (1 + rho(seen) * MOMENTUM**2))


def test_intervals_cover_the_gain_as_often_as_they_say() -> None:
    """Of 24 studies of ten draws at least 85 %; intervals of the leave-one-out values, a ninth as wide, in few."""
    curvature = Made(torch.linspace(0.1, 2.0, 20 * 30).double().view(20, 30))
    truth = measured(curvature, 2.0, 1000, draws=600)  # type: ignore[arg-type]
    seen = [gains(measured(curvature, 2.0, seed)) for seed in range(24)]  # type: ignore[arg-type]
    for variant in ("gate", "momentum gate"):
        held = [one[variant].low <= gain(truth, variant) <= one[variant].high for one in seen]
        assert np.mean(held) >= 0.85


def test_a_direction_that_climbs_gains_nothing() -> None:
    seen = measured(Made(torch.ones(20, 30).double()), 2.0)  # type: ignore[arg-type]
    seen["values"]["gate"] = [[-inner, square, curved] for inner, square, curved in seen["values"]["gate"]]
    assert gain(seen, "gate") == 0.0


def test_what_passes_the_gate_keeps_its_own_length() -> None:
    seen = measured(Made(torch.ones(60, 90).double()), 2.0)  # type: ignore[arg-type]
    lengths = {name: np.array(rows)[:, 1] for name, rows in seen["values"].items()}
    assert np.all(lengths["gate"] < 0.5 * lengths["noisy"])


def test_intervals_hold_the_gain_and_shrink_with_draws() -> None:
    few, many = (found(Made(torch.rand(30, 50).double()), 2.0, draws) for draws in (6, 40))
    for variant, interval in gains(few).items():
        assert interval.low <= gain(few, variant) * 1.05
        assert interval.high >= gain(few, variant) * 0.95
        assert math.log(gains(many)[variant].high / gains(many)[variant].low) < math.log(interval.high / interval.low)


def _stored() -> list[tuple[str, str, dict[str, Any]]]:
    """Matrix, strength and what was found, of both models."""
    models = read(STUDY.file)["models"]
    assert list(models) == ["MiniLM", "SmolLM2"]
    return [
        (name, at, seen)
        for stored in models.values()
        for name, strengths in stored.items()
        for at, seen in strengths.items()
    ]


def test_what_is_known_exactly_of_a_draw_is_not_left_to_chance() -> None:
    """The noisy gradient's own gain is 1 except rounding in ⟨g, W⟩ and gᵀHW, whose mean over draws is not 0."""
    weights = torch.full((60, 90), 1e-6).double()
    weights[0, 0] = 1.0
    curvature = Made(weights)
    for seed in range(3):
        seen = measured(curvature, 2.0, seed)  # type: ignore[arg-type]
        curved = np.array(seen["values"]["noisy"])[:, 2].mean()
        by_chance = (seen["along"] + seen["sigma"] ** 2 * np.mean(seen["traces"])) / curved
        assert gain(seen, "noisy") == pytest.approx(1.0, abs=0.004)
        assert abs(by_chance - 1) > 0.01


def test_the_page_shows_what_is_stored() -> None:
    stored = read(STUDY.file)
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, stored["models"]) == page
    assert 13 * 60 < stored["cpu_seconds"] < 17 * 60  # "some fifteen minutes"
    for name, at, seen in _stored():
        assert float(at) in STRENGTHS, name
        assert {variant: np.shape(rows) for variant, rows in seen["values"].items()} == dict.fromkeys(VARIANTS, (10, 3))


def test_what_the_page_says_of_predictions_is_what_was_found() -> None:
    words, near = " ".join(PAGE.read_text(encoding="utf-8").split()), 0.06
    found = [
        (name, at, interval, p, gain(seen, variant))
        for name, at, seen in _stored()
        for variant, interval in gains(seen).items()
        if (p := predicted(seen, variant)) is not None
    ]
    inside = sum(interval.low <= p <= interval.high for _, _, interval, p, _ in found)
    far = [(name, at) for name, at, _, p, measured in found if abs(p / measured - 1) >= near]
    assert far == [("head", "0.7")]
    assert f"{inside} of {len(found)} lie within the interval, {len(found) - 1} within 6 %" in words


def test_what_the_page_says_of_gains_is_what_was_found() -> None:
    words = " ".join(PAGE.read_text(encoding="utf-8").split())
    at_two = [(seen, variant) for _, at, seen in _stored() if at == "2" for variant in ("gate", "blend")]
    cosine = max(predicted_by_cosine(*one) for one in at_two)
    least, *_, most = sorted(gain(*one) for one in at_two)
    assert (
        f"is up to {cosine:.0f} times the noisy one's decreases the loss by .{100 * least:.0f} to .{100 * most:.0f} of"
        in words
    )
    cosine, of = max(
        (predicted_by_cosine(seen, "momentum gate"), gain(seen, "momentum gate")) for *_, seen in _stored()
    )
    assert f"up to {cosine:.0f} times as large, and the gain {_short(of)}." in words
    special = ("head", "self_attn.v_proj, LoRA B")
    plain = [rho(seen) for name, _, seen in _stored() if name not in special]
    assert f"({min(plain):.4f} to {max(plain):.2f} in matrices that are".replace("0.", ".") in words
    curved = [seen["directions"][0][0] / (seen["along"] / seen["square"]) for *_, seen in _stored()]
    assert len(curved) == 16
    assert f"by {min(curved):.2f} to {max(curved):.2f} times" in words
    ahead = [(name, seen) for name, _, seen in _stored() if gains(seen)["momentum gate"].low > 1]
    assert sorted(name for name, _ in ahead) == sorted(special * 2)
    least, *_, most = sorted(gain(seen, "momentum gate") for _, seen in ahead)
    sizes = sorted(rho(seen) for _, seen in ahead)
    assert f"ρ is {sizes[0]:.1f} to {sizes[-1]:.1f}, does".replace("0.", ".") in words
    assert f"by {least:.2f} to {most:.2f} times, and nowhere as much as the plain momentum" in words
    for *_, seen in _stored():
        assert gain(seen, "momentum gate") < gain(seen, "momentum")
        assert gain(seen, "momentum blend") < gain(seen, "momentum")
        assert gain(seen, "momentum") == pytest.approx((1 + rho(seen)) / (1 + rho(seen) * MOMENTUM**2), rel=0.005)


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")
