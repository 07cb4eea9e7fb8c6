"""Next-token prediction: the sets, the closed form of the head against autograd, LoRA, public text."""

from __future__ import annotations

import math

import pytest

from dprmt import ParameterError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("opacus")

from paper_figures.next_token import (  # noqa: E402
    HeadData,
    head_and_features,
    small_gpt2,
    text_data,
    word_encoder,
    word_vocabulary,
)

TEXT = "the cat sat on the mat , and the dog sat on the cat . " * 12


def words(length: int = 8, size: int = 12):
    vocabulary = word_vocabulary(TEXT, size)
    return text_data(word_encoder(vocabulary)(TEXT), length, size, lowest=[40, 20, 0])


def test_measured_losses_are_those_of_a_loop() -> None:
    data, model = words(), small_gpt2(12, layers=1, hidden=8, heads=2).eval()
    indices = torch.tensor([3, 0])
    now = data.measure(model, indices)
    losses, groups, right = [], [], []
    for row in data.ids[indices]:
        for t in range(1, 8):
            p = model(input_ids=row[None, :t]).logits[0, -1].detach().softmax(0)
            losses.append(-math.log(float(p[row[t]])))
            groups.append(int(data.token_groups[row[t]]))
            right.append(int(p.argmax()) == int(row[t]))
    assert now.item_losses.tolist() == pytest.approx(losses, rel=1e-4)
    assert now.item_groups.tolist() == groups
    assert now.item_correct.tolist() == right
    assert now.losses.tolist() == pytest.approx([sum(losses[:7]) / 7, sum(losses[7:]) / 7], rel=1e-4)


def test_clipped_gradients_of_the_head_are_those_of_autograd() -> None:
    data = words()
    data.counted[1, 4:] = False  # sequences of different length
    data.counted[2] = False  # and one that counts nothing
    head, features = head_and_features(small_gpt2(12, layers=1, hidden=8, heads=2, seed=1), data.ids)
    task, indices = HeadData(features, data), torch.tensor([0, 1, 2, 5])
    head.weight.data *= 20
    gradients = []
    for i in indices:
        loss = task.measure(head, i[None]).losses[0]
        gradients.append(torch.autograd.grad(loss, head.weight)[0])
    norms = torch.stack([g.norm() for g in gradients])
    C = float(norms.sort().values[2])  # clips one
    factors = [min(1.0, (1 - 2**-13) * C / max(float(n), 1e-9)) for n in norms]  # less the margin for rounding
    expected = sum(g * factor for g, factor in zip(gradients, factors, strict=True))
    measured, sums = task.clipped_gradients(head, indices, C)
    torch.testing.assert_close(sums["weight"], expected, rtol=1e-4, atol=1e-6)
    assert float((sum(gradients) - expected).norm() / expected.norm()) > 1e-3
    torch.testing.assert_close(measured.losses, task.measure(head, indices).losses.detach())
    with pytest.raises(ParameterError, match="model"):
        task.clipped_gradients(torch.nn.Linear(8, 12), indices, C)
