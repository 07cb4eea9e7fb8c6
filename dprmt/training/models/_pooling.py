"""A classifier on the mean of an encoder's outputs."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_outputs import SequenceClassifierOutput


class MeanPooledClassifier(torch.nn.Module):  # type: ignore[misc]  # torch is skipped by mypy
    """Mean of the last hidden states over the tokens that are not padding, then one linear layer.

    It suits encoders trained as sentence encoders, whose first token was never trained to sum up a text.

    ``encoder``: A BERT or RoBERTa model without pooling layer; ``config.num_labels`` is the number of classes.
    """

    head = "classification"  # which loss it is trained on

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.config: Any = encoder.config
        self.classifier = torch.nn.Linear(self.config.hidden_size, self.config.num_labels)
        torch.nn.init.normal_(self.classifier.weight, std=self.config.initializer_range)
        torch.nn.init.zeros_(self.classifier.bias)

    def get_input_embeddings(self) -> torch.nn.Module:
        """Return the embedding of tokens."""
        return self.encoder.get_input_embeddings()

    def get_output_embeddings(self) -> None:
        """Return None: there are none."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **inputs: torch.Tensor
    ) -> SequenceClassifierOutput:
        """Compute logits of shape (B, labels)."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **inputs).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(states)
        pooled = (states * weights).sum(dim=1) / weights.sum(dim=1)
        return SequenceClassifierOutput(logits=self.classifier(pooled))
