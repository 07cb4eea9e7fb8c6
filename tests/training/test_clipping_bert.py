"""A BERT that is given tokens alone: its position embeddings have no batch axis, whatever is clipped."""

from __future__ import annotations

import copy

import torch
from transformers import BertConfig, BertForSequenceClassification

from audits.steps import make_private
from dprmt.training.clipping import ClippedStep
from tests.training.grape_reference import clipped_sum, literal_gradients, project
from tests.training.projected import projected_step

SIZE, LENGTH = 5, 7


def bert() -> BertForSequenceClassification:
    """Small, in float64, without dropout."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(**sizes, **dropout, vocab_size=20, max_position_embeddings=9, num_labels=3)
    return BertForSequenceClassification(config).double().train()


def losses(model: torch.nn.Module) -> torch.Tensor:
    """Of every sample, some clipped at 1 and some not."""
    tokens = torch.randint(1, 20, (SIZE, LENGTH), generator=torch.Generator().manual_seed(1))
    scale = torch.linspace(0.05, 20.0, SIZE, dtype=torch.float64)
    return scale * model(input_ids=tokens).logits.square().mean(1)


def sums(step: ClippedStep) -> dict[str, torch.Tensor]:
    """What is summed, before any noise."""
    step.accumulate(losses(step.model), samples=range(SIZE), step=0)
    named = step.model.named_parameters()
    return {name: p.summed_grad for name, p in named if p.requires_grad}


def test_whole_gradients_are_those_of_a_literal_loop() -> None:
    model = bert()
    wanted = clipped_sum(literal_gradients(copy.deepcopy(model), losses), 1.0)
    step = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        norms="exact",
        clipping_norm=1.0,
        noise_multiplier=0.0,
        expected_batch_size=SIZE,
    )
    for name, value in sums(step).items():
        torch.testing.assert_close(value, wanted[name], rtol=2e-4, atol=1e-12)


def test_projected_gradients_are_those_of_a_literal_loop() -> None:
    model = bert()
    samples = literal_gradients(copy.deepcopy(model), losses)
    step = projected_step(
        model, rank=3, refresh_every=2, clipping_norm=1.0, noise_multiplier=0.0, expected_batch_size=SIZE, lr=0.1
    )
    wanted = clipped_sum([{name: project(step, name, g) for name, g in sample.items()} for sample in samples], 1.0)
    for name, value in sums(step).items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-9, atol=1e-12)
