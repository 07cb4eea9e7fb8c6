"""Files, JSON and JSON lines: what a reader finds after a crash at any point."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from dprmt import _files
from dprmt._files import LEFTOVERS, append_line, read_lines, replacing, strict_json, write_whole


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


def test_who_may_read_a_file_is_as_for_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


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
