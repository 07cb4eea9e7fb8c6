"""``dprmt verify``: what it prints and its exit codes; what it proves is tested in ``verify/tests``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprmt.cli import main

RUN = {"mechanism": {"noise_multiplier": 1.0, "sampling": {"rate": 2000 / 67349}}, "steps": 400, "delta": 1e-5}


def written(folder: Path, name: str, **ends: float) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(RUN | {"epsilon": ends}))
    return str(path)


def test_the_exit_code_is_that_of_the_worst_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    true, false = written(tmp_path, "true", lower=3.80, upper=3.82), written(tmp_path, "false", upper=3.7)
    near = written(tmp_path, "near", upper=3.8097)
    assert main(["verify", true]) == 0
    assert main(["verify", near, true, "--seconds", "0"]) == 3
    assert main(["verify", true, false, near, "--seconds", "0"]) == 4
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"{true}: proved: ε <= 3.82")
    assert f"{false}: refuted: ε <= 3.7" in out[-2]


def test_json_is_one_object_of_all_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", written(tmp_path, "true", lower=3.80, upper=3.82), "--json"]) == 0
    claims = json.loads(capsys.readouterr().out)["claims"]
    assert [(claim["end"], claim["verdict"]) for claim in claims] == [("upper", "proved"), ("lower", "proved")]
    assert 3.80 < claims[0]["at_least"] < 3.8096 < claims[0]["at_most"] < 3.82


@pytest.mark.parametrize("text", ["{", '{"epsilon": 3}', '{"steps": 4, "delta": 1e-5, "epsilon": {"upper": 1}}', "[]"])
def test_what_cannot_be_read_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text(text)
    assert main(["verify", str(tmp_path / "bad.json")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "bad.json" in err
