"""Time and memory of a private step of units with several rows, as ratios to the same step without privacy.

``python -m benchmarks.units --model wide`` (a linear layer of width 2048, trained whole) and ``--model classifier`` (a
small BERT with LoRA) keep the rows of a step and deal them to units of 1, 4, 16 and 64: one unit at a time, in
micro-batches that may cut it, or side by side with every kind of norm. Least CPU time of some rounds, in each of which
everything is timed once, on one thread; memory is the peak of live tensors beyond the parameters. ``--picture`` draws
what is stored of both.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dprmt.training.clipping import TensorMemory, Units, make_private, plan_private

WAYS = {
    "alone": "one at a time",
    "exact": "together, exact",
    "ghost": "together, Gram",
    "hutchinson": "together, Hutchinson",
    "hutch++": "together, Hutch++",
}
"""One at a time, or side by side with these norms."""
RESULTS = Path(__file__).parent / "results"
STORED = {"wide": RESULTS / "units.json", "classifier": RESULTS / "units_lora.json"}
TITLES = {"wide": "a linear layer of width 2048", "classifier": "a small classifier with LoRA"}
TOKENS = 128


@dataclass(frozen=True)
class Cost:
    """Of one step: CPU seconds and MiB, each over those of a step without privacy."""

    way: str
    rows: int
    time: float
    memory: float


class Wide:
    """Linear layers of one width, trained whole, with GELUs between."""

    def __init__(self, width: int, layers: int) -> None:
        self._width, self._layers = width, layers

    def model(self) -> nn.Module:
        """With the same weights every time."""
        torch.manual_seed(0)
        return nn.Sequential(
            *[part for _ in range(self._layers) for part in (nn.Linear(self._width, self._width), nn.GELU())]
        )

    def batch(self, rows: int) -> torch.Tensor:
        """Inputs that want a gradient, as those of a layer inside a network do."""
        return torch.randn(rows, TOKENS, self._width, requires_grad=True)

    def losses(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """One for each row."""
        return model(batch).square().mean((1, 2))


class Classifier:
    """BERT of MiniLM's width with random weights: adapters of rank 16 at queries and values, and a head."""

    def __init__(self, width: int, layers: int) -> None:
        self._width, self._layers = width, layers

    def model(self) -> nn.Module:
        """With the same weights every time."""
        from peft import LoraConfig, get_peft_model
        from transformers import BertConfig, BertForSequenceClassification

        torch.manual_seed(0)
        size = {"hidden_size": self._width, "num_hidden_layers": self._layers, "num_attention_heads": 12}
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = BertConfig(vocab_size=1000, intermediate_size=4 * self._width, **size, **still)
        adapters = LoraConfig(r=16, lora_alpha=32, target_modules=["query", "value"], task_type="SEQ_CLS")
        return get_peft_model(BertForSequenceClassification(config), adapters).train()

    def batch(self, rows: int) -> torch.Tensor:
        """Tokens."""
        return torch.randint(0, 1000, (rows, TOKENS))

    def losses(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """One for each row."""
        return torch.nn.functional.cross_entropy(model(batch).logits, batch[:, 0] % 2, reduction="none")


Step = Callable[[torch.Tensor], None]
"""Over all rows of a batch."""


def private_step(way: str, setting: Any, rows: int, total: int, micro: int) -> tuple[nn.Module, Step]:
    """A model, and a logical step over ``total`` rows, dealt to units of ``rows``."""
    model = setting.model()
    step = make_private(
        model,
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-6),
        norms="ghost" if way == "alone" else way,
        clipping_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=total / rows,
        units=Units(rows, regime="alone" if way == "alone" else "together"),
        replay=0.0,
    )
    numbers = iter(range(10**6))
    size = min(rows, micro) if way == "alone" else max(rows, micro)

    def run(batch: torch.Tensor) -> None:
        number = next(numbers)
        for start in range(0, len(batch), size):
            part = list(range(start, min(start + size, len(batch))))
            found = setting.losses(step.model, batch[part])
            step.accumulate(found, samples=part, units=[i // rows for i in part], step=number)
        step.step()

    return model, run


def plain_step(setting: Any, micro: int) -> tuple[nn.Module, Step]:
    """The same rows in micro-batches, without privacy."""
    model = setting.model()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-6)

    def run(batch: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        for start in range(0, len(batch), micro):
            setting.losses(model, batch[start : start + micro]).sum().backward()
        optimizer.step()

    return model, run


def measured(model: nn.Module, run: Step, batch: torch.Tensor) -> tuple[float, float]:
    """CPU seconds of one step, and MiB of live tensors beyond the parameters at its peak."""
    with TensorMemory(list(model.parameters())) as memory:
        held, started = memory.live, time.process_time()
        run(batch)
        return time.process_time() - started, (memory.peak - held) / 2**20


def costs(setting: Any, rows: list[int], total: int, micro: int, rounds: int) -> Iterator[Cost]:
    """Of every way at every number of rows; the rows of a step are ``total``, or those of one unit if it has more."""
    for each in rows:
        batch = setting.batch(max(total, each))
        steps = {"plain": plain_step(setting, micro)}
        steps |= {way: private_step(way, setting, each, len(batch), micro) for way in WAYS}
        for _, run in steps.values():
            run(batch[:, :4])  # the first step also looks for what mixes rows
        found = [{way: measured(*step, batch) for way, step in steps.items()} for _ in range(rounds)]
        seconds = {way: min(one[way][0] for one in found) for way in steps}
        for way in WAYS:
            yield Cost(way, each, seconds[way] / seconds["plain"], found[-1][way][1] / found[-1]["plain"][1])


def table(found: list[Cost]) -> list[str]:
    """Time × and memory × of a plain step, by rows a unit."""
    rows = sorted({cost.rows for cost in found})
    lines = ["| way | " + " | ".join(f"{each} row{'s' * (each > 1)}" for each in rows) + " |"]
    lines.append("|---|" + "---|" * len(rows))
    for way, words in WAYS.items():
        cells = [next(cost for cost in found if (cost.way, cost.rows) == (way, each)) for each in rows]
        lines.append(f"| {words} | " + " | ".join(f"{cost.time:.2f}, {cost.memory:.2f}" for cost in cells) + " |")
    return lines


def stored(model: str) -> list[Cost]:
    """What was measured."""
    return [Cost(**cost) for cost in json.loads(STORED[model].read_text())["costs"]]


def chosen(rows: int, micro: int) -> str:
    """The regime that sizes alone decide for."""
    options: dict[str, Any] = {"clipping_norm": 1.0, "expected_batch_size": 1.0, "tokens": TOKENS}
    return plan_private(nn.Linear(2, 1), norms="ghost", units=Units(rows, micro), **options).regime


def draw(axes: Any) -> None:
    """Time and memory of both models against the rows of a unit; a ring around the regime that is chosen."""
    from dprmt.plots._style import LINES, MARKERS, PALETTE, finish

    for row, (model, title) in zip(axes, TITLES.items(), strict=True):
        found, micro = stored(model), json.loads(STORED[model].read_text())["micro"]
        for ax, what in zip(row, ("time", "memory"), strict=True):
            for place, (way, words) in enumerate(WAYS.items()):
                own = [cost for cost in found if cost.way == way]
                look = {"color": PALETTE[place], "linestyle": LINES[place], "marker": MARKERS[place]}
                ax.plot([cost.rows for cost in own], [getattr(cost, what) for cost in own], label=words, **look)
            for each in sorted({cost.rows for cost in found}):
                inside = [c for c in found if c.rows == each and (c.way == "alone") == (chosen(each, micro) == "alone")]
                height = min(getattr(cost, what) for cost in inside)
                ax.plot([each], [height], "o", markersize=15, fillstyle="none", color="0.45")
            ax.set_xscale("log", base=2)
            ax.set_yscale("log", base=2)
            ax.set_xticks([1, 4, 16, 64], ["1", "4", "16", "64"])
            ax.yaxis.set_major_formatter("{x:g} ×")
            ax.axhline(1.0, color="0.6", linewidth=0.8)
            ax.set_xlabel("rows of a person")
            finish(ax, f"{title}: {'CPU time' if what == 'time' else 'peak memory'}")
    axes[0, 0].legend(fontsize="small")


def main() -> None:
    """Print the table; ``--results`` keeps the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(STORED), default="wide")
    parser.add_argument("--width", type=int, help="2048, or 384 of the classifier")
    parser.add_argument("--layers", type=int, help="1, or 2 of the classifier")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--total", type=int, default=32, help="rows of a step, unless a unit has more")
    parser.add_argument(
        "--micro", type=int, default=16, help="rows of a micro-batch, unless a unit side by side has more"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", action="store_true", help="keep the numbers in benchmarks/results")
    parser.add_argument("--picture", type=Path, help="draw what is stored into this file, and measure nothing")
    options = vars(parser.parse_args())
    picture, store, model = options.pop("picture"), options.pop("store"), options.pop("model")
    if picture is not None:
        from dprmt.plots import save_picture

        save_picture(picture, draw, size=(10.0, 7.4), panels=(2, 2))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Opacus' hooks, of inputs that need no gradient
    options["width"] = options["width"] or {"wide": 2048, "classifier": 384}[model]
    options["layers"] = options["layers"] or {"wide": 1, "classifier": 2}[model]
    setting = {"wide": Wide, "classifier": Classifier}[model](options["width"], options["layers"])
    sizes = {name: options[name] for name in ("rows", "total", "micro", "rounds")}
    found = []
    for cost in costs(setting, **sizes):
        found.append(cost)
        print(cost, flush=True)
    print("\n".join(table(found)))
    if store:
        kept = {"model": model, "tokens": TOKENS, **options, "costs": [asdict(cost) for cost in found]}
        STORED[model].write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
