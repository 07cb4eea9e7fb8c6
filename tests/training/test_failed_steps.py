"""A step that failed or was stopped leaves nothing behind: failures, held against all that a step can change."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from audits.steps import make_private, private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import ExactNorms
from dprmt.training.clipping import ClippedStep
from dprmt.training.clipping._formed_layers import PerSampleGradients
from dprmt.training.clipping._matrix_layers import Factors, LinearLayer, ProjectedLayer
from dprmt.training.harness import Observer, read_metrics, run_in_memory, train_task
from tests.training.norms_by_word import by_word
from tests.training.projected import projected_step
from tests.training.test_planted_bugs import network, settings, task

STEP = 3
LATER, EARLIER = [[0, 1], [2, 3], [4, 5, 6]], [[7, 8], [9, 10]]
INPUTS = torch.randn(11, 3, 6, generator=torch.Generator().manual_seed(1))


class PowerCut(BaseException):
    """Not an error that anybody catches, such as KeyboardInterrupt."""


class Net(nn.Module):
    """Two layers with a place between them where a backward pass can fail."""

    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.up(x)))
        if self.fails:
            hidden = hidden * 1.0
            hidden.register_hook(lambda _: refuse())
        return self.down(hidden)


def private(norms: Any, optimizer: Callable[..., torch.optim.Optimizer]) -> ClippedStep:
    torch.manual_seed(0)
    model = Net()
    return make_private(model, optimizer(model.parameters(), lr=0.1), norms=norms, **of_a_run())


def of_a_run() -> dict[str, Any]:
    noise = torch.Generator().manual_seed(5)
    sizes = {"clipping_norm": 0.5, "noise_multiplier": 1.0, "expected_batch_size": 4.0, "tokens": 3}
    return sizes | {"noise_generator": noise}


def projected() -> ClippedStep:
    torch.manual_seed(0)
    return projected_step(Net(), rank=3, lr=0.1, projector="svd", refresh_every=2, seed=0, **of_a_run())


def clipped() -> ClippedStep:
    return private(by_word("hutchinson", 2), partial(torch.optim.SGD, momentum=0.9))


MAKERS = {"hutchinson": clipped, "exact": lambda: private("exact", torch.optim.Adam), "projected": projected}


def net_of(step: ClippedStep) -> Net:
    return step.model  # type: ignore[return-value]


def accumulate(step: ClippedStep, samples: list[int], number: int = STEP) -> None:
    step.accumulate(step.model(INPUTS[samples]).square().mean((1, 2)), samples=samples, step=number)


def copied(value: Any) -> Any:
    return None if value is None else value.detach().clone()


def state(step: ClippedStep) -> dict[str, Any]:
    """All that a micro-batch or a step can change, except for the numbers of steps that are used up."""
    found: dict[str, Any] = {}
    for name, p in net_of(step).named_parameters():
        found[name] = copied(p)
        for kept in ("grad", "summed_grad", "projected_grad", "grad_sample"):
            found[f"{name}: {kept}"] = copied(getattr(p, kept, None))
    inner, uses = step.optimizer.original_optimizer, step._capture
    found["inner"] = copy.deepcopy(inner.state_dict())
    found["noise"] = step.optimizer.generator.get_state()  # type: ignore[attr-defined]
    found["waiting"] = (dict(uses.waiting), uses.squared, list(uses.contributions), uses._size, dict(uses._forward))
    found["summing"] = (uses.summing, uses._at, uses._expected, uses._must_be_zero, list(uses._elsewhere))
    return found


def log(step: ClippedStep) -> frozenset[Any]:
    """Samples that count as added."""
    return frozenset(step._samples)


def same(one: Any, other: Any) -> bool:
    (ones, form), (others, other_form) = tree_flatten(one), tree_flatten(other)
    pairs = zip(ones, others, strict=True)
    return form == other_form and all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    assert [name for name in before if not same(before[name], after[name])] == []


# ------------------------------------------------------------------------------------- within a micro-batch


@contextmanager
def raising(place: Any, name: str, after: int) -> Iterator[None]:
    """A method that raises when it has been called so often."""
    real, count = getattr(place, name), itertools.count()

    def method(*args: Any, **options: Any) -> Any:
        if next(count) == after:
            raise PowerCut
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, method)
        yield


def refuse() -> None:
    raise PowerCut


def in_the_backward_pass(step: ClippedStep, samples: list[int]) -> None:
    net_of(step).fails = True
    try:
        accumulate(step, samples)
    finally:
        net_of(step).fails = False


def in_a_layer_s_norm(step: ClippedStep, samples: list[int]) -> None:
    kind = ProjectedLayer if hasattr(step.optimizer.original_optimizer, "subspaces") else LinearLayer
    with raising(kind, "measure", 1):
        accumulate(step, samples)


def in_the_clip_factors(step: ClippedStep, samples: list[int]) -> None:
    from dprmt.training.clipping import _step

    with raising(_step, "clip_factors", 0):
        accumulate(step, samples)


def of_a_loss_that_is_no_function_of_the_model(step: ClippedStep, samples: list[int]) -> None:
    step.model(INPUTS[samples])
    losses = (INPUTS[samples].requires_grad_() * 2.0).sum((1, 2))
    with pytest.raises(TrainingStateError, match="no trainable layer"):
        step.accumulate(losses, samples=samples, step=STEP)
    raise PowerCut


FAILURES: list[Callable[[ClippedStep, list[int]], None]] = [
    in_the_backward_pass,
    in_a_layer_s_norm,
    in_the_clip_factors,
    of_a_loss_that_is_no_function_of_the_model,
]


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("failure", FAILURES, ids=lambda value: value.__name__)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_micro_batch_that_failed_is_as_if_it_had_never_been(
    maker: str, failure: Callable[[ClippedStep, list[int]], None], before: int
) -> None:
    """At any micro-batch of a step, the first included; and again with the very samples and number."""
    step, undisturbed = MAKERS[maker](), MAKERS[maker]()
    if not isinstance(step.record.norms, ExactNorms):
        undisturbed._capture._policy.estimator.__dict__["generator"] = step._capture._policy.estimator.generator
    for piece in LATER[:before]:
        accumulate(step, piece)
    known, used = state(step), log(step)
    for _ in range(2):
        with pytest.raises(PowerCut):
            failure(step, LATER[before])
        assert_same(known, state(step))
        assert log(step) == used
    for piece in LATER[before:]:
        accumulate(step, piece)
    for piece in LATER:
        accumulate(undisturbed, piece)
    one, other = state(step), state(undisturbed)
    assert_same(
        {name: value for name, value in one.items() if "summed_grad" in name},
        {name: value for name, value in other.items() if "summed_grad" in name},
    )
    step.step()
    undisturbed.step()
    assert_same(state(step), state(undisturbed))


def added(step: ClippedStep, losses: Callable[..., Any] = abs, samples: Any = (4, 5)) -> None:
    step.accumulate(losses(step.model(INPUTS[[4, 5]]).square().mean((1, 2))), samples=samples, step=STEP)


REFUSALS: dict[str, tuple[str, Callable[[ClippedStep], None]]] = {
    "a sample of the micro-batch before the last": ("samples", lambda step: accumulate(step, [4, LATER[0][1]])),
    "a sample twice": ("samples", lambda step: accumulate(step, [5, 5])),
    "a sample of the last micro-batch": ("samples", lambda step: accumulate(step, [6, LATER[1][0]])),
    "names too few": ("samples", lambda step: added(step, samples=[4])),
    "no name": ("samples", lambda step: added(step, samples=[0.5, 1])),
    "more tokens": (
        "tokens",
        lambda step: step.accumulate(step.model(INPUTS[:1].repeat(1, 2, 1)).mean((1, 2)), samples=[4], step=STEP),
    ),
    "a mean": ("losses", lambda step: added(step, torch.mean)),
    "a column": ("losses", lambda step: added(step, lambda each: each[:, None])),
    "no graph": ("the losses have no graph", lambda step: added(step, torch.Tensor.detach)),
    "no model": ("no forward", lambda step: step.accumulate(torch.ones(1).requires_grad_(), samples=[4], step=STEP)),
}


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_refused_changes_nothing(maker: str, refusal: str) -> None:
    step = MAKERS[maker]()
    accumulate(step, EARLIER[0], STEP - 1)
    step.step()
    for piece in LATER[:2]:
        accumulate(step, piece)
    known, used = state(step), log(step)
    name, refused = REFUSALS[refusal]
    with pytest.raises((ParameterError, TrainingStateError), match=f"^{name}"):
        refused(step)
    step.discard()
    assert_same(known, state(step))
    assert log(step) == used
    accumulate(step, LATER[2])


@pytest.mark.parametrize("failure", [[], [0, 1], *FAILURES])
def test_the_first_check_is_not_over_because_a_batch_failed_or_was_empty(failure: Any) -> None:
    """What was kept of the failed batch, of another size, does not make the next one pass unseen."""
    step = clipped()
    if isinstance(failure, list):  # of nobody, or not finite
        losses = step.model(torch.inf * INPUTS[failure]).square().mean((1, 2))
        step.accumulate(losses, samples=failure, step=STEP)
    else:
        with pytest.raises(PowerCut):
            failure(step, LATER[0])
    losses = step.model(INPUTS[LATER[2]]).square().mean((1, 2))
    with pytest.raises(ParameterError, match="no sample in another's loss"):
        step.accumulate(losses - losses.mean(), samples=LATER[2], step=STEP)


@pytest.mark.parametrize(
    ("maker", "place", "call"),
    [
        ("hutchinson", Factors, 0),
        ("hutchinson", Factors, 1),
        ("hutchinson", PerSampleGradients, 0),
        ("projected", PerSampleGradients, 0),
        ("projected", PerSampleGradients, 2),
    ],
)
def test_a_sample_that_may_be_in_the_sum_does_not_come_again(maker: str, place: Any, call: int) -> None:
    """A failure between two layers' sums: each sample has moved the sum by at most C, and a second time is refused."""
    step = MAKERS[maker]()
    accumulate(step, LATER[0])
    accumulate(step, LATER[1])
    known = {name: copied(p.summed_grad) for name, p in net_of(step).named_parameters()}
    with raising(place, "add_to_sums", call), pytest.raises(PowerCut):
        accumulate(step, LATER[2])
    moved = sum(float((p.summed_grad - known[name]).square().sum()) for name, p in net_of(step).named_parameters())
    assert moved**0.5 <= len(LATER[2]) * 0.5 * (4.0 if maker == "hutchinson" else 1.0)  # of estimated norms: 4 is rare
    with pytest.raises(ParameterError, match="samples"):
        accumulate(step, LATER[2])
    step.discard()
    accumulate(step, [7])


# ------------------------------------------------------------------------------------------- of a whole step


@contextmanager
def refused(step: ClippedStep) -> Iterator[None]:
    """As by a denoiser of what it is given."""
    handle = step.optimizer.original_optimizer.register_step_pre_hook(lambda *_: refuse())  # type: ignore[attr-defined]
    yield
    handle.remove()


@pytest.mark.parametrize("failure", [("_noisy_sum", 2), ("release", 0), None], ids=["noise", "release", "look"])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_step_that_failed_is_over(maker: str, failure: tuple[str, int] | None) -> None:
    """Parameters and moments as before, no sum, no gradient, and the next step is its own."""
    step = MAKERS[maker]()
    for number, piece in enumerate(EARLIER):
        accumulate(step, piece, number)
        step.step()
    known = state(step)
    accumulate(step, LATER[0])
    with raising(type(step.optimizer), *failure) if failure else refused(step), pytest.raises(PowerCut):
        step.step()
    after = state(step)
    drawn = {"noise", "inner"} if maker == "projected" else {"noise"}  # σ is written down before
    assert_same(*({name: value for name, value in all_of.items() if name not in drawn} for all_of in (known, after)))
    assert not log(step)
    accumulate(step, LATER[1], STEP + 1)
    step.step()


@pytest.mark.parametrize("maker", MAKERS)
def test_a_closed_step_leaves_no_sum_to_the_next_one(maker: str) -> None:
    """Nor does one that was never closed."""
    step = MAKERS[maker]()
    accumulate(step, LATER[0])
    model = step.close()
    assert all(getattr(p, "summed_grad", None) is None and p.grad is None for p in model.parameters())
    for p in model.parameters():
        p.summed_grad = torch.ones_like(p)  # type: ignore[attr-defined]
    again = private_sgd(model)
    weights = copied(model.up.weight)
    again.step()
    assert torch.equal(weights, model.up.weight)


# ------------------------------------------------------------------------------------------------ of a run


class Ends(Observer):
    """Stops the run, or dies, at some moment of a step."""

    def __init__(self, moment: str, dies: bool, at: int = 2) -> None:
        self._dies, self._at = dies, at
        setattr(self, moment, self._end)

    def _end(self, run: Any, step: Any) -> None:
        if step == self._at:
            if self._dies:
                raise PowerCut
            run.stop()

    def measured(self, run: Any, step: int) -> None:
        """Present in the class, as a moment that is listened to."""

    def before_step(self, run: Any, step: int) -> None:
        """Present in the class, as a moment that is listened to."""


def left(model: nn.Module) -> list[Any]:
    return [getattr(p, kept, None) for p in model.parameters() for kept in ("grad", "summed_grad", "projected_grad")]


RUNS = {"adam": {}, "grape": {"optimizer": {"name": "grape", "rank": 2}}}
RUNS["allocation"] = {"privacy": {"sampling": "allocation"}}


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("moment", ["before_step", "measured"])
def test_a_run_that_ends_within_a_step_leaves_it_uncharged_and_unsummed(
    moment: str, dies: bool, kind: str, tmp_path: Path
) -> None:
    """Parameters, moments and ledger are those after the step before, while the run's model still has its hooks."""
    with run_in_memory(network(), task(), settings(**RUNS[kind]), noise_seed=3) as run:
        run.observers = [Ends(moment, dies)]
        steps = run.steps()
        next(steps)
        weights = {name: copied(p) for name, p in run.parameters.items()}
        moments, charged = copy.deepcopy(run.private.optimizer.state_dict()), run.private.steps_charged
        if dies:
            with pytest.raises(PowerCut):
                next(steps)
        else:
            assert list(steps) == []
        assert left(run.model) == [None] * len(left(run.model))
        assert (run.private.steps_taken, run.private.steps_charged) == (1, charged)
        assert_same(weights, dict(run.parameters))
        now = run.private.optimizer.state_dict()
        assert same(moments["state"], now["state"])


@pytest.mark.parametrize("place", ["charge", "step"])
def test_a_disk_or_an_optimizer_that_fails_leaves_no_sum(place: str, tmp_path: Path) -> None:
    """A charge that could not be written is followed by no noise; a step that failed was charged."""
    from dprmt.training.harness import _run
    from dprmt.training.private_run import _ledger

    model, wanted = network(), settings(training={"checkpoint_every": 1})
    where = (_ledger, "append_line") if place == "charge" else (_run.Run, "_look")
    with raising(*where, 1), pytest.raises(PowerCut):
        train_task(model, task(), wanted, tmp_path / "run", noise_seed=3)
    assert left(model) == [None] * 6
    result = train_task(network(), task(), wanted, tmp_path / "run", noise_seed=3, resume=True)
    lost = {"charge": 0, "step": 1}[place]
    assert (result.steps, result.charged) == (4, 4 + lost)
    # ε of every line is that of the charges, not of the step's number.
    from dprmt.accounting import DPSGD

    run = [entry["epsilon"] for entry in read_metrics(tmp_path / "run")]
    mechanism = DPSGD(1.0, json.loads((tmp_path / "run" / "run.json").read_text())["sample_rate"])
    expected = [mechanism.epsilon(steps=charged, delta=1e-5).upper for charged in range(1, 5 + lost)]
    assert run == ([*expected[:1], *expected[2:]] if lost else expected)
    ledger = (tmp_path / "run" / "privacy.jsonl").read_text().splitlines()
    assert [json.loads(line)["epsilon"] for line in ledger] == expected
    assert result.epsilon == expected[-1]
