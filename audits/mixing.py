"""``python -m audits mixing``: user code in which a sample's loss depends on others, where no gradient shows it.

How far one sample's absence moves the clipped sum, which is claimed to be at most C, where losses are given as a
tensor; and what `ClippedStep.accumulate` says where the same losses are a function of the batch. Nothing here is a
matter of chance: the rate of later looks is 0.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from audits.steps import Parts, private_sgd
from audits.table import markdown
from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.clipping import ClippedStep

Batch = dict[str, torch.Tensor]
Losses = Callable[[nn.Module, Batch], torch.Tensor]
_WORDS, _WIDTH, _SIZE = 40, 8, 16


@dataclass(frozen=True)
class Code:
    """What a user might write.

    Attributes
    ----------
    what : str
        In words.
    model : callable
        Makes the model.
    losses : callable
        From (model, batch) to each sample's loss.
    batches : callable
        The micro-batches, each a logical step; one sample is missing from the last.
    clipping_norm : float
        C.
    """

    what: str
    model: Callable[[], nn.Module]
    losses: Losses
    batches: Callable[[], Sequence[Batch]]
    clipping_norm: float = 1.0


@dataclass(frozen=True)
class Finding:
    """What trying a code showed.

    Attributes
    ----------
    moved : float
        The largest distance between clipped sums with and without one sample, in units of C.
    micro_batch : int or None
        The first one that was refused; None if all were taken.
    said : str
        How.
    """

    moved: float
    micro_batch: int | None
    said: str


def language() -> nn.Module:
    """Words to scores of words, every position by itself; positions are learned."""
    parts = {"words": nn.Embedding(_WORDS, _WIDTH), "head": nn.Linear(_WIDTH, _WORDS)}
    return Parts(lambda model, input_ids: model.head(model.words(input_ids)), **parts)


def _head_of(call: Callable[..., torch.Tensor]) -> Callable[[], nn.Module]:
    """A linear layer behind a function of the batch."""
    return lambda: Parts(lambda model, *batch: model.head(call(*batch)).flatten(), head=nn.Linear(_WIDTH, 1))


def _between() -> nn.Module:
    """A batch's standard score under ``no_grad``, between layers."""

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        x = model.first(x)
        with torch.no_grad():
            mean, std = x.mean(0), x.std(0)
        return model.last((x - mean) / std).flatten()

    return Parts(call, first=nn.Linear(_WIDTH, _WIDTH), last=nn.Linear(_WIDTH, 1))


def _wrong_axis() -> nn.Module:
    """A frozen encoder that takes the samples for a sequence, as torch's do by default."""
    encoder = nn.GRU(_WIDTH, 4 * _WIDTH).requires_grad_(False)
    return Parts(lambda model, x: model.head(encoder(x)[0]).flatten(), encoder=encoder, head=nn.Linear(4 * _WIDTH, 1))


def running_mean(width: int = _WIDTH) -> nn.Module:
    """A mean of what came so far, in a buffer."""

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model.mean.mul_(0.1).add_(x.mean(0), alpha=0.9)
        return model.head(x - model.mean).flatten()

    return Parts(call, head=nn.Linear(width, 1), mean=torch.zeros(width))


def _statistic_of_whole() -> nn.Module:
    """A module that is run sample by sample is handed the batch's mean."""

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        memory = x.mean(0, keepdim=True).expand_as(x)[:, None]
        return model.head(model.attention(x[:, None], memory, memory, need_weights=False)[0]).flatten()

    return Parts(call, attention=nn.MultiheadAttention(_WIDTH, 2, batch_first=True), head=nn.Linear(_WIDTH, 1))


_single = _head_of(lambda x: x)
_sorted = _head_of(lambda x, lengths: x[lengths.argsort(stable=True)])
"""Rows by length, as recurrent layers wanted them once, and never put back."""


def _put_back(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Sorted around what is not trained, with the rows put back."""
    order = lengths.argsort()
    return functional.dropout(x[order].tanh()[order.argsort()], 0.5)


def _standardized_rows(x: torch.Tensor) -> torch.Tensor:
    """Over a sample's own numbers, with noise of its own."""
    x = x + torch.randn_like(x)
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


class TopTwo(nn.Module):
    """A mixture of experts as published models have it: a loop over the experts, each for the rows that chose it."""

    def __init__(self, experts: int = 2) -> None:
        super().__init__()
        self.gate = nn.Linear(_WIDTH, experts, bias=False)
        self.gate.requires_grad_(False)
        self.experts = nn.ModuleList(nn.Linear(_WIDTH, 1) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (B,)."""
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2, dim=-1)
        out = x.new_zeros(len(x), 1)
        places = functional.one_hot(chosen, len(self.experts)).permute(2, 1, 0)  # expert, slot, sample
        for number, expert in enumerate(self.experts):
            slot, row = torch.where(places[number])
            out.index_add_(0, row, expert(x[row]) * weights[row, slot, None])
        return out.flatten()


def _rescaled() -> nn.Module:
    """Gradients that flow back are normalized over the batch."""

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        x = model.first(x)
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient / gradient.norm())
        return model.last(x).flatten()

    return Parts(call, first=nn.Linear(_WIDTH, _WIDTH), last=nn.Linear(_WIDTH, 1).requires_grad_(False))


def squares(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The squared error of one number."""
    return (model(*(value for name, value in batch.items() if name != "y")) - batch["y"]).square()


def over_the_largest(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Divided by the batch's largest loss, detached."""
    losses = squares(model, batch)
    return losses / losses.detach().max()


def mixed_up(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Inputs and targets averaged with another sample's, at a random distance that is never 0."""
    size = len(batch["x"])
    other = torch.arange(size).roll(1 + int(torch.randint(max(1, size - 1), ())))
    return squares(model, {name: (value + value[other]) / 2 for name, value in batch.items()})


def _per_token(model: nn.Module, batch: Batch) -> torch.Tensor:
    targets = functional.pad(batch["input_ids"][:, 1:], (0, 1), value=-100)
    targets = targets.masked_fill(functional.pad(batch["attention_mask"][:, 1:], (0, 1)) == 0, -100)
    logits = model(batch["input_ids"])
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=-100)
    return losses.view_as(targets)


def over_padding(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The mean over the padded length, ``loss.view(B, -1).mean(1)``."""
    return _per_token(model, batch).mean(1)


def over_all_tokens(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The sum over the tokens, divided by the batch's number of them."""
    num_items_in_batch = batch["attention_mask"].sum()
    return _per_token(model, batch).sum(1) / num_items_in_batch


def over_own_tokens(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The mean over the sample's own tokens."""
    return _per_token(model, batch).sum(1) / (batch["attention_mask"].sum(1) - 1)


def _points(size: int = _SIZE, *, outlier: float = 1.0) -> Batch:
    x = torch.randn(size, _WIDTH)
    x[-1] *= outlier
    return {"x": x, "y": torch.randn(size)}


def _alike(outlier: float) -> Batch:
    """Samples that pull the same way, one of them far harder."""
    target = torch.full((_SIZE,), 3.0)
    target[-1] *= outlier
    return {"x": 1 + 0.1 * torch.randn(_SIZE, _WIDTH), "y": target}


def _texts(lengths: Sequence[int]) -> Batch:
    """Beginnings of one text."""
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": torch.randint(1, _WORDS, mask.shape[1:]) * mask, "attention_mask": mask}


def _in_order(lengths: Sequence[int]) -> Batch:
    return _points(len(lengths)) | {"lengths": torch.tensor(lengths)}


def _routed(signs: Sequence[int]) -> Batch:
    """Rows of which the gate, the first number by :func:`_with_gate`, chooses one of two experts first."""
    batch = _points(len(signs))
    batch["x"][:, 0] = batch["x"][:, 0].abs() * torch.tensor(signs)
    return batch


def _with_gate() -> nn.Module:
    model = TopTwo()
    with torch.no_grad():
        model.gate.weight.zero_()
        model.gate.weight[:, 0] = torch.tensor([1.0, -1.0])
    return model


def codes() -> list[Code]:
    """The ten that were found, then others."""
    short = [*[4] * 15, 60]
    mixed = [1, -1] * (_SIZE // 2)
    lengths = [5, 12, 0, 9, 3, 15, 7, 1, 14, 10, 2, 8, 13, 4, 11, 6]
    return [
        Code("per-token loss, mean over the padded length", language, over_padding, lambda: [_texts(short)]),
        Code("token sum over the batch's number of tokens", language, over_all_tokens, lambda: [_texts(short)], 0.1),
        Code(
            "`(x - x.mean(0)) / x.std(0)` before the first layer",
            _head_of(lambda x: (x - x.mean(0)) / x.std(0)),
            squares,
            lambda: [_points(outlier=100.0)],
        ),
        Code("the same under `no_grad` between layers", _between, squares, lambda: [_points(outlier=100.0)]),
        Code("a frozen encoder over the wrong axis, trained head", _wrong_axis, squares, lambda: [_points()], 0.1),
        Code("losses divided by their detached maximum", _single, over_the_largest, lambda: [_alike(50.0)]),
        Code("a running mean in a buffer", running_mean, squares, lambda: [_points(outlier=300.0)]),
        Code(
            "a batch statistic as an input of a module that is run sample by sample",
            _statistic_of_whole,
            squares,
            lambda: [_points(outlier=300.0)],
        ),
        Code(
            "rows sorted by length inside the model, the first micro-batch in order",
            _sorted,
            squares,
            lambda: [_in_order(range(_SIZE)), _in_order(lengths)],
        ),
        Code(
            "top-2 mixture of experts, the first micro-batch routed to one expert first",
            _with_gate,
            squares,
            lambda: [_routed([1] * _SIZE), _routed(mixed)],
        ),
        Code(
            "rows sorted by length inside the model, the first micro-batch of one length",
            _sorted,
            squares,
            lambda: [_in_order([7] * _SIZE), _in_order(lengths)],
        ),
        Code(
            "inputs averaged with another sample's, drawn at random (mixup)",
            _head_of(lambda x: x),
            mixed_up,
            lambda: [_points()],
        ),
        Code("a hook that divides gradients by the batch's norm", _rescaled, squares, lambda: [_alike(50.0)], 0.1),
    ]


def right_codes() -> list[Code]:
    """The same, written so that no sample depends on another: all are taken."""
    lengths, put_back = [3, 2, 1, 0], _head_of(_put_back)
    return [
        Code("mean over a sample's own tokens", language, over_own_tokens, lambda: [_texts([3, 9, 5, 7])] * 2),
        Code(
            "rows put back in their order",
            put_back,
            squares,
            lambda: [_in_order(range(4)), _in_order(lengths)],
        ),
        Code("inputs standardized by themselves", _head_of(_standardized_rows), squares, lambda: [_points()] * 2),
    ]


def find(code: Code) -> Finding:
    """Try a code as it is, and with its losses as a function."""
    return Finding(_moved(code), *_refused(code))


def mixing() -> dict[str, Finding]:
    """All of them by what they do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {code.what: find(code) for code in codes()}


def table(found: dict[str, Finding]) -> str:
    """As the page has it."""
    rows = []
    for what, finding in found.items():
        refused = "**taken**" if finding.micro_batch is None else f"micro-batch {finding.micro_batch}"
        rows.append([what, f"{finding.moved:.1f} C", refused, finding.said])
    return markdown(["user's code", "moves by", "refused at", "by"], rows)


def taken(code: Code) -> bool:
    """Whether no micro-batch of it is refused."""
    return _refused(code)[0] is None


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a code was taken."""
    torch.set_num_threads(1)
    found = mixing()
    print(table(found), end="")
    return 1 if any(finding.micro_batch is None for finding in found.values()) else 0


def _moved(code: Code) -> float:
    torch.manual_seed(0)
    model, batches = code.model().train(), code.batches()
    everybody = _sum(code, copy.deepcopy(model), batches)
    distances = [
        float((_sum(code, copy.deepcopy(model), [*batches[:-1], part]) - everybody).norm())
        for part in _without_one(batches[-1])
    ]
    return max(distances) / code.clipping_norm


def _refused(code: Code) -> tuple[int | None, str]:
    torch.manual_seed(0)
    step, batches = _private(code, code.model().train()), code.batches()
    for number, batch in enumerate(batches):
        try:
            step.accumulate(partial(code.losses, step.model), samples=_names(batch), step=number, batch=batch)
        except (ParameterError, TrainingStateError) as error:
            return number + 1, str(error).partition(": ")[0]
        step.step()
    return None, "–"


def _sum(code: Code, model: nn.Module, batches: Sequence[Batch]) -> torch.Tensor:
    """Of clipped gradients of the last micro-batch, losses given as a tensor."""
    torch.manual_seed(1)
    step = _private(code, model)
    for number, batch in enumerate(batches):
        before = {name: value.clone() for name, value in model.named_buffers()}
        _unguarded(step, code.losses, batch, number)
        sums = [value.summed_grad.flatten() for value in step.optimizer.params]
        step.step()
        assert before.keys() == dict(model.named_buffers()).keys()
    return torch.cat(sums)


def _unguarded(step: ClippedStep, losses: Losses, batch: Batch, number: int) -> None:
    step._was_checked = True  # gradients that mix are seen in tensors too: here, what if they were not
    found = losses(step.model, batch)
    step._capture._buffers = {}  # buffers that change are refused whatever is given: here, what if they were not
    step.accumulate(found, samples=_names(batch), step=number)


def _private(code: Code, model: nn.Module) -> ClippedStep:
    step: ClippedStep = private_sgd(model, 0.0, clipping_norm=code.clipping_norm, replay=0.0)
    return step


def _names(batch: Batch) -> range:
    return range(len(next(iter(batch.values()))))


def _without_one(batch: Batch) -> Iterator[Batch]:
    """The batch without each of its samples; texts are padded to the longest that is left."""
    for left_out in _names(batch):
        kept = [row for row in _names(batch) if row != left_out]
        part = {name: value[kept] for name, value in batch.items()}
        if "attention_mask" in part:
            width = int(part["attention_mask"].sum(1).max())
            part = {name: value[:, :width] for name, value in part.items()}
        yield part


if __name__ == "__main__":
    sys.exit(main())
