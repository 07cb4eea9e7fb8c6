"""The command spectrum: its numbers, its false alarms, and one line for what it cannot read."""

from __future__ import annotations

import csv
import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from scipy.io import savemat

from dprmt import spectra
from dprmt.cli import main
from dprmt.cli._spectrum import printable
from dprmt.plots import _style
from dprmt.spectra import bulk_edge, detection_threshold, false_alarm_rate, kappa_for, shrink, spike_map_inverse
from tests.conftest import Ask, Say
from tests.spectra.simulation import denoise

SIGMA = 0.25
RNG = np.random.default_rng(5)
SIGNAL = 20 * SIGMA * np.outer(np.eye(24)[0], np.ones(40) / 40**0.5)
ARRAYS = {
    "layers.0.query": (SIGNAL + SIGMA * RNG.standard_normal((24, 40))).astype(np.float32),
    "layers.0.bias": np.ones(40, np.float32),
    "layers.1.kernel": np.full((2, 2, 3, 3), 0.1, np.float32),
    "layers.1.query": SIGMA * RNG.standard_normal((40, 24)),
    "positions": np.arange(12).reshape(1, 12),
}
MATRICES = ["layers.0.query", "layers.1.kernel", "layers.1.query"]
OTHERS = ["layers.0.bias", "positions"]


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """The arrays in a file of the format that the suffix tells."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".pt":
        torch.save({name: torch.tensor(array) for name, array in arrays.items()}, path)
    elif path.suffix == ".safetensors":
        save_file(arrays, path)
    elif path.suffix == ".mat":
        savemat(path, arrays)
    elif path.suffix == ".h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            file.update(arrays)
    elif path.suffix == ".gguf":
        writer = pytest.importorskip("gguf").GGUFWriter(path, "llama")
        for name, array in arrays.items():
            writer.add_tensor(name, array)
        for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
            write()
        writer.close()
    else:
        (array,) = arrays.values()
        np.save(path, array)
    return path


AT = f"--sigma {SIGMA}"


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors"])
def test_json_matches_direct_computation(ask: Ask, tmp_path: Path, suffix: str) -> None:
    document = ask("spectrum", AT, save_arrays(tmp_path / f"gradients{suffix}", ARRAYS))
    assert set(document) == {"version", "sigma", "false_alarm", "matrices", "skipped", "reasons"}
    assert document["sigma"] == SIGMA
    assert sorted(document["skipped"]) == OTHERS
    matrices = {matrix["name"]: matrix for matrix in document["matrices"]}
    assert sorted(matrices) == MATRICES
    for name, matrix in matrices.items():
        array = ARRAYS[name].reshape(len(ARRAYS[name]), -1)
        assert matrix["array_shape"] == list(ARRAYS[name].shape)
        assert matrix["sigma"] == SIGMA
        values = np.linalg.svdvals(array.astype(float))
        assert matrix["shape"] == list(array.shape)
        assert matrix["bulk_edge"] == bulk_edge(array.shape, SIGMA)
        assert matrix["detection_threshold"] == detection_threshold(array.shape, SIGMA)
        np.testing.assert_allclose(matrix["singular_values"], values, rtol=1e-12, atol=1e-12)
        observed = np.array([spike["observed"] for spike in matrix["spikes"]])
        np.testing.assert_array_equal(observed, np.array(matrix["singular_values"])[: len(observed)])
        assert matrix["gate"] == kappa_for(array.shape, 0.01) * matrix["bulk_edge"]
        assert matrix["false_alarm"] == 0.01
        assert len(observed) == np.sum(values > matrix["gate"])
        for spike in matrix["spikes"]:
            assert spike["signal"] == spike_map_inverse(spike["observed"], array.shape, SIGMA)
            assert spike["shrunk"] == shrink(spike["observed"], array.shape, SIGMA)
            overlaps = spike["left_overlap"], spike["right_overlap"]
            assert overlaps == spectra.vector_overlaps(spike["signal"], array.shape, SIGMA)
    assert len(matrices["layers.0.query"]["spikes"]) == 1
    assert matrices["layers.0.query"]["spikes"][0]["signal"] == pytest.approx(20 * SIGMA, rel=0.15)


def test_names_cannot_upset_the_terminal(say: Say, refusal: Say, tmp_path: Path) -> None:
    name = "\x1b[2J[bold]x[/bold]$\\frac$"
    path = save_arrays(tmp_path / "names.safetensors", {name: 9 * np.eye(3), "other": np.eye(2)})
    out = say("spectrum --sigma 0.1", path, "--plot", tmp_path / "names.png")
    assert "\x1b" not in out
    assert printable(name) in out
    assert "\\x1b" in refusal("spectrum --sigma 0.1 --param frac", path)


def test_picture_shows_the_matrix_that_stands_out_most(
    ask: Ask, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, save_picture = [], _style.save_picture

    def spy(path, draw, **options):
        save_picture(path, lambda axes: (draw(axes), figures.append(axes[0].figure)), **options)

    monkeypatch.setattr(_style, "save_picture", spy)
    path, picture = save_arrays(tmp_path / "gradients.npz", ARRAYS), tmp_path / "out.png"
    document = ask("spectrum", AT, path, "--plot", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert figures[0].get_suptitle().startswith("layers.0.query\n")
    drawn = {line.get_label(): line.get_ydata() for line in figures[0].axes[0].lines}
    np.testing.assert_array_equal(drawn["noisy"], document["matrices"][0]["singular_values"])
    assert drawn["denoised"][0] == document["matrices"][0]["spikes"][0]["shrunk"]
    out = say("spectrum --param layers.1.query", AT, path, "--plot", picture)
    assert out.endswith(f"wrote {picture}: layers.1.query\n")


def test_sigma_may_come_from_how_noise_was_added(ask: Ask, refusal: Say, tmp_path: Path) -> None:
    file = save_arrays(tmp_path / "gradient.npy", {"": ARRAYS["layers.0.query"]})
    command, parts = "spectrum --noise-multiplier 2", "--clipping-norm 0.5 --batch-size 4"
    assert ask(command, parts, file)["sigma"] == 0.25
    expected = "--clipping-norm must be given with --batch-size where --noise-multiplier is"
    assert expected in refusal(command, file)
    assert "left out where --sigma is given" in refusal(command, parts, file, "--sigma 1")
    assert "left out where --minus is: give --sigma" in refusal(command, parts, file, "--minus", file)


def test_sigma_is_estimated_matrix_by_matrix(ask: Ask, say: Say, tmp_path: Path) -> None:
    noise = {"a": 0.1 * RNG.standard_normal((40, 90)), "b": 0.3 * RNG.standard_normal((64, 64))}
    path = save_arrays(tmp_path / "x.npz", noise | {"zero": np.zeros((9, 9))})
    document = ask("spectrum --sigma auto", path)
    assert document["sigma"] is None
    assert document["skipped"] == ["zero"]
    estimates = {matrix["name"]: matrix["sigma"] for matrix in document["matrices"]}
    assert estimates == pytest.approx({"a": 0.1, "b": 0.3}, rel=0.05)
    assert "estimated for each matrix" in say("spectrum --sigma auto", path)


def test_csv_has_a_row_for_every_singular_value(ask: Ask, say: Say, refusal: Say, tmp_path: Path) -> None:
    path = save_arrays(tmp_path / "x.npz", ARRAYS)
    rows = list(csv.DictReader(io.StringIO(say("spectrum --csv-values", AT, path))))
    document = ask("spectrum", AT, path)
    values = [value for matrix in document["matrices"] for value in matrix["singular_values"]]
    assert [float(row["singular_value"]) for row in rows] == values
    edges = [bulk_edge((int(row["rows"]), int(row["columns"])), SIGMA) for row in rows]
    assert [float(row["over_edge"]) for row in rows] == pytest.approx(np.divide(values, edges).tolist())
    signals = [spike["signal"] for matrix in document["matrices"] for spike in matrix["spikes"]]
    assert [float(row["signal"]) for row in rows if row["signal"]] == signals
    assert "--csv must be left out" in refusal("spectrum --csv --json", AT, path)
    for word, column in (("energy", "energy_above_edge"), ("sigma", "estimated_sigma"), ("stable-rank", "stable_rank")):
        order = [matrix[column] for matrix in ask("spectrum --sort", word, AT, path)["matrices"]]
        assert order == sorted(order, reverse=True)


def test_a_folder_is_read_in_its_best_format(ask: Ask, tmp_path: Path) -> None:
    torch.save({"other": torch.eye(3)}, tmp_path / "pytorch_model.bin")
    torch.save({"state": torch.eye(3)}, tmp_path / "optimizer.pt")
    assert [matrix["name"] for matrix in ask("spectrum", AT, tmp_path)["matrices"]] == ["other"]
    save_file({"a": np.eye(3)}, tmp_path / "model-1.safetensors")
    save_file({"b": np.eye(2)}, tmp_path / "model-2.safetensors")
    assert [matrix["name"] for matrix in ask("spectrum", AT, tmp_path)["matrices"]] == ["a", "b"]
    save_file({"a": np.eye(2)}, tmp_path / "model-2.safetensors")
    names = [matrix["name"] for matrix in ask("spectrum", AT, tmp_path)["matrices"]]
    assert names == ["model-1.safetensors:a", "model-2.safetensors:a"]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.ones(3), "has shape (3,)"),
        (np.float64(3.0), "has shape ()"),
        (np.ones((1, 1, 2, 3, 1, 4)), "has shape (1, 1, 2, 3, 1, 4)"),
        (np.ones((0, 4)), "has shape (0, 4)"),
        (np.ones((2, 3), int), "holds int64 numbers"),
        (np.ones((2, 3), bool), "holds bool numbers"),
        (np.ones((2, 3), complex), "holds complex128 numbers"),
    ],
)
def test_what_is_no_matrix_is_refused(refusal: Say, tmp_path: Path, array: np.ndarray, reason: str) -> None:
    path = save_arrays(tmp_path / "x.npy", {"x": array})
    needed = "must be of a matrix of real floating-point numbers, got"
    assert refusal("spectrum", AT, path).endswith(f"FILE {needed} {str(path)!r} ('x' {reason})")
    assert refusal("spectrum --param x", AT, path).endswith(f"--param {needed} 'x' ('x' {reason})")


def test_unknown_name_is_refused_with_those_like_it(refusal: Say, tmp_path: Path) -> None:
    few = save_arrays(tmp_path / "few.npz", {"query": np.eye(2), "value": np.eye(2)})
    assert "--param must be one of 'query', 'value', got 'key'" in refusal("spectrum --param key", AT, few)
    many = save_arrays(tmp_path / "many.npz", {f"layer.{i}.weight": np.eye(2) for i in range(50)})
    assert "one of 'layer.37.weight', … (50 in all), got" in refusal("spectrum --param layer.37", AT, many)
    assert refusal("spectrum --param zzz", AT, many).count("layer.") == 3


class Trap:
    """Unpickling it leaves a trace in the working directory."""

    def __reduce__(self):
        return open, ("trace", "w")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt"])
def test_code_in_files_is_never_run(refusal: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"trap{suffix}"
    trap = np.array([[Trap()]], dtype=object)
    if suffix == ".npy":
        np.save(path, trap, allow_pickle=True)
    elif suffix == ".npz":
        np.savez(path, x=trap)
    else:
        torch.save({"x": Trap()}, path)
    message = refusal("spectrum", AT, path)
    assert "damaged, or with pickled objects in it, which could run code: save a state_dict() instead)" in message
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".safetensors", ".mat", ".h5", ".gguf"])
def test_damaged_files_are_refused_or_read(capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str) -> None:
    """Whatever happens to a file's bytes, the answer is one line or a document, never a traceback."""
    path = save_arrays(tmp_path / f"x{suffix}", {"x": np.arange(1.0, 7.0).reshape(2, 3)})
    whole, rng = path.read_bytes(), np.random.default_rng(11)
    refused = 0
    for trial in range(60):
        damaged = bytearray(whole[: rng.integers(len(whole))] if trial % 2 else whole)
        if damaged and trial % 4 != 1:
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        code = main(["spectrum", str(path), "--sigma", "1", "--json"])
        captured = capsys.readouterr()
        refused += code == 2
        if code == 0:
            json.loads(captured.out)
        assert (code, captured.out == "", captured.err.count("\n")) in ((2, True, 1), (0, False, 0))
    assert refused >= 25


def test_a_file_that_promises_too_much_is_refused(refusal: Say, tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000), }".ljust(117) + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    for suffix in (".npy", ".safetensors"):
        assert f"must be a {suffix} file" in refusal("spectrum", AT, tmp_path / f"x{suffix}")


def test_the_rate_and_what_is_to_be_expected_are_said(say: Say, tmp_path: Path) -> None:
    file, rng = tmp_path / "noise.npz", np.random.default_rng(1)
    shapes = ((8, 384), (16, 768), (4, 9), (64, 64), (128, 40))
    np.savez(file, **{f"{shape}.{i}": rng.standard_normal(shape) for shape in shapes for i in range(40)})
    assert "noise alone would give 2 on average (false alarm rate 1 %)" in say("spectrum --sigma 1", file)
    strict = say("spectrum --sigma 1 --false-alarm 1e-6", file)
    assert "matrices with a value above the gate: 0 of 200" in strict
    assert "Nothing here can be told from noise." in strict


def test_a_rate_above_that_of_the_edge_is_not_claimed(ask: Ask, say: Say, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((16, 768)))
    (matrix,) = ask("spectrum --sigma 1 --false-alarm 0.9", tmp_path / "x.npy")["matrices"]
    assert matrix["gate"] == matrix["bulk_edge"]
    assert matrix["false_alarm"] == false_alarm_rate((16, 768), 1.0) < 0.2
    expected = f"noise alone would give {matrix['false_alarm']:.2g} on average"
    assert expected in say("spectrum --sigma 1 --false-alarm 0.9", tmp_path / "x.npy")


def test_the_default_of_denoise_leaves_noise_alone() -> None:
    """8 × 384, where κ = 1.02 fires twice as often: by default in 1 % of draws."""
    shape, draws = (8, 384), 4000
    noise = np.random.default_rng(7).standard_normal((draws, *shape))
    found = denoise(noise, 1.0)
    fired = int((found != noise).any((1, 2)).sum())
    paper = int((denoise(noise, 1.0, 1.02) != noise).any((1, 2)).sum())
    assert 20 <= fired <= 62  # 40 expected, 3.5 standard deviations
    assert paper > 1.4 * fired
