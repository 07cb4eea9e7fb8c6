"""``python -m audits coverage``: which layers each clipping takes, found by trying.

A layer is taken if a step releases the literal sum of clipped gradients, one backward pass a sample; what is refused is
refused by name. Nothing else may happen.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from audits.steps import make_private
from audits.table import markdown
from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.norms import HutchinsonEstimator, HutchPlusPlusEstimator
from dprmt.training.optimizers import DPGrape
from dprmt.training.subspaces import Subspaces

CLIPPINGS = ("exact", "ghost", "hutchinson", "hutch++", "DP-GRAPE")
_BATCH, _TIME, _WIDTH = 3, 4, 6
_NORM = 1e-3  # every sample is clipped
_NAMED = ", the model named in `whole`"


class OwnParameter(nn.Module):
    """A layer of somebody else's: one input, no parts."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Scaled."""
        return inputs * self.scale


class Beside(nn.Module):
    """A parameter beside other layers: a mask token, a learned position."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.linear = nn.Parameter(torch.ones(_WIDTH)), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Shifted and mapped."""
        return self.linear(inputs + self.token)


class OtherLinear(nn.Linear):
    """A subclass that computes what its parent does."""


class DoubledLinear(nn.Linear):
    """A subclass that computes something else with the same parameters."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Twice."""
        return 2 * super().forward(inputs)


class Flattened(nn.Module):
    """Samples and tokens in one axis, as mixtures of experts have them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Back in two axes."""
        return self.linear(inputs.flatten(0, 1)).view(inputs.shape)


class Tied(nn.Module):
    """An embedding's table is the output matrix too, outside of any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, _WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Scores of all words."""
        return torch.nn.functional.linear(self.table(inputs), self.table.weight)


class Attention(nn.Module):
    """Self-attention."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Without the weights."""
        return self.layer(inputs, inputs, inputs, need_weights=False)[0]


class SequenceFirst(nn.Module):
    """A recurrent layer that wants the sequence as first axis, as torch's do by default."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The samples first again."""
        return self.layer(inputs.transpose(0, 1))[0].transpose(0, 1)


class Recurrent(nn.Module):
    """All hidden states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Without the last ones."""
        return self.layer(inputs)[0]


def models() -> dict[str, Callable[[], nn.Module]]:
    """By name, what is tried."""
    from opacus.layers import DPLSTM, DPMultiheadAttention

    attention = {"embed_dim": _WIDTH, "num_heads": 2}
    return {
        "`nn.Linear`": lambda: nn.Linear(_WIDTH, _WIDTH),
        "`nn.Embedding`": lambda: nn.Embedding(9, _WIDTH),
        "`nn.LayerNorm`": lambda: nn.LayerNorm(_WIDTH),
        "`nn.Conv1d`": lambda: nn.Conv1d(_TIME, 5, 3),
        "a subclass of `nn.Linear`": lambda: OtherLinear(_WIDTH, _WIDTH),
        "a subclass of `nn.Linear` that computes something else": lambda: DoubledLinear(_WIDTH, _WIDTH),
        "a module with an `nn.Parameter` of its own": OwnParameter,
        "an `nn.Parameter` beside other layers": Beside,
        "LoRA on linear layers": lambda: _adapted(nn.Sequential(nn.Linear(_WIDTH, _WIDTH)), ["0"]),
        "LoRA on embeddings": lambda: _adapted(nn.Sequential(nn.Embedding(9, _WIDTH)), ["0"]),
        "DoRA": lambda: _adapted(nn.Sequential(nn.Linear(_WIDTH, _WIDTH)), ["0"], use_dora=True),
        "samples and tokens in one axis": Flattened,
        f"samples and tokens in one axis{_NAMED}": Flattened,
        "an embedding that is the output matrix too": Tied,
        f"an embedding that is the output matrix too{_NAMED}": Tied,
        "`nn.LSTM`": lambda: Recurrent(nn.LSTM(_WIDTH, _WIDTH, batch_first=True)),
        "`nn.GRU`, the sequence first": lambda: SequenceFirst(nn.GRU(_WIDTH, _WIDTH)),
        "Opacus' `DPLSTM`": lambda: Recurrent(DPLSTM(_WIDTH, _WIDTH, batch_first=True)),
        "`nn.MultiheadAttention`": lambda: Attention(nn.MultiheadAttention(**attention, batch_first=True)),
        "Opacus' `DPMultiheadAttention`": lambda: Attention(DPMultiheadAttention(**attention, batch_first=True)),
        "`nn.TransformerEncoderLayer`": lambda: nn.TransformerEncoderLayer(
            _WIDTH, 2, dim_feedforward=8, dropout=0.0, batch_first=True
        ),
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a step released something else than the literal sum."""
    torch.set_num_threads(1)
    found = coverage()
    print(table(found), end="")
    return 1 if any(word == "**wrong**" for words in found.values() for word in words) else 0


def coverage() -> dict[str, list[str]]:
    """For every model, a word for every clipping."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {}
        for name, make in models().items():
            whole = [""] if name.endswith(_NAMED) else []
            found[name] = [outcome(make, clipping, whole) for clipping in CLIPPINGS]
        return found


def table(found: dict[str, list[str]]) -> str:
    """As the page has it: a line for all layers with the same outcomes."""
    head = ["layers", *(f"`{name}`" if name != "DP-GRAPE" else name for name in CLIPPINGS)]
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, words in found.items():
        groups.setdefault(tuple(words), []).append(name)
    return markdown(head, [["; ".join(names), *words] for words, names in groups.items()])


def outcome(make: Callable[[], nn.Module], clipping: str, whole: Sequence[str] = ()) -> str:
    """The word "yes", "refused", or "wrong" if a step is not the literal sum."""
    torch.manual_seed(0)
    model = make().double().train()
    inputs, plain = _inputs(model), copy.deepcopy(model)
    before = {name: value.detach().clone() for name, value in _trained(model).items()}
    try:
        private = _private(model, clipping, whole)
        private.accumulate(_losses(private.model, inputs), samples=range(_BATCH), step=0)
    except (ParameterError, TrainingStateError):
        return "refused"
    private.step()
    expected = _literal(plain, inputs)
    moved = {name: before[name] - value.detach() for name, value in _trained(model).items()}
    return "yes" if _as_expected(moved, expected, clipping) else "**wrong**"


def _private(model: nn.Module, clipping: str, whole: Sequence[str]) -> Any:
    options: dict[str, Any] = {"clipping_norm": _NORM, "noise_multiplier": 0.0, "expected_batch_size": 1.0}
    options["whole"] = whole
    if clipping == "DP-GRAPE":
        # With square orthonormal projectors nothing is lost: the sum is that of exact clipping.
        subspaces = Subspaces(model, rank=lambda layer: layer.m, projector="stiefel", seed=0)
        grape = DPGrape(_trained(model).values(), lr=1.0, subspaces=subspaces, rule="sgd")
        return make_private(model, grape, norms="exact", **options)
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=1.0)
    estimated = {"hutchinson": HutchinsonEstimator(4), "hutch++": HutchPlusPlusEstimator(4)}
    return make_private(model, optimizer, norms=estimated.get(clipping, clipping), **options)


def _as_expected(moved: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], clipping: str) -> bool:
    if clipping.startswith("hutch"):
        # Random lengths: the sum lies in the span of the samples' gradients, in the same proportion in all parameters.
        stack = torch.stack([torch.cat([g[i].flatten() for g in expected.values()]) for i in range(_BATCH)])
        total = torch.cat([value.flatten() for value in moved.values()])
        weights = torch.linalg.lstsq(stack.T, total).solution
        return bool((stack.T @ weights - total).norm() <= 1e-6 * total.norm()) and bool((weights > 0).all())
    tolerance = 3e-4 if clipping == "DP-GRAPE" else 1e-7  # its margin for rounding is at least 2⁻¹³
    return all(
        bool((value - expected[name].sum(0)).norm() <= 1e-3 * tolerance + tolerance * expected[name].norm())
        for name, value in moved.items()
    )


def _literal(model: nn.Module, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    samples = []
    for i in range(_BATCH):
        model.zero_grad()
        _losses(model, inputs[i : i + 1]).sum().backward()
        samples.append({name: value.grad.clone() for name, value in _trained(model).items() if value.grad is not None})
    names = samples[0]
    norms = [torch.cat([value.flatten() for value in sample.values()]).norm() for sample in samples]
    return {
        name: torch.stack([s[name] * (_NORM / norm) for s, norm in zip(samples, norms, strict=True)]) for name in names
    }


def _losses(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    # Neither even nor linear in any output.
    outputs = model(inputs).flatten(1)
    return (outputs.sin() * torch.arange(1, outputs.shape[1] + 1)).sum(1)


def _inputs(model: nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if any(isinstance(module, nn.Embedding) for module in model.modules()):
        return torch.randint(0, 9, (_BATCH, _TIME), generator=generator)
    return torch.randn(_BATCH, _TIME, _WIDTH, generator=generator, dtype=torch.float64)


def _trained(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _adapted(model: nn.Module, targets: list[str], **options: Any) -> nn.Module:
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=2, lora_alpha=2, target_modules=targets, **options)
    adapted: nn.Module = inject_adapter_in_model(config, model)
    for name, value in adapted.named_parameters():
        value.requires_grad_("lora" in name)
        if value.requires_grad and "magnitude" not in name:
            nn.init.normal_(value, std=0.3)
    return adapted


if __name__ == "__main__":
    sys.exit(main())
