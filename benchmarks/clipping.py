"""Time and peak memory of a private step by clipping method, as ratios within one run, over sequence lengths.

Each case runs in a process of its own, in one thread, and its CPU time is taken: a RoBERTa-like encoder with all
layers trained, or with LoRA. Memory is the growth of the process' peak resident set over what it held before its
first forward pass. "plain" is training without privacy; "opacus ghost" is Opacus' own two backward passes.
``python -m benchmarks.clipping --tokens 128 1024 4096 --width 256`` prints the long table;
with ``--width 4096 --layers 1 --batch-size 2 --repeats 1`` the widest model of which a per-sample gradient of every
layer and 4,096 tokens fit into 16 GiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

METHODS = ("plain", "exact", "opacus ghost", "ghost", "hutchinson", "hutch++")


@dataclass(frozen=True)
class Case:
    """One method on one model."""

    method: str
    tokens: int
    width: int = 256
    layers: int = 2
    batch_size: int = 4
    probes: int = 32
    lora_rank: int = 0
    repeats: int = 3


@dataclass(frozen=True)
class Measurement:
    """Least CPU time of a step, and growth of the peak resident set."""

    seconds: float
    mebibytes: float


def measure(case: Case) -> Measurement:
    """Run a case in a new process."""
    command = [sys.executable, "-m", "benchmarks.clipping", "--case", json.dumps(asdict(case))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


def table(
    tokens: Sequence[int], *, methods: Sequence[str] = METHODS, out: Callable[[str], object] = print, **options: int
) -> dict[tuple[str, int], Measurement]:
    """Measure every method at every length; one line each, with ratios to the first method's."""
    results = {}
    out(f"{'T':>6} {'method':14} {'CPU s':>8} {'ratio':>6} {'MiB':>8} {'ratio':>6}")
    for length in tokens:
        for method in methods:
            result = results[method, length] = measure(Case(method, length, **options))
            first = results[methods[0], length]
            time_ratio, memory_ratio = result.seconds / first.seconds, result.mebibytes / first.mebibytes
            numbers = f"{result.seconds:8.3f} {time_ratio:6.2f} {result.mebibytes:8.0f} {memory_ratio:6.2f}"
            out(f"{length:6d} {method:14} {numbers}")
    return results


def _run(case: Case) -> Measurement:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = _stepper(case)
    before = _resident()
    times = []
    for number in range(1 + case.repeats):
        start = time.process_time()
        step(number)
        times.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measurement(min(times[1:]), max(peak - before, 1.0))


def _resident() -> float:
    fields = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in fields if line.startswith("VmRSS")) / 1024


def _stepper(case: Case) -> Callable[[int], None]:
    import torch
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
    from torch.nn import functional

    from dprmt.training.clipping import make_private
    from dprmt.training.norms import HutchinsonEstimator, HutchPlusPlusEstimator

    model = _model(case)
    inputs = torch.randint(2, 1000, (case.batch_size, case.tokens))
    labels = torch.zeros(case.batch_size, dtype=torch.long)
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=1e-3)

    def losses(network: torch.nn.Module) -> torch.Tensor:
        return functional.cross_entropy(network(input_ids=inputs).logits, labels, reduction="none")

    def plain(number: int) -> None:
        optimizer.zero_grad()
        losses(model).mean().backward()
        optimizer.step()

    if case.method == "plain":
        return plain
    if case.method == "opacus ghost":
        hooks = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0)
        noisy = DPOptimizerFastGradientClipping(
            optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=case.batch_size
        )

        def ghost(number: int) -> None:
            noisy.zero_grad()
            DPTensorFastGradientClipping(hooks, noisy, losses(hooks)).backward()
            noisy.step()

        return ghost
    words: dict[str, Any] = {"hutchinson": HutchinsonEstimator, "hutch++": HutchPlusPlusEstimator}
    norms = words[case.method](case.probes) if case.method in words else case.method
    private = make_private(
        model,
        optimizer,
        norms=norms,
        clipping_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=case.batch_size,
    )

    def step(number: int) -> None:
        private.accumulate(losses(private.model), samples=range(case.batch_size), step=number)
        private.step()

    return step


def _model(case: Case):
    from peft import LoraConfig, get_peft_model
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(
        vocab_size=1000,
        hidden_size=case.width,
        intermediate_size=4 * case.width,
        num_hidden_layers=case.layers,
        num_attention_heads=max(1, case.width // 64),
        max_position_embeddings=case.tokens + 2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=1,
    )
    model = RobertaForSequenceClassification(config).train()
    if case.lora_rank:
        targets = LoraConfig(task_type="SEQ_CLS", r=case.lora_rank, target_modules=["query", "value"])
        model = get_peft_model(model, targets).train()
    return model


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table, or run the one case that :func:`measure` asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.case:
        print(json.dumps(asdict(_run(Case(**json.loads(options.case))))))
    else:
        settings = {name: value for name, value in vars(options).items() if name not in ("tokens", "case")}
        table(options.tokens, **settings)


if __name__ == "__main__":
    main(sys.argv[1:])
