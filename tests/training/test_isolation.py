"""Micro-batches of one row, extreme rows, states and faint effects: what moved sums by 1 to 212 C is refused."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

from audits.steps import Parts, private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.training.clipping import ClippedStep, Units
from dprmt.training.clipping._unit_step import UnitStep
from tests.training.literal import clipped_sum, gradients_of, norm_of

SIZE, WIDTH = 16, 5


def private(model: nn.Module, **options: Any) -> Any:
    return private_sgd(model.train(), 0.0, expected_batch_size=4.0, **options)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))


def accumulate(step: Any, losses: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, number: int = 0) -> None:
    units = {"units": list(range(len(x)))} if isinstance(step, UnitStep) else {}
    step.accumulate(losses, batch=x, samples=range(len(x)), step=number, **units)


def outcome(step: Any, losses: Any, batch: Any, size: int, refused: str | None, number: int = 0) -> None:
    """Taken, or refused with these words."""
    errors = (ParameterError, TrainingStateError)
    with pytest.raises(errors, match=refused) if refused else nullcontext():
        step.accumulate(losses, batch=batch, samples=range(size), step=number)


def running_mean() -> nn.Module:
    """Earlier samples are in a plain attribute, which is no buffer."""
    mean = [torch.zeros(WIDTH)]

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        out = model.head(x - mean[0])
        mean[0] = 0.9 * mean[0] + 0.1 * x.detach().mean(0)
        return out.flatten()

    return Parts(call, head=nn.Linear(WIDTH, 1))


def negatives() -> nn.Module:
    """A queue of earlier samples is in the loss."""
    queue = [torch.ones(3)]

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        found = model.head(x)
        against = (found @ torch.stack(queue[-4:]).T).logsumexp(1)
        queue.append(found[0].detach())
        return against

    return Parts(call, head=nn.Linear(WIDTH, 3))


@pytest.mark.parametrize("units", [None, Units(2, regime="alone")])
@pytest.mark.parametrize("build", [running_mean, negatives])
def test_a_state_shows_in_micro_batches_of_one_row_and_in_units_that_run_alone(
    build: Callable[[], nn.Module], units: Units | None
) -> None:
    """They were never looked at: the sum moved by 8.5 C and 2 C."""
    torch.manual_seed(0)
    step = private(build(), units=units)
    with pytest.raises(TrainingStateError, match="depend"):
        accumulate(step, lambda x: step.model(x).square(), torch.randn(1, WIDTH))
    assert all(getattr(value, "summed_grad", None) is None for value in step.optimizer.params)


def test_a_row_that_is_alone_is_looked_at_beside_an_earlier_one() -> None:
    """What is wrong only beside a row with another sign shows as soon as there was one."""
    step = private(network(), replay=1.0)

    def losses(x: torch.Tensor) -> torch.Tensor:
        return step.model(x).square() * (1.0 + (x[:, 0].min() < 0))

    x = torch.randn(2, WIDTH)
    x[:, 0] = torch.tensor([-1.0, 1.0])
    accumulate(step, losses, x[:1])
    assert step.replays == 1
    step.step()
    with pytest.raises(TrainingStateError, match="a loss depends on other samples"):
        accumulate(step, losses, x[1:], 1)


def test_a_row_that_is_alone_at_first_leaves_the_next_micro_batch_to_be_looked_at() -> None:
    """Only more than two rows mix."""
    step, x = private(network(), replay=0.0), torch.randn(SIZE, WIDTH)
    for number, (size, said) in enumerate(((1, None), (SIZE, "no sample in another's loss"))):
        outcome(step, lambda x: (l := step.model(x)) + (l.mean() if len(x) > 2 else 0.0), x[:size], size, said, number)
        step.step()


Losses = Callable[[Any, Any], torch.Tensor]
MIXED = r"depends? on other samples"


def squares(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x).square()


def changed(
    change: Losses, dtype: torch.dtype = torch.float32, words: str | None = MIXED
) -> Callable[[], tuple[Any, ...]]:
    """Squares, changed by what else is in the batch: from (losses, rows)."""

    def make() -> tuple[Any, ...]:
        model, x = network().to(dtype), torch.randn(SIZE, WIDTH).to(dtype)
        return model, lambda net, x: change(squares(net, x), x), x, words

    return make


def in_gradients(losses: torch.Tensor, weight: Any) -> torch.Tensor:
    return losses.detach() + weight * (losses - losses.detach())


def weighted_by_the_last_call() -> Losses:
    last = [torch.tensor(1.0)]

    def losses(found: torch.Tensor, _: Any) -> torch.Tensor:
        weighted, last[0] = found * last[0], found.detach().mean()
        return weighted

    return losses


def with_a_negative_row(place: int) -> tuple[Any, ...]:
    """It has another loss where it is alone."""
    x = torch.rand(SIZE, WIDTH) + 0.1
    x[place, 0] = -1.0
    return network(), lambda net, x: squares(net, x) * (1.0 + (len(x) == 1) * (x[:, 0] < 0)), x, "on other samples"


def quantized() -> tuple[Any, ...]:
    """Activations in int8, by the largest of the batch; within the tolerance of 16 bits."""

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = torch.tanh(model.first(x))
            scale = hidden.detach().abs().max() / 127
            return model.last(hidden + ((hidden / scale).round() * scale - hidden).detach()).flatten().float()

    return Parts(call, first=nn.Linear(WIDTH, 32), last=nn.Linear(32, 1)), squares, torch.randn(SIZE, WIDTH), "depend"


def flagged() -> tuple[Any, ...]:
    """Masks stay where other rows are turned into their opposite: copies of a row have its flags."""

    def losses(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return squares(model, batch["x"]) * (1.0 + 1e-8 * batch["flag"].double().mean())

    return network().double(), losses, {"x": torch.randn(SIZE, WIDTH).double(), "flag": torch.arange(SIZE) % 2}, MIXED


class Broken(torch.autograd.Function):
    """The identity, whose gradient of chosen rows is not a number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        (rows,) = ctx.saved_tensors
        return torch.where(rows[:, None], torch.nan, gradient), None


def broken(breaks: bool) -> tuple[Any, ...]:
    """Rows with a positive first number lose their gradient if another row has a negative one; losses stay."""

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        return Broken.apply(model.head(x), (x[:, 0] > 0) & (x[:, 0] < 0).any() & breaks).flatten()

    model = Parts(call, head=nn.Linear(WIDTH, 1))
    return model, squares, torch.rand(SIZE, WIDTH) + 0.1, "on other samples" if breaks else None


def single(call: Losses) -> tuple[Any, ...]:
    """One layer, of a function of the rows."""
    model = Parts(lambda model, x: call(model, x).flatten(), head=nn.Linear(WIDTH, 1))
    return model, squares, torch.randn(SIZE, WIDTH), "inputs of head depend on other samples"


def sorted_rows() -> tuple[Any, ...]:
    """Nothing is exchanged in the first micro-batch: rows of opposite sign beside one show it all the same."""
    model, losses, x, words = single(lambda model, x: model.head(x[x.sum(1).argsort(stable=True)]))
    return model, losses, x[:1].abs().expand(SIZE, WIDTH).clone(), words


def sent(positive: int) -> tuple[Any, ...]:
    """Each row to the expert that its sign names; where one takes all, beside rows of the opposite sign it does not."""

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(len(x))
        for number, expert in enumerate(model.experts):
            (mine,) = ((x[:, 0] > 0) == bool(number)).nonzero(as_tuple=True)
            if len(mine):
                out = out.index_put((mine,), expert(x[mine]).flatten())
        return out

    x = torch.randn(4, WIDTH).abs()
    x[positive:, 0] *= -1
    return Parts(call, experts=nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(2))), squares, x, "experts"


def shared() -> tuple[Any, ...]:
    """The batch's mean goes into a module that is run sample by sample, as one row for all."""
    inner = Parts(
        lambda model, x, centre: model.head((x - centre) * model.scale),
        scale=nn.Parameter(torch.ones(WIDTH)),
        head=nn.Linear(WIDTH, 1),
    )
    model = Parts(lambda model, x: model.mixed(x, x.mean(0).detach()[None]).flatten(), mixed=inner)
    return model, squares, torch.randn(SIZE, WIDTH), MIXED


CALLS = itertools.count()
OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "earlier rows": lambda l: l.cumsum(0) - l,
    "later rows": lambda l: l.flip(0).cumsum(0).flip(0) - l,
    "row 0 from all": lambda l: l[0],
    "the last from all": lambda l: l[-1],
    "opposite": lambda l: l.flip(0),
}
CASES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "extreme, NaN guard over the batch, 212 C": changed(
        lambda l, _: l if bool(torch.isfinite(l).all()) else 0.0 * l.nan_to_num()
    ),
    "extreme, above mean + 3 sd dropped, 12 C": changed(lambda l, _: l * (l <= l.mean() + 3.0 * l.std()).detach()),
    "extreme, dropped but NaN": changed(
        lambda l, _: l * ((own := l.detach().nan_to_num()) <= own.mean() + 3.0 * own.std())
    ),
    "extreme, far above the median dropped": changed(
        lambda l, _: torch.where(l > 100.0 * l.detach().median(), 0.0 * l, l)
    ),
    "extreme, halved": changed(lambda l, _: l * (0.5 if bool(l.nan_to_num().max() > 1e4) else 1.0)),
    "extreme, scaled by the largest, 6.8 C": changed(lambda l, _: l / l.detach().max().clamp_min(100.0)),
    "weights from the last call, 31 C": changed(weighted_by_the_last_call()),
    "a hundredth in gradients, 6.6 C": changed(
        lambda l, _: in_gradients(l, 1.0 + 0.01 * torch.tanh(l.detach().nan_to_num().mean()))
    ),
    "size alone, in gradients": changed(lambda l, x: in_gradients(0.01 * l, 1.0 + 0.5 * (len(x) > 1))),
    "faint, the largest number of the batch": changed(lambda l, x: l * (1.0 + 1e-8 * x.abs().max()), torch.float64),
    "faint, how often it was called": changed(lambda l, _: l * (1.0 + 2e-10 * next(CALLS)), torch.float64),
    "faint, a flag of other rows": flagged,
    "its own row": changed(lambda l, _: l + 1e-13 * l, torch.float64, None),
    **{
        f"derivative, far below what values show: {name}": changed(
            lambda l, _, others=others: l + 1e-13 * others(l), torch.float64, "no sample in another's loss"
        )
        for name, others in OTHERS.items()
    },
    "the first row alone": partial(with_a_negative_row, 0),
    "the last row alone": partial(with_a_negative_row, SIZE - 1),
    "a function that fails for a row alone": changed(lambda l, x: l + 0 * x[1].sum(), words="fails for a sample alone"),
    "fake quantization under autocast, 1.9 C": quantized,
    "a gradient that is finite beside some rows only": partial(broken, True),
    "a gradient that is finite": partial(broken, False),
    "chances that depend on the batch": lambda: single(
        lambda model, x: model.head(x * torch.bernoulli(torch.sigmoid(4 * (x - x.mean(0)))))
    ),
    "sorted where all are alike": sorted_rows,
    "experts, one of them": partial(sent, 4),
    "experts, both": partial(sent, 3),
    "what all samples share": shared,
    "a grad scaler": changed(lambda l, _: torch.amp.GradScaler("cpu", init_scale=1024.0).scale(l), words="GradScaler"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_mixes_is_refused_at_the_first_micro_batch(name: str) -> None:
    torch.manual_seed(0)
    model, losses, batch, words = CASES[name]()
    size = SIZE if isinstance(batch, dict) else len(batch)
    outcome(private(model, replay=0.0), partial(losses, model), batch, size, words)


def test_later_checks_run_any_two_rows_alone() -> None:
    torch.manual_seed(0)
    step, x, alone = private(network(), replay=1.0), torch.rand(5, WIDTH), []
    x[:, 0] = torch.arange(5.0)

    def losses(x: torch.Tensor) -> torch.Tensor:
        if len(x) == 1:
            alone.append(int(x[0, 0]))
        return step.model(x).square()

    for number in range(41):
        accumulate(step, losses, x, number)
        step.step()
        alone = alone if number else []  # the first check is of the ends
    assert set(alone) == set(range(5))  # each is left out with probability (3/5)^40


@pytest.mark.parametrize("widths", [(7, 9), (7, 7)])
def test_padding_that_nothing_says_is_met_when_the_width_changes(widths: tuple[int, int]) -> None:
    """Of a fixed width it is no other sample's; of the longest text of a batch it is: 2.2 C."""
    parts = {"words": nn.Embedding(11, WIDTH), "head": nn.Linear(WIDTH, 1)}
    step = private(Parts(lambda model, words: model.head(model.words(words).mean(1)).flatten(), **parts))
    for number, width in enumerate(widths):
        torch.manual_seed(number)
        words = torch.randint(1, 11, (4, width))
        words[1, -3:], words[2, -1:] = 0, 0
        words[0, -1] = words[3, -1] = 5

        refused = r"depends on its padding: .* give an attention_mask" if number and widths[0] != widths[1] else None
        outcome(step, lambda x: step.model(x).square(), words, 4, refused, number)
        step.step()


# What is right, and was refused.


def go_on(model: nn.Module, x: Any, losses: Any = None, **options: Any) -> ClippedStep:
    """Three micro-batches, each looked at; the same losses, but divided by their largest, are refused."""
    step: ClippedStep = private(model, replay=1.0, **options)
    function = (lambda x: step.model(x).flatten(1).square().sum(1)) if losses is None else losses
    size = len(next(iter(x.values()))) if isinstance(x, dict) else len(x[0]) if isinstance(x, tuple) else len(x)
    refuses_mixing(step, function, x, size)
    for number in range(3):
        step.accumulate(function, batch=x, samples=range(size), step=number)
        step.step()
    assert step.replays == 3
    return step


def refuses_mixing(step: Any, function: Callable[[Any], torch.Tensor], batch: Any, size: int) -> None:
    def mixed(batch: Any) -> torch.Tensor:
        found = function(batch)
        return found / found.detach().max()

    with pytest.raises(TrainingStateError, match="on other samples"):
        step.accumulate(mixed, batch=batch, samples=range(size), step=0)
    assert step.replays == 0


def encoded(model: Any, x: torch.Tensor) -> torch.Tensor:
    """With the sequence first, as long as the batch."""
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    return model.encoder(model.first(x).transpose(0, 1), src_mask=mask).transpose(0, 1)


RIGHT: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "checkpointing with dropout": lambda: (
        Parts(
            lambda model, x: checkpoint(model.block, x, use_reentrant=False),
            block=nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 4)),
        ),
        torch.randn(SIZE, WIDTH),
    ),
    "sequence first": lambda: (
        Parts(encoded, first=nn.Linear(WIDTH, 8), encoder=nn.TransformerEncoderLayer(8, 2, 8, dropout=0.1)),
        torch.randn(6, 6, WIDTH),
    ),
    "relu in place": lambda: (
        nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(6, 4), nn.ReLU(inplace=True)),
        torch.randn(SIZE, 1, WIDTH),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_goes_on(name: str) -> None:
    go_on(*RIGHT[name]())


def test_autocast() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3))

    def losses(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.cross_entropy(model(x).float(), (x[:, 0] > 0).long(), reduction="none")

    go_on(model, torch.randn(32, WIDTH), losses)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft
@pytest.mark.parametrize("words", [99, 100])
def test_adapters_in_16_bits_are_taken(words: int) -> None:
    """Every micro-batch is checked; an odd number of words is the length of rows that products run along."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=words, tie_word_embeddings=False, **sizes)).to(torch.bfloat16)
    model = get_peft_model(model, LoraConfig(r=3, target_modules=["q_proj", "v_proj"]))

    def losses(x: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=x, use_cache=False).logits[:, :-1].float()
        return functional.cross_entropy(logits.transpose(1, 2), x[:, 1:], reduction="none").mean(1)

    go_on(model, torch.randint(1, words, (SIZE, 9)), losses)


def test_frozen_batch_normalization_in_evaluation_mode_until_it_is_trained() -> None:
    """There it is a fixed map."""
    model, x = nn.Sequential(nn.BatchNorm1d(WIDTH).requires_grad_(False).eval(), nn.Linear(WIDTH, 2)), torch.randn(4, 5)
    step = private_sgd(model)
    refuses_mixing(step, lambda x: model(x).square().sum(1), x, 4)
    accumulate(step, lambda x: model(x).square().sum(1), x)
    step.step()
    model[0].train()
    with pytest.raises(TrainingStateError, match="0 is in training mode"):
        accumulate(step, lambda x: model(x).square().sum(1), x, 1)


def test_spectral_norm() -> None:
    """It iterates as often as there are micro-batches, whose number is private; evaluation mode stops it."""
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, 4)), nn.Linear(4, 1))
    step, x = private(model, replay=1.0), torch.randn(SIZE, WIDTH)

    def losses(x: torch.Tensor) -> torch.Tensor:
        return step.model(x).square().sum(1)

    with pytest.raises(TrainingStateError, match=r"spectral norm .*parametrizations\.weight\[0\]\.eval\(\)"):
        accumulate(step, losses, x)
    model[0].parametrizations.weight[0].eval()
    accumulate(step, losses, x)


def test_a_frozen_half_is_no_way_in() -> None:
    """The other network's step goes through this one, as a generator's through a discriminator."""
    critic, generator = network(), nn.Linear(WIDTH, WIDTH)
    step = private(critic)
    accumulate(step, lambda x: step.model(x).square(), torch.randn(SIZE, WIDTH))
    before = [value.summed_grad.clone() for value in critic.parameters()]
    critic.eval()
    (-step.model(generator(torch.randn(SIZE, WIDTH)))).sum().backward()
    assert generator.weight.grad is not None
    critic.train()
    with pytest.raises(TrainingStateError, match=r"other than the one of accumulate\(\)"):
        step.model(torch.randn(SIZE, WIDTH)).sum().backward()
    assert all(torch.equal(value.summed_grad, one) for value, one in zip(critic.parameters(), before, strict=True))


def literal(model: nn.Module, losses: Callable[[Any], torch.Tensor], parts: list[Any]) -> list[torch.Tensor]:
    """Sum of the gradients of each part alone, clipped at 1; those that are not finite are left out."""
    each = gradients_of(model, map(losses, parts))
    kept = [{name: g.double() for name, g in own.items()} for own in each if norm_of(own) < float("inf")]
    return [*clipped_sum(kept, 1.0).values()]


@pytest.mark.parametrize("autocast", [False, True])
def test_a_row_that_is_not_finite_takes_no_neighbour_with_it_in_16_bits(autocast: bool) -> None:
    """Products in bfloat16 on a CPU read on after rows of odd length, where 0 times NaN is NaN."""
    torch.manual_seed(0)
    dtype = torch.float32 if autocast else torch.bfloat16
    model = nn.Sequential(nn.Linear(33, 64), nn.Tanh(), nn.Linear(64, 1)).to(dtype)
    plain, step, x = copy.deepcopy(model), private(model), torch.randn(48, 33, dtype=dtype)
    x[5:9] = torch.inf

    def losses(x: torch.Tensor, model: nn.Module = model) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return (model(x).float().flatten() - 9.0).square()

    accumulate(step, losses, x)
    sums = [value.summed_grad for value in step.optimizer.params]
    expected = literal(plain, partial(losses, model=plain), [row[None] for row in x])
    distance = sum(float((one - two).square().sum()) for one, two in zip(sums, expected, strict=True)) ** 0.5
    assert distance < 0.3  # rounding; a neighbour that is left out has a norm of 1
    assert torch.backends.mkldnn.enabled
