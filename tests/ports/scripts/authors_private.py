"""Messages of authors who wrote several: LoRA adapters of GPT-2."""

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from dprmt import make_private, per_sample_losses

torch.manual_seed(0)
base = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=24, n_layer=1, n_head=2))
model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
authors = [f"author {number % 40}" for number in range(120)]


def message(number):
    words = torch.randint(3, 20, (8,)) + number % 2 * 20
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}


loader = DataLoader([message(number) for number in range(120)], batch_size=24, shuffle=True)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
model.train()
budget = {"norms": "exact", "clipping_norm": 1, "batch_size": 8, "epochs": 2, "target_epsilon": 8, "delta": 1e-4}
private = make_private(model, optimizer, loader, owners=authors, **budget)
for batch in private:
    private.step(lambda rows: per_sample_losses(model, rows), batch)
print(private.epsilon())
score = -model(**next(iter(loader))).loss.item()
