"""``python -m benchmarks.first_step``: the first private step, which is checked, over later ones.

CPU time on one thread, in one process a table: the first step over the median of later ones, for models from a small
multilayer perceptron to MiniLM with LoRA, at micro-batches of 64 and of 256 samples. A step is one micro-batch, or as
many as make a batch of 1,024: only the first of them is checked. Weights and data are random. Half
of each text may be padding.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from audits.steps import make_private
from audits.table import markdown

Batch = dict[str, torch.Tensor]
_TOKENS, _CLASSES = 32, 10


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, _CLASSES))


def _convolutions() -> nn.Module:
    first = [nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1)]
    second = [nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, _CLASSES))


def _bert(width: int, layers: int, heads: int, words: int, *, adapters: bool) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
        model = BertForSequenceClassification(BertConfig(vocab_size=words, intermediate_size=4 * width, **sizes))
        if not adapters:
            return model
        from peft import LoraConfig, get_peft_model

        return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["query", "value"]))

    return make


def _vectors(size: int) -> Batch:
    return {"input": torch.randn(size, 64), "y": torch.arange(size) % _CLASSES}


def _images(size: int) -> Batch:
    return {"input": torch.randn(size, 1, 28, 28), "y": torch.arange(size) % _CLASSES}


def _texts(size: int) -> Batch:
    lengths = torch.randint(_TOKENS // 2, _TOKENS + 1, (size, 1))
    mask = (torch.arange(_TOKENS) < lengths).long()
    return {"input_ids": torch.randint(1, 1000, mask.shape) * mask, "attention_mask": mask, "y": torch.arange(size) % 2}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batch]]] = {
    "perceptron, 3 layers": (_perceptron, _vectors),
    "convolutions, 4 layers": (_convolutions, _images),
    "BERT, 4 layers of 128": (_bert(128, 4, 4, 1000, adapters=False), _texts),
    "the same, LoRA 8": (_bert(128, 4, 4, 1000, adapters=True), _texts),
    "MiniLM, 6 layers of 384, LoRA 8": (_bert(384, 6, 12, 30_522, adapters=True), _texts),
}


def seconds(name: str, size: int, count: int, later: int) -> list[float]:
    """CPU time of the first step, of ``count`` micro-batches, and of later ones."""
    make, data = MODELS[name]
    torch.manual_seed(0)
    model, batch = make().train(), data(size)

    def losses(rows: Batch) -> torch.Tensor:
        inputs: dict[str, Any] = {key: value for key, value in rows.items() if key != "y"}
        found = model(**inputs)
        return functional.cross_entropy(getattr(found, "logits", found), rows["y"], reduction="none")

    losses(batch).sum().backward()  # what torch does once in a process
    private = make_private(
        model,
        torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.0),
        norms="ghost",
        clipping_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=float(size * count),
        replay=0.0,
    )
    found = []
    for number in range(later + 1):
        started = time.process_time()
        for start in range(0, size * count, size):
            private.accumulate(losses, batch=batch, samples=range(start, start + size), step=number)
        private.step()
        found.append(time.process_time() - started)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--later", type=int, default=5, help="later steps")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for name in options.models:
        for size, whole in ((micro, batch) for micro in options.sizes for batch in (micro, 1024)):
            first, *later = seconds(name, size, whole // size, options.later)
            usual = statistics.median(later)
            times = [f"{1e3 * first:.0f}", f"{1e3 * usual:.0f}", f"{first / usual:.2f}"]
            rows.append([name, str(size), str(whole), *times])
    print(markdown(["model", "micro-batch", "batch", "first step, ms", "a later one, ms", "ratio"], rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
