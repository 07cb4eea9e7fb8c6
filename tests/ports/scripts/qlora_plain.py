"""LoRA adapters of a frozen Llama in bfloat16 with gradient checkpointing, in micro-batches."""

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
base = LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes)).to(torch.bfloat16)
base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
base.enable_input_require_grads()
model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.05))
model.config.use_cache = False


def text(number):
    words = torch.randint(3, 20, (8,)) + number % 2 * 20
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}


loader = DataLoader([text(number) for number in range(64)], batch_size=4, shuffle=True)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
model.train()
for _ in range(2):
    for number, batch in enumerate(loader):
        loss = model(**batch).loss / 4
        loss.backward()
        if number % 4 == 3:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
score = -model(**next(iter(loader))).loss.item()
