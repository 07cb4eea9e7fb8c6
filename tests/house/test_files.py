"""Files, JSON and JSON lines: what a reader finds after a crash at any point."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dprmt import _files
from dprmt._files import LEFTOVERS, append_line, parse_json, parse_toml, read_lines, replacing, strict_json, write_whole


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_whole(file, "old")

    def stop_half_way() -> None:
        with replacing(file) as fresh:
            fresh.write_text("ne")
            assert file.read_text() == "old"
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        stop_half_way()
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("a.txt", "old")]
    write_whole(file, "new\n")
    assert file.read_bytes() == b"new\n"


def test_the_content_is_on_the_disk_before_it_takes_the_place_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(_files, "sync", lambda path: synced.append((path, (tmp_path / "a").exists())))
    with replacing(tmp_path / "a") as fresh:
        fresh.touch()
    assert synced == [(fresh, False), (tmp_path, True)]


def test_the_name_to_write_to_keeps_the_suffix_and_is_known_as_a_leftover(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.b.png") as fresh:
        fresh.touch()
        assert (fresh.suffix, fresh.parent) == (".png", tmp_path)
        assert list(tmp_path.glob(LEFTOVERS)) == [fresh]


@pytest.mark.skipif(os.name != "posix", reason="modes and links are those of POSIX")
def test_files_are_their_owner_s_unless_they_are_public(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "public", "", public=True)
        write_whole(tmp_path / "whole", "")
        append_line(tmp_path / "lines", {})
        with replacing(tmp_path / "opened") as fresh, fresh.open("wb") as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"public": 0o640, "whole": 0o600, "lines": 0o600, "opened": 0o600}


@pytest.mark.skipif(os.name != "posix", reason="modes and links are those of POSIX")
def test_nothing_is_written_through_a_link_or_into_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=name):
            append_line(tmp_path / name, {"step": 1})
    write_whole(tmp_path / "link", "new")  # takes the link's place
    assert (tmp_path / "victim").read_text() == "kept"
    assert (tmp_path / "link").read_text() == "new"


@pytest.mark.parametrize(("parse", "text"), [(parse_json, "[" * 100_000), (parse_toml, "a = " + "[" * 100_000)])
def test_what_is_nested_too_deeply_is_a_value_error(parse: Callable[[str], object], text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse(text)
    (tmp_path / "a").write_text(text + '\n{"step": 1}\n')
    assert read_lines(tmp_path / "a") == [{"step": 1}]


def test_lines_survive_what_a_crash_leaves(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert read_lines(path) == []
    append_line(path, {"step": 1})
    with open(path, "ab") as file:
        file.write(b'{"step": 2, "lo')
    assert read_lines(path) == [{"step": 1}]
    append_line(path, {"step": 3}, durably=True)
    append_line(path, {"step": 4, "loss": float("nan")})
    assert read_lines(path) == [{"step": 1}, {"step": 3}, {"step": 4, "loss": None}]
    with open(path, "ab") as file:
        file.write(b"7\n\xff\n")
    assert [row["step"] for row in read_lines(path)] == [1, 3, 4]


def test_a_durable_line_is_synced_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(_files, "sync", lambda path: synced.append((path, (tmp_path / "a").read_text())))
    append_line(tmp_path / "a", {"a": 1}, durably=True)
    append_line(tmp_path / "a", {"a": 2})
    assert synced == [(tmp_path / "a", '{"a": 1}\n'), (tmp_path, '{"a": 1}\n')]


def test_numbers_that_are_not_finite_are_null() -> None:
    value = {"a": (True, 0.1, "NaN"), "b": [float("inf"), {"c": -float("inf")}]}
    assert strict_json(value) == '{"a": [true, 0.1, "NaN"], "b": [null, {"c": null}]}'
    assert json.loads(strict_json(value, indent=1)) == json.loads(strict_json(value))
