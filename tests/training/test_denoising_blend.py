"""The blended denoiser in training: what it hands on, its memory over steps and starts, what DP-AdamBC is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from dprmt import ParameterError  # noqa: E402
from dprmt.spectra import BlendMemory, blend_layers, bulk_edge, denoise_layers  # noqa: E402
from dprmt.training.denoising import Denoising, DenoisingStep  # noqa: E402
from dprmt.training.harness import Run, read_metrics, train  # noqa: E402
from dprmt.training.harness._checkpoint import load_checkpoint  # noqa: E402
from dprmt.training.optimizers import DPAdamBC  # noqa: E402
from tests.training.tiny_recipe import STEPS, recipe_in, write_data  # noqa: E402

SHAPES = {"wide": (12, 40), "tall": (40, 12), "bias": (12,)}
SIGMA = 0.25


def gradients(seed: int, strength: float = 0.7) -> dict[str, Any]:
    """A fixed clean gradient of full rank with one stronger direction, in fresh noise."""
    clean, noise = (torch.Generator().manual_seed(number) for number in (99, seed))
    result = {}
    for name, shape in SHAPES.items():
        result[name] = SIGMA * torch.randn(shape, generator=noise, dtype=torch.float64)
        if len(shape) == 2:
            left, right = (torch.randn(side, generator=clean, dtype=torch.float64) for side in shape)
            signal = torch.outer(left / left.norm(), right / right.norm())
            signal += 0.1 * torch.randn(shape, generator=clean, dtype=torch.float64) / shape[0] ** 0.5
            result[name] += strength * bulk_edge(shape, SIGMA) * signal
    return result


def step_with(options: Denoising, optimizer: Any = None) -> tuple[DenoisingStep, dict[str, Any]]:
    parameters = {name: torch.nn.Parameter(torch.zeros(s, dtype=torch.float64)) for name, s in SHAPES.items()}
    inner = optimizer(parameters.values()) if optimizer else None
    return DenoisingStep(parameters, SIGMA, options, optimizer=inner), parameters


def given(step: DenoisingStep, parameters: dict[str, Any], grads: dict[str, Any]) -> dict[str, Any]:
    for name, parameter in parameters.items():
        parameter.grad = grads[name].clone()
    step()
    return {name: parameter.grad for name, parameter in parameters.items()}


@pytest.mark.parametrize("weights", ["noisy", "least-squares"])
def test_gradients_are_those_of_blend_layers_with_one_memory_over_the_steps(weights: Any) -> None:
    step, parameters = step_with(Denoising("blend", memory=0.8, layer_weights=weights))
    memory = BlendMemory(0.8)
    for number in range(4):
        noisy = gradients(number)
        found = given(step, parameters, noisy)
        expected, report = blend_layers(noisy, SIGMA, layer_weights=weights, memory=memory)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], rtol=0, atol=0)
        assert step.last_report.layers == report
    assert step.memory.state_dict() == memory.state_dict()
    alone = blend_layers(noisy, SIGMA, layer_weights=weights)[0]
    gated = denoise_layers(noisy, SIGMA, 1.02)[0]
    for other in (alone, gated):
        assert not torch.allclose(found["wide"], other["wide"])


def test_without_memory_every_step_is_by_itself() -> None:
    step, parameters = step_with(Denoising("blend", memory=0.0))
    assert step.memory is None
    given(step, parameters, gradients(0))
    found = given(step, parameters, gradients(1))
    torch.testing.assert_close(found["tall"], blend_layers(gradients(1), SIGMA)[0]["tall"], rtol=0, atol=0)


def test_other_methods_remember_nothing() -> None:
    assert Denoising("paper").new_memory() is None
    assert Denoising("none").new_memory() is None


def test_adambc_is_told_the_share_of_the_noise_that_is_left() -> None:
    def optimizer(parameters: Any) -> DPAdamBC:
        return DPAdamBC(parameters, lr=0.1, noise_variance=SIGMA**2, floor=1e-8)

    step, parameters = step_with(Denoising("blend"), optimizer)
    told: dict[str, float] = {}
    step._optimizer.set_noise_variance = lambda values: told.update({id(p): v for p, v in values.items()})
    given(step, parameters, gradients(0))
    layers = step.last_report.layers
    assert 0 < layers["wide"].noisy_share < 1  # else this would show nothing
    for name, parameter in parameters.items():
        assert told[id(parameter)] == pytest.approx((layers[name].noisy_share * SIGMA) ** 2, rel=1e-12)
    assert told[id(parameters["bias"])] == SIGMA**2


@pytest.mark.parametrize(
    ("name", "value"), [("memory", 1.0), ("memory", -0.1), ("memory", "long"), ("layer_weights", "equal")]
)
def test_bad_options(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=name):
        Denoising("blend", **{name: value})
    with pytest.raises(ParameterError, match=f"denoising.{name}"):
        recipe_in(tmp_path, **{f"denoising.{name}": value})


GRAPE = {"model.finetune": "full", "model.lora": None, "optimizer.name": "grape", "optimizer.rank": 3}


@pytest.mark.parametrize("changes", [{}, GRAPE], ids=["lora", "grape"])
def test_the_memory_outlives_the_process(changes: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    write_data(tmp_path)
    blend = {"denoising.method": "blend", "denoising.memory": 0.5, "training.checkpoint_every": 2}
    recipe = recipe_in(tmp_path, **blend, **changes)
    real, begins = Run._one_step, []

    def step(self: Any, number: int, batch: list[int]) -> Any:
        begins.append((self.attempt, number, self.prepared.denoising_memory.state_dict()))
        if (self.attempt, number) == (1, 4):
            raise RuntimeError("power cut")
        return real(self, number, batch)

    monkeypatch.setattr(Run, "_one_step", step)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe, tmp_path / "run")
    saved = load_checkpoint(tmp_path / "run")
    assert train(recipe, tmp_path / "run", resume=True).finished
    steps = {(attempt, number): state for attempt, number, state in begins}
    assert saved["denoising"] == steps[1, 3] == steps[2, 3]
    assert steps[1, 1] != steps[1, 3] != steps[1, 4]
    matrices = [entry["matrices"] for entry in read_metrics(tmp_path / "run")]
    assert len(matrices) == STEPS
    assert min(matrices) > 0
