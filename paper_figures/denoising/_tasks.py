"""Texts as what goes into the part that is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dprmt.training.data import TaskData, per_sample_losses
from dprmt.training.evaluation import evaluate_classification
from dprmt.training.harness import Task
from paper_figures.denoising import _last_decoder, _last_layer
from paper_figures.denoising._last_decoder import LastDecoder
from paper_figures.denoising._last_layer import Features, LastLayer


class LastLayerTask(Task):
    """Texts as what goes into the last matrix.

    Parameters
    ----------
    model : LastLayer
        What is trained.
    train, validation : pair of list
        `Features`, or tuples like them, and labels.
    """

    def __init__(self, model: LastLayer, train: Any, validation: Any) -> None:
        self._model, self.size = model, len(train[0])
        self._train, self._validation = (([Features(*x) for x in known], y) for known, y in (train, validation))
        self.length_at = lambda position: len(self._train[0][position].hidden)

    def accumulate(self, private: Any, positions: Sequence[int], step: int) -> torch.Tensor:
        """See `Task`."""
        features, labels = self._train
        batch = _last_layer.padded([features[i] for i in positions])
        logits = private.model(*batch)
        targets = torch.tensor([labels[i] for i in positions])
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        private.accumulate(losses, samples=positions, step=step)
        return losses.detach()

    def score(self) -> dict[str, Any]:
        """Mean loss and accuracy on the validation texts."""
        features, labels = self._validation
        with torch.no_grad():
            pieces = [self._model(*_last_layer.padded(features[i : i + 64])) for i in range(0, len(features), 64)]
        logits, targets = torch.cat(pieces), torch.tensor(labels)
        loss = torch.nn.functional.cross_entropy(logits.double(), targets)
        return {"loss": float(loss), "accuracy": float((logits.argmax(1) == targets).double().mean())}


class LastDecoderTask(Task):
    """Texts as what goes into the last layer of a decoder.

    Parameters
    ----------
    model : LastDecoder
        What is trained.
    train, validation : pair of list
        States, and the tokens that are learnt, -100 where none is.
    """

    def __init__(self, model: LastDecoder, train: Any, validation: Any) -> None:
        self._model, self._train, self._validation = model, train, validation
        self.size, self.length_at = len(train[0]), lambda position: len(train[0][position])

    def accumulate(self, private: Any, positions: Sequence[int], step: int) -> torch.Tensor:
        """See `Task`."""
        states, labels = self._train
        losses = private.model(*_last_decoder.padded([states[i] for i in positions], [labels[i] for i in positions]))
        private.accumulate(losses, samples=positions, step=step)
        return losses.detach()

    def score(self) -> dict[str, Any]:
        """Mean loss on the validation texts."""
        states, labels = self._validation
        with torch.no_grad():
            pieces = [
                self._model(*_last_decoder.padded(states[i : i + 32], labels[i : i + 32]))
                for i in range(0, len(states), 32)
            ]
        return {"loss": float(torch.cat(pieces).double().mean())}


class WholeTask(Task):
    """Texts as they are, through all layers.

    Parameters
    ----------
    model : Module
        What is trained.
    data : TaskData
        Of a classification.
    rows : int
        Of the validation set, the first ones.
    """

    def __init__(self, model: torch.nn.Module, data: TaskData, rows: int) -> None:
        self._model, self._data, self._rows = model, data, rows
        self.size, self.length_at = len(data.train), lambda position: len(data.train[position]["input_ids"])

    def accumulate(self, private: Any, positions: Sequence[int], step: int) -> torch.Tensor:
        """See `Task`."""
        batch = self._data.collate([self._data.train[i] for i in positions])
        samples = batch.pop("sample_id")
        private.model.train()  # scores leave it in evaluation mode
        losses = per_sample_losses(private.model, batch)
        private.accumulate(losses, samples=samples, step=step)
        return losses.detach()

    def score(self) -> dict[str, Any]:
        """Mean loss and accuracy on the validation texts."""
        scores = evaluate_classification(self._model, self._data, batch_size=64, limit=self._rows)
        return {"loss": scores["loss"], "accuracy": scores["accuracy"]}
