"""What processes of one logical batch must agree on: refused in all of them before anything is released."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from audits.processes import in_processes
from audits.steps import private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import Hutchinson


def one_step(rank: int, *, distributed: bool = True, step: int = 0, samples: tuple[int, ...] = (0, 1)) -> None:
    """A logical step of this process."""
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 30)
    private = private_sgd(
        model,
        0.1,
        norms=Hutchinson(4, secret=False),
        noise_multiplier=1.0,
        expected_batch_size=4.0,
        distributed=distributed,
    )
    before = model.weight.detach().clone()
    try:
        if samples:
            x = torch.ones(len(samples), 40)
            private.accumulate(private.model(x).square().mean(1), samples=samples, step=step)
        private.step()
    except (ParameterError, TrainingStateError):
        assert torch.equal(model.weight.detach(), before)
        raise


def agrees(rank: int) -> None:
    one_step(rank, samples=((0, 1), (2, 3))[rank])


def one_without_samples(rank: int) -> None:
    one_step(rank, samples=((0, 1), ())[rank])


def other_steps(rank: int) -> None:
    one_step(rank, step=rank, samples=((0, 1), (2, 3))[rank])


def the_same_sample(rank: int) -> None:
    one_step(rank, samples=((0, 1), (1, 2))[rank])


def each_by_itself(rank: int) -> None:
    one_step(rank, distributed=False)


RUNS: dict[Callable[[int], None], str] = {
    agrees: "done",
    one_without_samples: "done",
    other_steps: "step must be the same number in all processes",
    the_same_sample: "samples must be in one process only",
    each_by_itself: "distributed must be True in a process group of 2",
}


def outcomes(rank: int, size: int) -> list[str]:
    found = []
    for run in RUNS:
        try:
            run(rank)
            found.append("done")
        except (ParameterError, TrainingStateError) as error:
            found.append(str(error))
    return found


def test_processes_agree_or_all_refuse(tmp_path: Path) -> None:
    for words in in_processes(2, outcomes, tmp_path):
        for word, expected in zip(words, RUNS.values(), strict=True):
            assert word.startswith(expected), words
