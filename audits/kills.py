"""``python -m audits kills``: a run is killed, or refused the disk, at every kind of file operation: ε stays true.

A child process trains in a folder. It counts, in memory that outlives it, the noisy gradients that it makes. At a
chosen point it is killed as by ``kill -9``: before an operation on a file, in the middle of a line, or between two
parts of a step. The charges that the folder then knows of must be no fewer than the gradients made, and a resumed run
must end with the ε of all charges.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import dprmt._files as files
from audits.table import markdown
from dprmt._validation import ParameterError, TrainingStateError
from dprmt.accounting import DPSGD
from dprmt.training.clipping import NoisySumOptimizer
from dprmt.training.harness import ItemTask, Observer, read_summary, train_task
from dprmt.training.recipes import Settings

RESULTS = Path(__file__).parent / "results" / "kills.json"
STEPS, ITEMS, BATCH = 5, 30, 10
_NO_SPACE, _KILL = "disk full", "kill -9"


@dataclass(frozen=True)
class Point:
    """Where a child stops: the so-manieth occasion, of which kind, on which file, in which step."""

    number: int
    kind: str
    file: str
    step: int


@dataclass(frozen=True)
class Outcome:
    """What became of a run: charges and noisy gradients when it stopped, and at the end of the resumed one."""

    point: Point
    how: str
    charged: int
    used: int
    charged_at_the_end: int
    used_at_the_end: int
    epsilon_is_true: bool

    @property
    def sound(self) -> bool:
        """Whether no gradient was made that is not charged, and ε is that of all charges."""
        return self.charged >= self.used and self.charged_at_the_end >= self.used_at_the_end and self.epsilon_is_true


class Count:
    """A number in memory that parent and children share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    def add(self) -> None:
        """One more."""
        self._memory[:] = struct.pack("q", self.value + 1)

    @property
    def value(self) -> int:
        """So far."""
        return int(struct.unpack("q", self._memory[:])[0])


class Occasions:
    """Counts what a child does on files and in steps, writes it down, and stops it at one of them."""

    def __init__(self, folder: Path, stop: Callable[[], None] | None, at: int) -> None:
        self._folder, self._stop, self._at = str(folder), stop, at
        self.step, self.seen, self._busy = 0, [], False

    def meet(self, kind: str, path: Any, half: str = "") -> None:
        """One occasion; half a line is written before the end."""
        name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        if self._busy or not name.startswith(self._folder):
            return
        self.seen.append(Point(len(self.seen), kind, _plain(os.path.relpath(name, self._folder)), self.step))
        if len(self.seen) - 1 == self._at and self._stop is not None:
            self._busy = True
            if half:
                with open(path, "a", encoding="utf-8") as file:
                    file.write(half)
            self._stop()

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """For ``sys.addaudithook``."""
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            self.meet("open", arguments[0])
        elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            self.meet(event.removeprefix("os."), arguments[0])


def main(arguments: list[str] | None = None) -> int:
    """Print a line a point; 1 if ε was untrue anywhere."""
    parser = argparse.ArgumentParser(prog="python -m audits kills", description=__doc__)
    parser.add_argument("--points", type=int, default=60, help="kills (default 60)")
    parser.add_argument("--full", type=int, default=20, help="full disks (default 20)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside idle threads
    DPSGD(1.0, BATCH / ITEMS).epsilon(steps=STEPS, delta=1e-5)
    everywhere = occasions()
    outcomes = [tried(point, _KILL) for point in spread(everywhere, options.points)]
    on_files = [point for point in everywhere if point.kind not in ("gradient", "half a line")]
    outcomes += [tried(point, _NO_SPACE) for point in spread(on_files, options.full)]
    others = {"two owners": two_owners(), "clock set back": clock_set_back()}
    RESULTS.parent.mkdir(exist_ok=True)
    found = {"occasions": len(everywhere), "outcomes": [asdict(outcome) for outcome in outcomes], "others": others}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(table(), end="")
    return 0 if all(outcome.sound for outcome in outcomes) and all(others.values()) else 1


def occasions() -> list[Point]:
    """All of them, of a run that nothing stops."""
    with tempfile.TemporaryDirectory() as folder:
        run, log = Path(folder, "run"), Path(folder, "log.json")
        _child(lambda: _train(run, Count(), None, -1, log=log))
        return [Point(**entry) for entry in json.loads(log.read_text())]


def spread(points: list[Point], count: int) -> list[Point]:
    """So many of them: every kind of operation on every file in turn, its steps evenly."""
    groups: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        groups[point.kind, point.file].append(point)
    queues = [_from_afar(group) for group in groups.values()]
    chosen: list[Point] = []
    while len(chosen) < count and any(queues):
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop(0))
    return sorted(chosen, key=lambda point: point.number)


def tried(point: Point, how: str) -> Outcome:
    """A run that is stopped there, and resumed."""
    with tempfile.TemporaryDirectory() as folder:
        run, used = Path(folder, "run"), Count()
        stop = _die if how == _KILL else _no_space
        status = _child(lambda: _train(run, used, stop, point.number))
        assert status in ((-signal.SIGKILL,) if how == _KILL else (0, 1)), status
        charged, before = _charged(run), used.value
        _child(lambda: _train(run, used, None, -1, resume=(run / "config.toml").exists()))
        return Outcome(point, how, charged, before, _charged(run), used.value, _tells_the_truth(run))


def _tells_the_truth(run: Path) -> bool:
    try:
        summary = read_summary(run)
    except (ParameterError, TrainingStateError):  # the resumed run was refused
        return False
    true = DPSGD(1.0, summary_rate(run)).epsilon(steps=_charged(run), delta=1e-5).upper
    return bool(summary["charged"] == _charged(run) and abs(summary["epsilon"] - true) < 1e-12)


def two_owners() -> bool:
    """Whether a second process is refused while the first one trains, and charges nothing."""
    with tempfile.TemporaryDirectory() as folder:
        run, refused = Path(folder, "run"), []

        class Second(Observer):
            def after_step(self, view: Any, record: Any) -> None:
                def second() -> None:
                    try:
                        _train(run, Count(), None, -1, resume=True)
                    except ParameterError as error:
                        os._exit(7 if "no other process" in str(error) else 8)

                refused.append(_child(second))

        train_task(_network(), _task(), _settings(), run, observers=[Second()])
        return refused == [7] * STEPS and _charged(run) == STEPS


def clock_set_back() -> bool:
    """Whether a run whose clock runs backwards, and whose files are from 1970, ends with all it did charged."""
    with tempfile.TemporaryDirectory() as folder:
        run, used = Path(folder, "run"), Count()
        stops = [point.number for point in spread(occasions(), 4)]
        for stop in (*stops, -1):
            for file in run.rglob("*"):
                os.utime(file, (0, 0))
            resume = (run / "config.toml").exists()
            _child(lambda: _train(run, used, _die, stop, resume=resume, backwards=True))  # noqa: B023
            if _charged(run) < used.value:
                return False
        return bool(read_summary(run)["charged"] == _charged(run))


def summary_rate(run: Path) -> float:
    """Q as the run states it."""
    return float(json.loads((run / "run.json").read_text())["sample_rate"])


def table() -> str:
    """By way of stopping: how many points, and the least that was counted beyond what was used."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for entry in found["outcomes"]:
        outcome = Outcome(**{**entry, "point": Point(**entry["point"])})
        groups[outcome.how].append(outcome)
    rows = [(how, *_row(group)) for how, group in sorted(groups.items())]
    rows += [(name, "", "", "yes" if good else "**no**") for name, good in found["others"].items()]
    return markdown(("how", "points", "least counted − used", "counted ≥ used, and ε true"), rows)


def _row(group: list[Outcome]) -> tuple[str, ...]:
    least = min(outcome.charged - outcome.used for outcome in group)
    good = "yes" if all(outcome.sound for outcome in group) else "**no**"
    return str(len(group)), str(least), good


def _from_afar(points: list[Point]) -> list[Point]:
    # First, last, middle, and so on, so that any number of them is spread.
    left, order = list(points), [0, -1]
    chosen = []
    while left:
        chosen.append(left.pop(order.pop(0) if order else len(left) // 2))
        order = order if len(left) > 1 else []
    return chosen


def _child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # the parent's other threads are not here
        try:
            work()
        except (OSError, ParameterError, TrainingStateError):
            os._exit(1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _train(
    run: Path,
    used: Count,
    stop: Callable[[], None] | None,
    at: int,
    *,
    resume: bool = False,
    backwards: bool = False,
    log: Path | None = None,
) -> None:
    watch = Occasions(run, stop, at)
    sys.addaudithook(watch.audit)
    with _watched(watch, used), _clock(backwards):
        train_task(_network(), _task(), _settings(), run, resume=resume, observers=[_Steps(watch)])
    if log is not None:
        log.write_text(json.dumps([asdict(point) for point in watch.seen]))


class _Steps(Observer):
    def __init__(self, watch: Occasions) -> None:
        self._watch = watch

    def before_step(self, run: Any, step: int) -> None:
        self._watch.step = step
        self._watch.meet("gradient", self._watch._folder + "/before the batch")

    def after_step(self, run: Any, record: Any) -> None:
        self._watch.meet("gradient", self._watch._folder + "/after the optimizer")


@contextmanager
def _watched(watch: Occasions, used: Count) -> Iterator[None]:
    fsync, noise, line = os.fsync, NoisySumOptimizer.add_noise, files.append_line

    def seen_fsync(handle: int) -> None:
        watch.meet("fsync", os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def seen_noise(self: Any) -> None:
        watch.meet("gradient", watch._folder + "/before the noise")
        used.add()
        noise(self)
        watch.meet("gradient", watch._folder + "/after the noise")

    def seen_line(path: Path, row: Any, *, durably: bool = False) -> None:
        watch.meet("half a line", path, half=files.strict_json(row)[:9])
        line(path, row, durably=durably)

    with (
        mock.patch.object(os, "fsync", seen_fsync),
        mock.patch.object(NoisySumOptimizer, "add_noise", seen_noise),
        mock.patch("dprmt.training.private_run._ledger.append_line", seen_line),
        mock.patch("dprmt.training.harness._run.append_line", seen_line),
    ):
        yield


@contextmanager
def _clock(backwards: bool) -> Iterator[None]:
    if not backwards:
        yield
        return
    ticks = itertools.count(1e9, -1.0)
    with mock.patch.object(time, "time", side_effect=ticks):
        yield


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _no_space() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _charged(run: Path) -> int:
    # Read as the package reads it, of which an independent count is the test.
    file = run / "privacy.jsonl"
    return len([line for line in file.read_bytes().split(b"\n") if line]) if file.exists() else 0


def _plain(file: str) -> str:
    # Names of files that are about to take a place are random.
    return {".": "the folder"}.get(file, "a file about to take its place" if ".part" in file else file)


def _network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def _task() -> ItemTask:
    return ItemTask([0, 1, 2] * (ITEMS // 3), torch.tensor, _losses)


def _losses(model: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(torch.eye(4)[labels]), labels, reduction="none")


def _settings() -> Settings:
    return Settings(
        privacy={"noise_multiplier": 1.0, "delta": 1e-5},
        optimizer={"name": "adam", "learning_rate": 0.1},
        training={"batch_size": BATCH, "steps": STEPS, "checkpoint_every": 2},
    )


if __name__ == "__main__":
    sys.exit(main())
