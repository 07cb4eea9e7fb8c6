"""What a training step, or a question, passes through: no room on its way calls one below it."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.path import PACKAGE, QUESTIONS, WAYS, Calls, path_of_a_question, path_of_a_step, settings_of
from tests.house.import_graph import ROOT, room_of, rooms_table

DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
ROOMS = list(rooms_table(DESIGN))


@cache
def path(name: str) -> Calls:
    return path_of_a_step(settings_of(name)) if name in WAYS else path_of_a_question(QUESTIONS[name])


def test_what_is_counted_is_there() -> None:
    """The loop, clipping, noise and the optimizer's hook are on it: the counter sees a step."""
    expected = {
        ("training/harness/_loop.py", "Run._one_step"),
        ("training/clipping/_step.py", "ClippedStep.accumulate"),
        ("training/norms/_hutchinson.py", "HutchinsonEstimator.squared_norms"),
        ("spectra/_denoiser.py", "denoise_stack"),
    }
    assert expected <= path("Hutchinson, Adam, denoised").calls.keys()
    assert all((PACKAGE / file).is_file() for file, _ in path("DP-GRAPE").calls)
    (question,) = QUESTIONS
    expected = {("cli/_epsilon.py", "run_epsilon"), ("accounting/composition/_solve.py", "solve")}
    assert expected | {("accounting/pairs/_public_pair.py", "PublicPair.cells")} <= path(question).calls.keys()


@pytest.mark.parametrize("name", WAYS)
def test_no_room_calls_one_below_it(name: str) -> None:
    """In the order of the table of rooms, what a call goes to stands where the caller does, or above."""
    order = {room: place for place, room in enumerate(ROOMS)}
    between = {tuple(map(room_at, pair)) for pair in path(name).between}
    assert ("training.harness", "training.clipping") in between
    assert [pair for pair in between if "" not in pair and order[pair[0]] < order[pair[1]]] == []


def room_at(file: str) -> str:
    return room_of(".".join(("dprmt", *file.removesuffix(".py").split("/"))))
