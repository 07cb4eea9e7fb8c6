"""Every way to clip: small private steps, and a literal loop over samples for what they release."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from opacus.layers.dp_rnn import RNNLinear
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.checkpoint import checkpoint

from dprmt.training.clipping import ClippedStep, plan_private
from dprmt.training.clipping._modules import trainable_modules
from dprmt.training.norms import ProbeGenerator, cheaper_side
from dprmt.training.optimizers import DPAdamBC, DPGrape
from dprmt.training.subspaces import Subspaces
from tests.training.literal import clipped_sum, gradients_of
from tests.training.norms_by_word import by_word

K, S, R, L, SEED, STEP = 2, 1, 4, 0.75, 5, 7
IDS = [11, "b", 7, 3]
TRAINED = ("full", "lora", "projected")
CLIPPINGS = ("exact", "ghost", "hutchinson", "hutch++")
SHARINGS = ("batch", "sample")
OPTIMIZERS = ("sgd", "adamw", "adambc")


class Way(NamedTuple):
    """One line of the table."""

    trained: str
    clipping: str
    sharing: str
    optimizer: str


WAYS = [Way(*way) for way in itertools.product(TRAINED, CLIPPINGS, SHARINGS, OPTIMIZERS)]


class Net(nn.Module):
    """Tokens through an embedding, two linear layers and a normalization, to scores."""

    checkpointed = False

    def __init__(self) -> None:
        super().__init__()
        self.table, self.up, self.norm = nn.Embedding(13, 6), nn.Linear(6, 9), nn.LayerNorm(9)
        self.down = nn.Linear(9, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores (B, T, 5) of tokens (B, T)."""
        hidden = self.table(tokens)
        return checkpoint(self._block, hidden, use_reentrant=False) if self.checkpointed else self._block(hidden)

    def _block(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(torch.tanh(self.up(hidden))))


def make_model(way: Way) -> nn.Module:
    """In float64, the same weights every time; with adapters of rank 4 for "lora"."""
    torch.manual_seed(0)
    model: nn.Module = Net()
    if way.trained == "lora":
        config = LoraConfig(r=R, lora_alpha=4, target_modules=["up", "down"], init_lora_weights=False)
        model = get_peft_model(model, config)
    return model.double().train()


def data() -> torch.Tensor:
    """Tokens (4, 3)."""
    return torch.randint(0, 13, (len(IDS), 3), generator=torch.Generator().manual_seed(1))


def losses(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Of very different sizes."""
    return (1.0 + tokens.double().sum(1) ** 2) * model(tokens).square().mean((1, 2))


def make_step(
    way: Way, model: nn.Module, clipping_norm: float, *, seed: int = 9, tokens: int = 3, **options: object
) -> ClippedStep:
    """Private, without noise."""
    subspaces = Subspaces(model, rank=R, seed=seed) if way.trained == "projected" else None
    plan = plan_private(
        model,
        norms=by_word(way.clipping, K, S, sharing=way.sharing, seed=SEED),
        clipping_norm=clipping_norm,
        expected_batch_size=L,
        tokens=tokens,
        subspaces=subspaces,
        **options,
    )
    trained = [value for value in model.parameters() if value.requires_grad]
    if subspaces is not None:
        rule = {"sgd": "sgd", "adamw": "adam", "adambc": "adambc"}[way.optimizer]
        optimizer = DPGrape(trained, 0.1, subspaces=subspaces, rule=rule, weight_decay=0.01, floor=1e-6)
    elif way.optimizer == "adambc":
        optimizer = DPAdamBC(trained, 0.1, noise_variance=plan.noise_variance(0.0), floor=1e-6)
    else:
        optimizer = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[way.optimizer](trained, lr=0.1)
    return plan.privatize(optimizer, noise_multiplier=0.0)


def released(step: ClippedStep, model: nn.Module, network: nn.Module | None = None) -> dict[str, torch.Tensor]:
    """What a step gives the inner optimizer, before it moves; in two micro-batches.

    ``network``: what is called in place of the step's model.
    """
    with received(step, model) as found:
        for part in (slice(0, 1), slice(1, None)):
            found_losses = losses(step.model if network is None else network, data()[part])
            step.accumulate(found_losses, samples=IDS[part], step=STEP)
        step.step()
    return found


@contextmanager
def received(step: Any, model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """What the inner optimizer is given at its last step, by parameter."""
    found: dict[str, torch.Tensor] = {}

    def look(*_: object) -> None:
        for name, p in model.named_parameters():
            if p.requires_grad:
                projected = getattr(p, "projected_grad", None)
                found[name] = (p.grad if projected is None else projected).detach().clone()

    handle = step.optimizer.original_optimizer.register_step_pre_hook(look)
    yield found
    handle.remove()


def check_released(
    way: Way,
    model: nn.Module,
    tolerance: float = 1e-7,
    backend: str | None = None,
    whole: Sequence[str] = (),
    **options: object,
) -> ClippedStep:
    """Whether a step gives Σ min(1, (1-ρ)C/√n̂_i) g_i / L, up to a share of each parameter's own; some g are clipped."""
    norms, samples = norms_of(way, model, whole), literal_gradients(way, model)
    bound = sorted(norms)[1]
    step = make_step(way, model, bound, whole=whole, **options)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    found = released(step, model, network=None if backend is None else torch.compile(step.model, backend=backend))
    limit = (1 - step.rounding) * bound
    assert min(limit / norm for norm in norms) < 0.9 < 0.999 < max(limit / norm for norm in norms)
    assert found.keys() == before.keys()
    for name, total in clipped_sum(samples, limit, norms).items():
        wanted = total / L
        assert float((found[name] - wanted).norm()) <= tolerance * float(wanted.norm()) + 1e-12, name
    assert any((p != before[name]).any() for name, p in model.named_parameters() if name in before)
    return step


def literal_gradients(way: Way, model: nn.Module) -> list[dict[str, torch.Tensor]]:
    """One backward pass for every sample; weights in subspaces projected afterwards."""
    plain = copy.deepcopy(model)
    subspaces = Subspaces(plain, rank=R, seed=9) if way.trained == "projected" else []
    result = gradients_of(plain, (losses(plain, row[None]) for row in data()))
    for gradients in result:
        gradients |= {name: value.double() for name, value in gradients.items()}
        for layer in subspaces:
            projector = subspaces.projector(layer.weight).double()
            gradients[layer.name] = projector.T @ layer.orient(gradients[layer.name])
    return result


def literal_squared_norm(
    way: Way, model: nn.Module, gradients: dict[str, torch.Tensor], sample: int | str, whole: Sequence[str] = ()
) -> float:
    """n̂ from gradients that were formed: weights of linear layers with the probes drawn again, the rest exactly."""
    total = {name: float(value.square().sum()) for name, value in gradients.items()}
    names = {value: name for name, value in model.named_parameters()}
    for name, (module, _) in trainable_modules(model, whole).items():
        if way.clipping in ("exact", "ghost") or type(module) not in (nn.Linear, RNNLinear):
            continue
        weight, bias = names[module.weight], names.get(module.bias) if way.trained != "projected" else None
        if weight in gradients:
            total[weight] = _estimate(way, name, gradients[weight], gradients.get(bias), sample)
            total |= dict.fromkeys({bias} & gradients.keys(), 0.0)  # estimated with the weight
    return sum(total.values())


def _estimate(way: Way, name: str, weight: torch.Tensor, bias: torch.Tensor | None, sample: int | str) -> float:
    matrix = weight.T if bias is None else torch.cat([weight.T, bias[None]])  # d x p, and a row for the bias
    if cheaper_side(*weight.shape[::-1], bias=bias is not None) == "activations":
        matrix = matrix.T

    def draw(purpose: str, width: int) -> torch.Tensor:
        options = {"step": STEP, "layer": name, "rows": matrix.shape[1], "probes": width, "purpose": purpose}
        generator = ProbeGenerator(SEED)
        if way.sharing == "batch":
            return generator.shared(**options, dtype=torch.float64)
        return generator.per_sample([sample], **options, dtype=torch.float64)[0]

    P = draw("probes", K)
    if way.clipping == "hutchinson":
        return float((matrix @ P).square().sum())
    Q = torch.linalg.qr(matrix.T @ (matrix @ draw("sketch", S))).Q
    tail = matrix - (matrix @ Q) @ Q.T
    return float((matrix @ Q).square().sum() + (tail @ P).square().sum())


def norms_of(way: Way, model: nn.Module, whole: Sequence[str] = ()) -> list[float]:
    """√n̂ of every sample."""
    pairs = zip(literal_gradients(way, model), IDS, strict=True)
    return [math.sqrt(literal_squared_norm(way, model, gradients, sample, whole)) for gradients, sample in pairs]
