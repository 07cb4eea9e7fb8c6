"""Spectra of whole checkpoints: how arrays are read, differences, adapters, shards, and what has no spectrum."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dprmt.cli import main
from dprmt.spectra import denoise, spectra_of

RNG = np.random.default_rng(0)


def test_one_rule_reads_experts_kernels_and_matrices() -> None:
    arrays = {
        "experts": RNG.standard_normal((8, 24, 48)),
        "conv2d": RNG.standard_normal((16, 8, 3, 3)),
        "conv1d": RNG.standard_normal((16, 12, 5)),
        "linear": RNG.standard_normal((20, 30)),
        "bias": np.ones(4),
        "state.0.exp_avg": np.ones((3, 4)),
        "half": np.where(np.eye(3) > 0, np.nan, 1.0),
        "whole": np.arange(4).reshape(2, 2),
    }
    found = spectra_of(arrays, sigma=1.0)
    assert [name for name in found if name.startswith("experts")] == [f"experts[{i}]" for i in range(8)]
    shapes = {name: spectrum.shape for name, spectrum in found.items()}
    assert (shapes["experts[3]"], shapes["conv2d"], shapes["conv1d"]) == ((24, 48), (16, 72), (16, 60))
    assert (found.kinds["experts[0]"], found.kinds["conv1d"], found.kinds["linear"]) == ("stack", "kernel", "matrix")
    assert found.skipped == {
        "bias": "has shape (4,)",
        "state.0.exp_avg": "is an optimizer's state",
        "half": "has entries that are not finite",
        "whole": "holds int64 numbers",
    }
    assert list(spectra_of(arrays, sigma=1.0, param="state.0.exp_avg")) == ["state.0.exp_avg"]
    assert len(found.rows()) == len(found) + len(found.skipped)
    denoised = denoise(arrays["experts"], 1.0)  # eight matrices there, too
    assert denoised.shape == (8, 24, 48)


def test_a_difference_is_taken_by_name() -> None:
    before = {"w": RNG.standard_normal((30, 40)), "gone": np.ones((2, 2)), "v": np.ones((2, 3))}
    step = 0.1 * RNG.standard_normal((30, 40))
    found = spectra_of({"w": before["w"] + step, "new": np.ones((2, 2)), "v": np.ones((3, 2))}, minus=before)
    np.testing.assert_allclose(found["w"].singular_values, np.linalg.svdvals(step), rtol=1e-9)
    assert found["w"].sigma == pytest.approx(0.1, rel=0.05)
    assert found.skipped == {
        "new": "is not in the file that is subtracted",
        "v": "has shape (3, 2), (2, 3) in the file that is subtracted",
    }


def test_adapters_are_products_with_their_scale(tmp_path: Path) -> None:
    a, b = torch.randn(4, 50, dtype=torch.float64), torch.randn(30, 4, dtype=torch.float64)
    save_file({"q.lora_A.weight": a, "q.lora_B.weight": b}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 12}))
    found = spectra_of(tmp_path / "adapter_model.safetensors")
    expected = np.linalg.svdvals(3 * (b @ a).numpy())
    (name,) = found
    assert (name, found.kinds[name], found[name].shape) == ("q.lora_B·A.weight", "product", (30, 50))
    np.testing.assert_allclose(found[name].singular_values[:4], expected[:4], rtol=1e-12)
    assert not found[name].singular_values[4:].any()
    assert found[name].fit.verdict == "no noise: rank 4 of 30 to rounding"
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 12, "use_rslora": True}))
    rank_stable = spectra_of(tmp_path)[name]
    np.testing.assert_allclose(rank_stable.singular_values[0], 2 * expected[0], rtol=1e-12)


def test_shards_several_files_and_orders(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    save_file({"a": torch.eye(3)}, tmp_path / "model-1.safetensors")
    save_file({"b": 5 * torch.eye(4), "c": torch.ones(2)}, tmp_path / "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    assert list(spectra_of(index, sigma=0.1)) == ["a", "b"]
    index_of_another = tmp_path / "evil.index.json"
    index_of_another.write_text(json.dumps({"weight_map": {"a": "../model-1.safetensors"}}))
    assert main(["spectrum", str(index_of_another), "--sigma", "1"]) == 2
    capsys.readouterr()
    files = [str(tmp_path / f"model-{i}.safetensors") for i in (1, 2)]
    page = tmp_path / "table.html"
    shown = ["--sort", "top/edge", "--top", "1", "--html", str(page), "--json"]
    assert main(["spectrum", *files, "--sigma", "0.1", *shown]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [matrix["name"] for matrix in document["matrices"]] == ["model-2.safetensors:b"]
    assert "model-2.safetensors:b" in page.read_text(encoding="utf-8")
    assert "has shape (2,)" in page.read_text(encoding="utf-8")
    save_file({"a": 2 * torch.eye(3)}, tmp_path / "before.safetensors")
    minus = ["--minus", str(tmp_path / "before.safetensors")]
    assert main(["spectrum", str(index), "--sigma", "0.1", "--param", "?", *minus]) == 0
    assert "skipped, is not in the file that is subtracted: 2 (b, c)" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_8_bit_number_is_read_as_torch_does(kind: torch.dtype, tmp_path: Path) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(kind)
    finite = numbers[torch.isfinite(numbers.float())][:192].reshape(12, 16)
    save_file({"x": finite}, tmp_path / "x.safetensors")
    found = spectra_of(tmp_path / "x.safetensors", sigma=1.0)
    np.testing.assert_allclose(found["x"].singular_values, np.linalg.svdvals(finite.double().numpy()))
