"""Sentence pairs with BERT: all but the last layer, the pooler and the head are frozen."""

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

torch.manual_seed(0)
config = BertConfig(
    vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=2
)
model = BertForSequenceClassification(config)
for part in (model.bert.embeddings, model.bert.encoder.layer[0]):
    part.requires_grad_(False)


def sentence(label):
    words = torch.randint(3, 20, (10,))
    words[:4] = torch.randint(20, 40, (4,)) if label else torch.randint(40, 60, (4,))
    return {"input_ids": words, "attention_mask": torch.ones(10, dtype=torch.long), "labels": torch.tensor(label)}


loader = DataLoader([sentence(label % 2) for label in range(160)], batch_size=20, shuffle=True)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 3 * len(loader))
model.train()
for _ in range(3):
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
model.eval()
test = next(iter(DataLoader([sentence(label % 2) for label in range(60)], batch_size=60)))
score = float((model(**test).logits.argmax(1) == test["labels"]).float().mean())
