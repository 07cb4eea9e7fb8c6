"""Adapters in the last layer of a decoder alone: what goes into that layer is computed once per text.

The states h after the layers before do not change in training, so that a run needs one layer and, at the positions
whose next token is learnt, the output matrix W with its softmax over all words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from paper_figures.denoising._last_layer import alike

_AT_ONCE = 512  # rows of logits in memory
IGNORED = -100


class LastDecoder(torch.nn.Module):  # type: ignore[misc]
    """The end of a Llama: its last layer, norm and output matrix, with the loss of each text.

    Parameters
    ----------
    model : Module
        All of it, with adapters.

    Examples
    --------
    >>> from dprmt.training.data import per_sample_losses
    >>> from dprmt.training.models import load_model
    >>> from dprmt.training.recipes import LoraRecipe, ModelRecipe
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    >>> lora = LoraRecipe(rank=2, alpha=4.0, targets=("layers.1.self_attn.q_proj", "layers.1.self_attn.v_proj"))
    >>> options = {"architecture": "llama", "tokenizer": "bytes", "config": sizes, "lora": lora}
    >>> model = load_model(ModelRecipe("generation", **options)).model
    >>> ids, labels = [[5, 6, 7], [8, 9, 10]], [[-100, 6, 7], [-100, -100, 10]]
    >>> whole = per_sample_losses(model, {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)})
    >>> end = LastDecoder(model)(*padded(list(states(model, ids)), labels))
    >>> bool(torch.allclose(end, whole, atol=1e-5))
    True
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        base = model.get_base_model()
        self.layer, self.norm, self.rotary = base.model.layers[-1], base.model.norm, base.model.rotary_emb
        self.output = base.lm_head

    def forward(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy over each text's own targets, shape (B,).

        ``hidden`` is h, shape (B, T, width), and ``targets`` the token after each, shape (B, T), -100 where none is
        learnt. Padding is on the right, where a causal layer does not look.
        """
        learnt = targets != IGNORED
        losses = output_loss(self.last_states(hidden, learnt), self.output.weight, targets[learnt])
        text = torch.nonzero(learnt)[:, 0]
        return hidden.new_zeros(len(hidden)).index_add(0, text, losses) / learnt.sum(dim=1)

    def last_states(self, hidden: torch.Tensor, learnt: torch.Tensor) -> torch.Tensor:
        """What the output matrix is multiplied with where a token is learnt, shape (tokens, width)."""
        states = (hidden + self.attended(hidden))[learnt]
        normed: torch.Tensor = self.norm(states + self.layer.mlp(self.layer.post_attention_layernorm(states)))
        return normed

    def attended(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the layer's attention adds to its states, the same shape."""
        places = torch.arange(hidden.shape[1]).expand(hidden.shape[:2])
        added: torch.Tensor
        added, _ = self.layer.self_attn(
            hidden_states=self.layer.input_layernorm(hidden),
            position_embeddings=self.rotary(hidden, position_ids=places),
            attention_mask=None,
        )
        return added


def output_loss(states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of softmax(Wx) by token, shape (tokens,); products are in the type of ``weight``."""
    losses: torch.Tensor = _OutputLoss.apply(states, weight, targets)
    return losses


class _OutputLoss(torch.autograd.Function):  # type: ignore[misc]
    """Cross-entropy of softmax(Wx), with its gradient in x taken at once: the logits are the expensive part."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses, gradients = [], []
        for x, y in zip(states.split(_AT_ONCE), targets.split(_AT_ONCE), strict=True):
            logits = (x.to(weight.dtype) @ weight.T).float()
            logits -= logits.amax(dim=1, keepdim=True)
            own = logits.gather(1, y[:, None])
            total = logits.exp_().sum(dim=1, keepdim=True)
            losses.append((total.log() - own)[:, 0])
            if ctx.needs_input_grad[0]:
                gradients.append((logits.to(weight.dtype) @ weight).to(x.dtype).div_(total).sub_(weight[y]))
        if gradients:
            ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradients,) = ctx.saved_tensors
        return outputs[0][:, None] * gradients, None, None


def states(model: Any, texts: Sequence[Sequence[int]]) -> Iterable[torch.Tensor]:
    """What goes into the last layer, (T, width) for each text of T numbers of tokens, in their order."""
    found: dict[int, torch.Tensor] = {}
    seen: list[torch.Tensor] = []
    base = model.get_base_model().model
    handle = base.layers[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    with torch.no_grad():
        for group in alike(order, texts, largest=32):
            base(input_ids=torch.tensor([list(texts[i]) for i in group]), use_cache=False)
            found.update(zip(group, seen.pop(), strict=True))
    handle.remove()
    return [found[i].clone() for i in range(len(texts))]


def padded(items: Sequence[torch.Tensor], labels: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch for `LastDecoder`: the last token of a text is followed by nothing that is learnt."""
    after = [torch.tensor([*label[1:], IGNORED]) for label in labels]
    return pad_sequence(list(items), batch_first=True), pad_sequence(after, batch_first=True, padding_value=IGNORED)
