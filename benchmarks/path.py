"""``python -m benchmarks.path``: the functions and files that a training step, or a question, passes through.

Of a step without the accountant's. To see what a change of the training or the accounting rooms costs a reader.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import dprmt
from dprmt.cli import main as command_line
from dprmt.training.harness import ItemTask, Observer, train_task
from dprmt.training.recipes import Settings

PACKAGE = Path(dprmt.__file__).parent
STEP = 3  # the first ones look closer
_SILENT = {"telemetry": {"on": False}}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "Hutchinson, Adam": ({"norms": {"kind": "hutchinson", "probes": 4}}, {"name": "adam"}, _SILENT),
    "Hutchinson, Adam, telemetry": (
        {"norms": {"kind": "hutchinson", "probes": 4}},
        {"name": "adam"},
        {"telemetry": {"every": 4}},
    ),
    "Hutchinson, Adam, denoised": (
        {"norms": {"kind": "hutchinson", "probes": 4}},
        {"name": "adam"},
        {"denoising": {"method": "paper"}, **_SILENT},
    ),
    "DP-GRAPE": ({"norms": "exact"}, {"name": "grape", "rank": 4}, _SILENT),
}
"""By name: sections of privacy and optimizer, and further ones; telemetry between two full readings."""


QUESTIONS = {"dprmt epsilon, exact norms": "--noise-multiplier 1 --sample-rate 0.03 --steps 400 --delta 1e-5"}
"""By name: options of ``dprmt epsilon``."""


class Calls:
    """Counts calls by file and qualified name, and which file calls which; what has no name of its own is left out."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.between: set[tuple[str, str]] = set()

    def called(self, frame: FrameType, event: str, argument: object) -> None:
        """For ``sys.setprofile``."""
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if event == "call" and path.is_relative_to(PACKAGE) and not name.endswith(">"):
            place = path.relative_to(PACKAGE)
            self.calls[str(place), name] += 1
            caller = Path(frame.f_back.f_code.co_filename) if frame.f_back is not None else PACKAGE.parent
            if caller.is_relative_to(PACKAGE):
                self.between.add((str(caller.relative_to(PACKAGE)), str(place)))


class Recorder(Observer, Calls):
    """Notes what is called from before one step until before the next."""

    def before_step(self, run: Any, step: int) -> None:
        """See `Observer`."""
        sys.setprofile(self.called if step == STEP else None)

    def end(self, run: Any) -> None:
        """See `Observer`."""
        sys.setprofile(None)

    def called(self, frame: FrameType, event: str, argument: object) -> None:
        """See `Calls`; without the accountant's."""
        if "accounting" not in Path(frame.f_code.co_filename).parts:
            super().called(frame, event, argument)


def path_of_a_step(settings: Settings) -> Recorder:
    """Calls by file and qualified name, and which file calls which, in a run folder, for a small classifier."""
    torch.manual_seed(0)
    table, classes = torch.randn(64, 40), torch.randint(4, (64,))

    def losses(model: torch.nn.Module, drawn: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(table[drawn]), classes[drawn], reduction="none")

    network = torch.nn.Sequential(torch.nn.Linear(40, 48), torch.nn.LayerNorm(48), torch.nn.Linear(48, 4))
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        task = ItemTask(range(64), torch.tensor, losses)
        train_task(network, task, settings, Path(folder, "run"), noise_seed=0, observers=[recorder])
    return recorder


def path_of_a_question(options: str) -> Calls:
    """The same for one answer of ``dprmt epsilon``, asked before, so that all is imported."""
    calls, words = Calls(), ["epsilon", *options.split()]
    with redirect_stdout(io.StringIO()):
        command_line(words)
        sys.setprofile(calls.called)
        command_line(words)
        sys.setprofile(None)
    return calls


def settings_of(name: str) -> Settings:
    """Of one of the `WAYS`."""
    privacy, optimizer, others = WAYS[name]
    sections: dict[str, Any] = {
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-5, "replay": 0.0, **privacy},
        "optimizer": {"learning_rate": 0.01, **optimizer},
        "training": {"batch_size": 16, "micro_batch_size": 8, "steps": 4},
        **others,
    }
    return Settings(**sections)


def by_room(calls: Iterable[tuple[str, str]]) -> Counter[str]:
    """How many of the functions lie in each folder."""
    return Counter(str(Path(file).parent) for file, _ in calls)


def main() -> None:
    """Print how many functions and files, in which rooms, and with ``--list`` which."""
    for name in [*WAYS, *QUESTIONS]:
        calls = (path_of_a_step(settings_of(name)) if name in WAYS else path_of_a_question(QUESTIONS[name])).calls
        print(f"{name}: {len(calls)} functions in {len({file for file, _ in calls})} files")
        print(f"  {', '.join(f'{room} {count}' for room, count in sorted(by_room(calls).items()))}")
        if "--list" in sys.argv[1:]:
            for (file, function), count in sorted(calls.items()):
                print(f"  {file} {function} ({count})")


if __name__ == "__main__":
    main()
