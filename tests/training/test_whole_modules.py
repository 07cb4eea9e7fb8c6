"""Modules whose samples are run one by one: sums against a literal loop, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus.layers import DPGRU, DPLSTM
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

from audits.steps import Parts, private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import ExactNorms
from dprmt.training.clipping import ClippedStep
from tests.training.clipping_table import Way, check_released
from tests.training.norms_by_word import by_word
from tests.training.projected import projected_step

D = 6
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks transformers


def net(middle: nn.Module, table: nn.Module | None = None) -> nn.Module:
    """Tokens through a table, the module that is tried, and a linear layer."""
    return Parts(
        lambda model, tokens: model.down(model.middle(model.table(tokens))),
        table=nn.Embedding(13, D) if table is None else table,
        middle=middle,
        down=nn.Linear(D, 5),
    )


def through(layer: nn.Module, call: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> nn.Module:
    """Calls a layer with other arguments, or the sequence first."""
    return Parts(lambda model, inputs: call(model.layer, inputs), layer=layer)


def scaled() -> nn.Module:
    """A parameter beside a layer that is used twice."""
    return Parts(
        lambda model, inputs: model.linear(torch.tanh(model.linear(inputs * model.scale + model.shift))),
        scale=nn.Parameter(torch.full((D,), 1.5)),
        linear=nn.Linear(D, D),
        shift=torch.linspace(0, 1, D),
    )


def twice() -> nn.Module:
    """Layers in two places, of which one is nobody's."""

    def call(model: Any, tokens: torch.Tensor) -> torch.Tensor:
        hidden = model.scale(model.norm(model.layer(model.table(tokens))))
        return model.norm(model.layer(torch.tanh(model.scale(hidden)))) + model.table(tokens.flip(1))

    table = nn.Embedding(13, D, padding_idx=3)
    return Parts(call, table=table, layer=nn.Linear(D, D), norm=nn.LayerNorm(D), scale=scaled())


def class_token() -> nn.Module:
    """A token in front of every text, and positions, as vision transformers have them."""
    return Parts(
        lambda model, inputs: torch.cat([model.token.expand(len(inputs), -1, -1), inputs], 1) + model.positions,
        token=nn.Parameter(torch.ones(1, 1, D)),
        positions=nn.Parameter(torch.randn(1, 4, D)),
    )


def positions() -> nn.Module:
    """One row for all samples."""
    return Parts(
        lambda model, start, length: model.scale * model.table[:, start : start + length],
        table=nn.Parameter(torch.randn(1, 3, D)),
        scale=nn.Parameter(torch.ones(())),
    )


def experts() -> nn.Module:
    """Which expert sees a token depends on the token: torch cannot map it."""

    def call(model: Any, inputs: torch.Tensor) -> torch.Tensor:
        flat = inputs.flatten(0, 1)
        scores, outputs = model.gate(flat).softmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(model.experts):
            (rows,) = torch.where(scores.argmax(-1) == number)
            outputs = outputs.index_add(0, rows, scores[rows, number, None] * expert(flat[rows]) + model.bias)
        return outputs.view(inputs.shape)

    gate, bias = nn.Linear(D, 2), nn.Parameter(torch.ones(D))
    return Parts(call, gate=gate, bias=bias, experts=nn.ModuleList([nn.Linear(D, D), nn.Linear(D, D)]))


def sequence_first(layer: nn.Module, **options: Any) -> nn.Module:
    def call(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
        out = inner(x.transpose(0, 1), **options)
        return (out[0] if isinstance(out, tuple) else out).transpose(0, 1)

    return through(layer, call)


def attention(layer: nn.MultiheadAttention, **options: Any) -> nn.Module:
    def call(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x if layer.batch_first else x.transpose(0, 1)
        padding = torch.zeros(len(x), 3, dtype=torch.bool)
        padding[:, 2] = x[:, 0, 0] > 0  # by sample
        masks = {"key_padding_mask": padding, "attn_mask": torch.ones(3, 3).triu(1).bool()} | options
        mask = masks["attn_mask"]
        if mask is not None and mask.ndim == 1:  # of every sample and head
            masks["attn_mask"] = (x[:, None, :, None, 0] - x[:, None, None, :, 1]).expand(-1, 2, -1, -1).flatten(0, 1)
            masks["key_padding_mask"] = None
        out, weights = inner(y, y, y, **masks)
        out = out if layer.batch_first else out.transpose(0, 1)
        return out if weights is None else out * weights.square().sum((1, 2))[:, None, None]

    return through(layer, call)


def adapted(module: nn.Module, **options: Any) -> nn.Module:
    config = LoraConfig(r=2, lora_alpha=2, target_modules=["0"], init_lora_weights=False, **options)
    return inject_adapter_in_model(config, nn.Sequential(module))


def first(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return inner(x)[0]


def started(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out, (h, c) = inner(x, (x[:, :2].transpose(0, 1).contiguous(), x[:, 1:].transpose(0, 1).contiguous()))
    return out[..., :D] * (h + c).sum(0)[:, None]


KINDS: dict[str, Callable[[], nn.Module]] = {
    "layers in two places": twice,
    "parameter beside layers": lambda: net(scaled()),
    "class token": lambda: net(class_token()),
    "positions": lambda: net(through(positions(), lambda inner, x: x + inner(0, x.shape[1]))),
    "experts": lambda: net(experts()),
    "bilinear": lambda: net(through(nn.Bilinear(D, D, D), lambda inner, x: inner(x, x.flip(1)))),
    "prelu": lambda: net(nn.PReLU()),
    "weight norm": lambda: net(nn.utils.parametrizations.weight_norm(nn.Linear(D, D))),
    "lstm": lambda: net(through(nn.LSTM(D, D, batch_first=True), first)),
    "lstm, two ways, given states": lambda: net(through(nn.LSTM(D, D, bidirectional=True, batch_first=True), started)),
    "lstm, sequence first": lambda: net(sequence_first(nn.LSTM(D, D, num_layers=2))),
    "gru": lambda: net(sequence_first(nn.GRU(D, D))),
    "rnn": lambda: net(through(nn.RNN(D, D, batch_first=True), first)),
    "cell": lambda: net(through(nn.GRUCell(D, D), lambda inner, x: inner(x[:, 1], inner(x[:, 0]))[:, None])),
    "dplstm": lambda: net(through(DPLSTM(D, D, num_layers=2, batch_first=True), first)),
    "dpgru": lambda: net(sequence_first(DPGRU(D, D))),
    "attention": lambda: net(attention(nn.MultiheadAttention(D, 2, batch_first=True))),
    "attention, sequence first": lambda: net(attention(nn.MultiheadAttention(D, 2), need_weights=False)),
    "attention, mask by head": lambda: net(attention(nn.MultiheadAttention(D, 2), attn_mask=torch.ones(1))),
    "encoder layer": lambda: net(nn.TransformerEncoderLayer(D, 2, 8, dropout=0.0, batch_first=True)),
    "encoder layer, sequence first": lambda: net(
        sequence_first(nn.TransformerEncoderLayer(D, 2, 8, dropout=0.0), src_mask=torch.ones(3, 3).triu(1).bool())
    ),
    "lora on an embedding": lambda: net(nn.Identity(), adapted(nn.Embedding(13, D))),
    "dora": lambda: net(adapted(nn.Linear(D, D), use_dora=True)),
}


def flattened() -> nn.Module:
    """Samples and tokens in one axis."""
    return Parts(lambda model, inputs: model.linear(inputs.flatten(0, 1)).view(inputs.shape), linear=nn.Linear(D, D))


def tied() -> nn.Module:
    """A table that two modules have, and that is used beside them too."""

    def call(model: Any, tokens: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(model.table(tokens))
        return model.out(hidden) + nn.functional.linear(hidden, model.table.weight)

    table, out = nn.Embedding(13, D), nn.Linear(D, 13, bias=False)
    out.weight = table.weight
    return Parts(call, table=table, out=out)


NAMED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "samples and tokens in one axis": (lambda: net(flattened()), "middle"),
    "tied": (tied, ""),
}
WAYS = [
    Way("full", clipping, "sample", optimizer)
    for clipping, optimizer in (("exact", "sgd"), ("ghost", "adamw"), ("hutchinson", "sgd"), ("hutch++", "adamw"))
]


def build(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = make().double().train()
    for name, value in model.named_parameters():
        if any("lora" in other for other, _ in model.named_parameters()):
            value.requires_grad_("lora" in name or "down" in name)
    return model


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.clipping)
@pytest.mark.parametrize("kind", [*KINDS, *NAMED])
def test_what_a_step_releases_is_the_literal_sum(kind: str, way: Way) -> None:
    make, *whole = NAMED.get(kind) or (KINDS[kind],)
    model = build(make)
    step = check_released(way, model, whole=whole, tokens=12)
    exact = not step.record.estimated
    assert exact == (way.clipping in ("exact", "ghost") or kind == "tied")
    assert (step.record.norms == ExactNorms()) == exact
    assert step.close() is model


def private(model: nn.Module, **options: Any) -> ClippedStep:
    return private_sgd(model, **{"norms": "exact", "clipping_norm": 1e6} | options)


def accumulate(step: ClippedStep, *inputs: Any, size: int) -> None:
    outputs = step.model(*inputs)
    step.accumulate(outputs.reshape(size, -1).square().sum(1), samples=range(size), step=0)


def with_own(call: Callable[..., Any]) -> nn.Module:
    """A parameter, and what is computed with it from one or two inputs."""
    return Parts(call, scale=nn.Parameter(torch.ones(D)), linear=nn.Linear(D, D), seen=torch.zeros(()))


def counted(own: Any, x: torch.Tensor) -> torch.Tensor:
    own.seen += 1.0
    return x * own.scale


REFUSED: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]], str]] = {
    "samples that mix inside": (
        lambda: with_own(lambda own, x: x * own.scale - x.mean(0)),
        lambda: (torch.randn(4, 3, D),),
        r"model \(Parts\), run on one sample at a time, has another output for 4 samples together than one by one",
    ),
    "samples that are looked up in a sample": (
        lambda: with_own(lambda own, x: x[:1] * x * own.scale),
        lambda: (torch.randn(4, 3, D),),
        r"model \(Parts\), run on one sample at a time, has another output for 4 samples together",
    ),
    "a mask that is as long as the batch": (
        lambda: with_own(lambda own, x, mask: mask @ (x * own.scale)),
        lambda: (torch.randn(3, 3, D), torch.randn(3, 3)),
        r"cut along the first axis: inputs\.0, inputs\.1",
    ),
    "the sequence first": (
        lambda: with_own(lambda own, x, y: y * own.scale),
        lambda: (torch.randn(4, D), torch.randn(3, 4, D)),
        r"model \(Parts\), .* has an output of shape \(3, 4, 6\) for one sample",
    ),
    "a state": (lambda: with_own(counted), lambda: (torch.randn(4, D),), r"a forward pass changes buffer model.seen"),
    "packed sequences in Opacus' layer": (
        lambda: DPLSTM(D, D),
        lambda: (pack_sequence([torch.randn(2, D), torch.randn(2, D)]),),
        r"DPLSTM was given a PackedSequence",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_run_one_by_one_is_refused_by_name(case: str) -> None:
    build, inputs, words = REFUSED[case]
    with pytest.raises((ParameterError, TrainingStateError), match=words):
        private(build()).model(*inputs())


SHARED: dict[str, tuple[Callable[..., Any], torch.Tensor, tuple[int, ...]]] = {
    "mask": (lambda own, x, m: m @ own.linear(x * own.scale), torch.randn(3, 3), (2, 3)),
    "positions": (lambda own, x, at: own.linear(x * own.scale) * (1 + at)[:, None], torch.arange(1, 4), (3, 2)),
    "row numbers": (lambda own, x, at: own.linear(x * own.scale) * at[:, None, None], torch.arange(1, 4), (3, 3)),
}


@pytest.mark.parametrize("case", SHARED)
def test_what_all_samples_share_is_told_from_their_own_where_the_batch_is_as_long(case: str) -> None:
    """A mask (T, T) by a first batch of another size, and then for good; positions (T,) by the output."""
    torch.manual_seed(0)
    call, other, sizes = SHARED[case]
    model = with_own(call)
    step = private(model)
    for number, size in enumerate(sizes):
        inputs = 0.1 * torch.randn(size, 3, D)
        expected = torch.autograd.grad(call(model, inputs, other).square().sum(), model.scale)[0]
        before = model.scale.detach().clone()
        step.accumulate(step.model(inputs, other).square().sum((1, 2)), samples=range(size), step=number)
        step.step()
        torch.testing.assert_close(before - model.scale.detach(), expected, rtol=1e-4, atol=1e-5)


def test_the_second_axis_is_the_sample_or_it_is_refused() -> None:
    """Torch's attention has the sequence first by default: samples given first would attend to each other."""
    step = private(attention_only(nn.MultiheadAttention(D, 2)))
    with pytest.raises(ParameterError, match=r"samples must be the first axis of every trainable layer.*'layer'"):
        accumulate(step, torch.randn(4, 4, D), size=4)


def attention_only(layer: nn.MultiheadAttention) -> nn.Module:
    return through(layer, lambda inner, x: inner(x, x, x)[0])


def test_a_parameter_that_is_used_outside_of_its_module_too_is_refused() -> None:
    inner = with_own(lambda own, x: own.linear(x * own.scale))
    twice = Parts(lambda model, x: model.own(x) * model.own.scale, own=inner)
    with pytest.raises(ParameterError, match=r"used through its own layer only.*got 'own\.scale'"):
        accumulate(private(twice), torch.randn(4, D), size=4)


@pytest.mark.parametrize("batch", [1, 3])
def test_every_sample_has_its_own_dropout_and_the_gradient_is_of_what_it_saw(batch: int) -> None:
    """The masks can be read off the output; so can the gradient that they imply."""
    model = with_own(lambda own, x: nn.functional.dropout(x, 0.5, own.training) * own.scale)
    step, inputs = private(model), torch.ones(batch, 40, D)
    outputs = step.model(inputs)
    seen = outputs.detach()
    assert batch == 1 or not torch.equal(seen[0], seen[1])
    step.accumulate((outputs * torch.arange(1, 41)[:, None]).sum((1, 2)), samples=range(batch), step=0)
    before = model.scale.detach().clone()
    step.step()
    expected = (seen * torch.arange(1, 41)[:, None]).sum((0, 1))  # d/ds Σ t m s = Σ t m, and s = 1
    torch.testing.assert_close(before - model.scale.detach(), expected)


def test_evaluation_and_an_empty_batch_use_the_module_as_it_is() -> None:
    torch.manual_seed(0)
    model = attention_only(nn.MultiheadAttention(D, 2, batch_first=True))
    inputs = torch.randn(4, 3, D)
    expected = model(inputs).detach()
    step = private(model)
    with torch.no_grad():
        assert torch.equal(step.model(inputs), expected)
    step.accumulate(step.model(inputs[:0]).sum((1, 2)), samples=[], step=0)
    step.step()
    torch.testing.assert_close(step.model(inputs).detach(), expected)


def test_a_module_takes_no_later_hook() -> None:
    """It would see one sample of the batch."""
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    step, x = private(attention_only(layer)), torch.randn(3, 4, 8)
    handle = layer.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(TrainingStateError, match="a hook on its forward pass that was registered later"):
        step.model(x)
    handle.remove()
    twin = copy.deepcopy(step.model).eval()
    step.close()
    assert torch.equal(twin(x), step.model.eval()(x))


def test_projections_and_the_loop_of_opacus_refuse_them_by_name() -> None:
    words = r"rank must be left out inside Parts.*model\.linear\.weight"
    options = {"clipping_norm": 1.0, "noise_multiplier": 0.0, "expected_batch_size": 1.0, "lr": 0.1}
    with pytest.raises(ParameterError, match=words):
        projected_step(with_own(lambda own, x: own.linear(x) * own.scale), rank=2, **options)


@pytest.mark.parametrize("clipping", ["exact", "ghost", "hutchinson"])
@pytest.mark.parametrize("case", NAMED)
def test_without_a_name_they_are_refused_with_the_way_out(case: str, clipping: str) -> None:
    model = build(NAMED[case][0])
    tokens = torch.ones(4, 3, dtype=torch.long)

    def train() -> None:
        step = private(model, norms=by_word(clipping, 2))
        step.accumulate(step.model(tokens).sum((1, 2)), samples=range(4), step=0)

    with pytest.raises((ParameterError, TrainingStateError), match=r"in whole=\[\.\.\.\]"):
        train()


def test_a_name_is_one_of_a_trainable_module() -> None:
    model = nn.Sequential(nn.Linear(D, D), nn.Tanh())
    for name in ("1", "2", "0.weight"):
        with pytest.raises(ParameterError, match="whole must be names of the model's trainable modules"):
            private(model, whole=[name])
    assert [layer.layer for layer in private(model, whole=["0"]).record.layers] == ["0"]
    model = nn.Sequential(nn.Linear(D, D))
    assert [layer.layer for layer in private(model, whole=[""]).record.layers] == ["model"]


def test_gradient_checkpointing_around_them_is_refused_by_name() -> None:
    encoder = nn.TransformerEncoderLayer(D, 2, 8, dropout=0.0, batch_first=True)
    parts = {"part": encoder, "head": nn.Linear(D, 3)}
    step = private(Parts(lambda model, x: model.head(checkpoint(model.part, x, use_reentrant=False).mean(1)), **parts))
    with pytest.raises(TrainingStateError, match="gradient checkpointing"):
        accumulate(step, torch.randn(6, 5, D), size=6)


def test_the_recurrent_kernel_has_dropout_of_its_own() -> None:
    step = private(through(nn.LSTM(D, D, num_layers=2, dropout=0.5, batch_first=True), first))
    outputs = step.model(torch.ones(3, 4, D))
    assert not torch.equal(outputs[0], outputs[1])
    step.accumulate(outputs.square().sum((1, 2)), samples=range(3), step=0)
