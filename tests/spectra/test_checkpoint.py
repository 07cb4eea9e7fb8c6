"""Spectra of whole checkpoints: how arrays are read, differences, adapters, shards, and what has no spectrum."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from scipy import io as scipy_io

from dprmt._validation import ParameterError
from dprmt.spectra import denoise, noisy_spectrum, spectra_of
from dprmt.spectra._tensor_files import UnreadableFileError, open_tensors
from tests.conftest import Ask, Say

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
    there = "in the file that is subtracted"
    assert found.skipped == {"new": f"is not {there}", "v": f"has shape (3, 2), (2, 3) {there}"}


@pytest.mark.parametrize(("first", "second"), [("encoder.model.", ""), ("", "module.")])
def test_a_prefix_of_all_names_does_not_matter(first: str, second: str) -> None:
    after = {f"{first}layer.{i}.weight": RNG.standard_normal((3, 5)) for i in range(3)}
    after["head.weight"] = np.ones((2, 2))
    before = {f"{second}layer.{i}.weight": 0 * after[f"{first}layer.{i}.weight"] for i in range(3)}
    found = spectra_of(after, minus=before)
    assert list(found) == [f"{first}layer.{i}.weight" for i in range(3)]
    assert found.skipped == {"head.weight": "is not in the file that is subtracted"}
    assert not spectra_of({"a": np.ones((2, 2))}, minus={"b": np.ones((2, 2))})


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
    for more, factor in (({"use_rslora": True}, 2), ({"alpha_pattern": {"q": 4, "k": 9}}, 1 / 3)):
        config = {"r": 4, "lora_alpha": 12, **more}
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
        found = spectra_of(tmp_path)[name].singular_values[0]
        np.testing.assert_allclose(found, factor * expected[0], rtol=1e-12)


def test_shards_several_files_and_orders(say: Say, ask: Ask, refusal: Say, tmp_path: Path) -> None:
    save_file({"a": torch.eye(3)}, tmp_path / "model-1.safetensors")
    save_file({"b": 5 * torch.eye(4), "c": torch.ones(2)}, tmp_path / "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    assert list(spectra_of(index, sigma=0.1)) == ["a", "b"]
    index_of_another = tmp_path / "evil.index.json"
    index_of_another.write_text(json.dumps({"weight_map": {"a": "../model-1.safetensors"}}))
    refusal("spectrum --sigma 1", index_of_another)
    files, page = [tmp_path / f"model-{i}.safetensors" for i in (1, 2)], tmp_path / "table.html"
    document = ask("spectrum --sigma 0.1 --sort top/edge --top 1", *files, "--html", page)
    assert [matrix["name"] for matrix in document["matrices"]] == ["model-2.safetensors:b"]
    assert "model-2.safetensors:b" in page.read_text(encoding="utf-8")
    assert "has shape (2,)" in page.read_text(encoding="utf-8")
    save_file({"a": 2 * torch.eye(3)}, tmp_path / "before.safetensors")
    said = say("spectrum --sigma 0.1 --param ?", index, "--minus", tmp_path / "before.safetensors")
    assert "skipped, is not in the file that is subtracted: 2 (b, c)" in said


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_8_bit_number_is_read_as_torch_does(kind: torch.dtype, tmp_path: Path) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(kind)
    finite = numbers[torch.isfinite(numbers.float())][:192].reshape(12, 16)
    save_file({"x": finite}, tmp_path / "x.safetensors")
    np.testing.assert_array_equal(open_tensors(tmp_path / "x.safetensors")["x"](), finite.float().numpy())
    assert list(spectra_of(tmp_path / "x.safetensors", sigma=1.0)) == ["x"]


def blocks(scale: np.ndarray, size: int, shape: tuple[int, int]) -> np.ndarray:
    return np.kron(scale, np.ones((size, size)))[: shape[0], : shape[1]]


@pytest.mark.parametrize(
    ("scale", "size", "name"),
    [
        (np.array(0.25), None, "weight_scale"),
        (np.array([0.25]), None, "scale_weight"),
        (RNG.uniform(1, 2, (300, 1)), None, "weight_scale"),
        (RNG.uniform(1, 2, (3, 2)), 128, "weight_scale_inv"),
        (RNG.uniform(1, 2, (19, 13)), 16, "weight_scale_inv"),
    ],
)
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_scaled_8_bit_floats_are_multiplied(
    tmp_path: Path, scale: np.ndarray, size: int | None, name: str, suffix: str
) -> None:
    """One scale for all, for each row, and for each block, of which the last ones are cut."""
    eight = torch.from_numpy(RNG.standard_normal((300, 200))).to(torch.float8_e4m3fn)
    arrays = {f"q.{name}": torch.from_numpy(scale).float(), "q.weight": eight}
    save = save_file if suffix == "safetensors" else torch.save
    save(arrays, tmp_path / f"x.{suffix}")
    found = spectra_of(tmp_path / f"x.{suffix}")
    factors = blocks(scale, size, (300, 200)) if size else scale
    expected = np.linalg.svdvals(eight.double().numpy() * factors)
    np.testing.assert_allclose(found["q.weight"].singular_values, expected, rtol=1e-6)
    assert found.skipped == {f"q.{name}": "is the scale of another array"}


def test_scales_that_fit_no_blocks_and_arrays_that_only_sound_like_scales() -> None:
    eight = torch.ones(12, 8).to(torch.float8_e4m3fn)
    found = spectra_of({"w": eight, "w_scale": torch.ones(5, 8)})
    assert found.skipped["w"] == "has scales of shape (5, 8) for (12, 8)"
    both = spectra_of({"norm": RNG.standard_normal((4, 6)), "norm_scale": RNG.standard_normal((4, 6))})
    assert list(both) == ["norm", "norm_scale"]
    exponents = torch.tensor([[120, 130]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    micro = spectra_of({"w": torch.ones(1, 64).to(torch.float8_e5m2), "w_scale": exponents})
    assert micro["w"].singular_values[0] == pytest.approx((32 * (2.0**-14 + 2.0**6)) ** 0.5)


def test_matlab_files(tmp_path: Path) -> None:
    matrix = RNG.standard_normal((8, 30))
    scipy_io.savemat(tmp_path / "x.mat", {"w": matrix, "n": np.arange(3), "text": "no"})
    found = spectra_of(tmp_path / "x.mat", sigma=1.0)
    np.testing.assert_allclose(found["w"].singular_values, np.linalg.svdvals(matrix))
    assert found.skipped["n"] == "holds int64 numbers"
    assert list(found.skipped) == ["n", "text"]


def test_hdf5_and_newer_matlab_files(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    matrix, other = RNG.standard_normal((8, 30)), tmp_path / "raw"
    other.write_bytes(matrix.tobytes())
    cases = (("x.h5", matrix, "is no array"), ("x.mat", matrix.T, "holds bytes40 numbers"))  # MATLAB stores by columns
    for name, stored, said in cases:
        with h5py.File(tmp_path / name, "w", userblock_size=512) as file:
            file["layer/kernel"] = stored
            file["#refs#/a"] = np.eye(3)
            file["text"] = "words"
            external = [(str(other), 0, matrix.nbytes)]
            file.create_dataset("elsewhere", matrix.shape, matrix.dtype, external=external)
            file["linked"] = h5py.ExternalLink(str(tmp_path / "x.npz"), "/w")
        with (tmp_path / name).open("r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
        found = spectra_of(tmp_path / name, sigma=1.0)
        assert found["layer/kernel"].shape == (8, 30)
        np.testing.assert_allclose(found["layer/kernel"].singular_values, np.linalg.svdvals(matrix))
        assert found.skipped == {"elsewhere": "cannot be read: they are in another file", "text": said}


def test_gguf_files_are_dequantized(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    matrix = RNG.standard_normal((24, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    kinds = gguf.GGMLQuantizationType
    expected = {"full": matrix}
    writer.add_tensor("full", matrix)
    writer.add_tensor("half", matrix.astype(np.float16))
    expected["half"] = matrix.astype(np.float16)
    for kind in (kinds.Q8_0, kinds.Q4_0, kinds.BF16):
        packed = gguf.quants.quantize(matrix, kind)
        writer.add_tensor(kind.name, packed, raw_dtype=kind)
        expected[kind.name] = gguf.quants.dequantize(packed, kind)
    writer.add_tensor("bias", matrix[0])
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    found = spectra_of(tmp_path / "x.gguf", sigma=1.0)
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name].singular_values, np.linalg.svdvals(values.astype(float)), rtol=1e-6)
    assert found.skipped == {"bias": "has shape (64,)"}


def test_an_array_that_cannot_be_read_is_a_row(say: Say, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, good=np.eye(3), trap=np.array([[Path]], dtype=object), bad=np.full((2, 2), np.inf))
    found = spectra_of(path, sigma=1.0)
    assert list(found) == ["good"]
    assert found.skipped["trap"].startswith("cannot be read: damaged, or with pickled objects")
    assert "cannot be read" in say("spectrum --sigma 1", path)


COLUMNS = [
    *("matrix", "kind", "shape", "sigma", "estimated_sigma", "top_over_edge", "spikes", "stable_rank"),
    *("effective_rank", "energy_above_edge", "visible", "fit_distance", "fit_p_value", "verdict"),
]


def test_every_column_is_in_every_form(say: Say, ask: Ask, tmp_path: Path) -> None:
    """CSV, data frame, HTML and JSON hold the same numbers, and the row of a bad matrix."""
    matrix = np.random.default_rng(1).standard_normal((40, 60))
    matrix[0] += 3.5
    np.savez(tmp_path / "x.npz", w=matrix, bad=np.full((2, 2), np.nan))
    found = spectra_of(tmp_path / "x.npz", sigma=1.0)
    row, bad = found.rows()
    assert list(row) == COLUMNS
    assert bad == {"matrix": "bad", "verdict": "has entries that are not finite"}
    frame = pd.DataFrame(found.rows())
    assert list(frame.columns) == COLUMNS
    assert frame.loc[0].to_dict() == row
    run, page = ["spectrum --sigma 1", tmp_path / "x.npz"], tmp_path / "x.html"
    rows = list(csv.DictReader(io.StringIO(say(*run, "--csv --html", page))))
    assert rows[0] == {name: str(value) for name, value in row.items()}
    assert rows[1] == dict.fromkeys(COLUMNS, "") | bad
    cells = [html.unescape(text) for text in re.findall(r"<td[^>]*>([^<]*)</td>", page.read_text(encoding="utf-8"))]
    shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in row.items()}
    assert dict(zip(COLUMNS, cells[: len(COLUMNS)], strict=True)) == shown
    assert cells[len(COLUMNS)] == "bad"
    document = ask(*run)
    (stated,) = document["matrices"]
    assert stated["fit"]["p_value"] == row["fit_p_value"]
    assert stated["fit"]["distance"] == row["fit_distance"]
    direct = set(COLUMNS[3:11]) - {"spikes", "top_over_edge"}
    assert {name: stated[name] for name in direct} == {name: row[name] for name in direct}
    assert stated["singular_values"][0] / stated["bulk_edge"] == row["top_over_edge"]
    assert document["reasons"] == {"bad": "has entries that are not finite"}


def noise_with(signals: list[float], shape: tuple[int, int], dtype: type = np.float32) -> np.ndarray:
    """Noise of σ = 1 plus a signal whose singular values are about these, in units of the bulk edge."""
    rng, edge = np.random.default_rng(3), math.sqrt(shape[0]) + math.sqrt(shape[1])
    left, right = (rng.standard_normal((side, len(signals))) / math.sqrt(side) for side in shape)
    return (rng.standard_normal(shape) + edge * left * signals @ right.T).astype(dtype)


CHECKED = {
    "noise": noise_with([], (96, 160)),
    "spikes": noise_with([3.0, 2.0, 1.3], (200, 120)),
    "many": noise_with(list(np.linspace(4.0, 1.5, 20)), (120, 120)),
    "far": noise_with([3000.0, 2.0], (64, 300)),
    "very far": noise_with([1e6], (64, 300)),
    "low rank": noise_with([1.0] * 3, (90, 70)) - noise_with([], (90, 70)),
    "equal spikes": noise_with([], (100, 100)) + np.diag([60.0] * 8 + [0.0] * 92).astype(np.float32),
    "half": noise_with([2.0], (60, 90), np.float16),
    "uneven": noise_with([], (64, 300)) * np.geomspace(1, 9, 64, dtype=np.float32)[:, None],
    "uneven columns": noise_with([], (300, 64)) * np.geomspace(1, 9, 64, dtype=np.float32),
    "large": noise_with([2.0], (50, 80)) * np.float32(1e36),
    "small": noise_with([2.0], (50, 80)) * np.float32(1e-36),
    "tiny": np.array([[3.0, 4.0]]),
    "zeros": np.pad(noise_with([5.0], (40, 50)), ((0, 3), (2, 0))),
}


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("turned", [False, True])
def test_values_are_those_of_an_svd_in_float64_up_to_float32_rounding(name: str, turned: bool) -> None:
    matrix = CHECKED[name].T if turned else CHECKED[name]
    found = spectra_of({"w": matrix})["w"]
    exact = noisy_spectrum(matrix.astype(np.float64), found.sigma)  # from an SVD in float64
    top = exact.singular_values[0]
    squares = found.singular_values**2 / top / top - (exact.singular_values / top) ** 2
    assert np.abs(found.singular_values - exact.singular_values).max() <= 2.0**-23 * top
    assert np.abs(squares).max() <= 64 * 2.0**-53
    assert len(found.spikes) == len(exact.spikes)
    assert (found.fit.verdict, found.fit.fits) == (exact.fit.verdict, exact.fit.fits)
    for column in ("stable_rank", "effective_rank", "energy_above_edge", "top_over_edge"):
        assert getattr(found, column) == pytest.approx(getattr(exact, column), rel=1e-6)
    assert found.fit.sigma == pytest.approx(exact.fit.sigma, rel=1e-6)
    assert found.fit.distance == pytest.approx(exact.fit.distance, abs=1e-5)


def test_memory_is_that_of_one_gram_matrix_for_any_number_of_matrices() -> None:
    matrices = {f"w{i}": noise_with([2.0], (256, 4096)) for i in range(3)}
    spectra_of({"w0": matrices["w0"]}, 1.0)  # what is computed once for a shape
    peaks = []
    for some in ({"w0": matrices["w0"]}, matrices):
        tracemalloc.start()
        spectra_of(some, 1.0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    gram, block = 8 * 256**2, 8 * 2**17
    assert peaks[0] < gram + 6 * block  # in float64 the matrix alone would be 8 blocks
    assert peaks[1] < peaks[0] + 2**17


def test_tensors_without_numbers_are_rows_and_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    found = spectra_of({"w": np.ones((2, 3)), "meta": torch.ones(2, 3, device="meta")}, 1.0)
    assert (list(found), found.skipped) == (["w"], {"meta": "cannot be read: Cannot copy out of meta tensor; no data!"})
    for source in (torch.nn.Linear(2, 3), np.ones((2, 3)), None):
        with pytest.raises(ParameterError, match="source must be a path, or a mapping"):
            spectra_of(source)
    with pytest.raises(UnreadableFileError, match=r"none\.npz must be a file \(no such file\)"):
        spectra_of(tmp_path / "none.npz")


def test_files_that_cannot_be_subtracted_or_written_are_named(refusal: Say, tmp_path: Path) -> None:
    np.savez(tmp_path / "after.npz", w=np.ones((2, 3)))
    np.savez(tmp_path / "before.npz", other=np.ones((2, 3)))
    command = ["spectrum --sigma 1", tmp_path / "after.npz"]
    assert "('w' is not in the file that is subtracted)" in refusal(*command, "--minus", tmp_path / "before.npz")
    for option, name in (("--html", "none/x.html"), ("--plot-all", "none/x.png")):
        assert f"{option} must be a file in an existing folder" in refusal(*command, option, tmp_path / name)
    assert "(no such file)" in refusal("spectrum --sigma 1", tmp_path / "model.safetensors.index.json")
