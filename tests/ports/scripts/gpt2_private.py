"""Table-to-text with GPT-2, whose head is its embedding table; the loss is on the answer alone."""

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from dprmt import make_private, per_sample_losses

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=24, n_layer=2, n_head=2))


def pair(number):
    key = number % 8 + 10
    words = torch.tensor([key, key, 1, key + 10, key + 20, key + 10, 2])
    return {
        "input_ids": words,
        "attention_mask": torch.ones_like(words),
        "labels": torch.where(words == key, -100, words),
    }


loader = DataLoader([pair(number) for number in range(160)], batch_size=32, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
private = make_private(model, optimizer, loader, norms="ghost", clipping_norm=1, epochs=4, target_epsilon=8, delta=1e-4)
for batch in private:
    model.train()
    private.step(lambda rows: per_sample_losses(model, rows), batch)
print(private.epsilon())
model.eval()
score = -model(**next(iter(loader))).loss.item()
