"""Small problems in many lanes: one batch, one noise, and as many runs side by side as there are rates.

Parameters are lists of tensors whose first axis is the lane. What a step releases is, in every lane, the sum of the
batch's clipped gradients over the expected batch size, in closed form: every sample's gradient is an outer product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch

Lanes: TypeAlias = list[torch.Tensor]
EXPECTED = 400
"""Batch size L that is expected; the clipping norm is 1."""


def inner(first: Lanes, second: Lanes) -> torch.Tensor:
    """Inner product of every lane."""
    return torch.stack([(a * b).flatten(1).sum(1) for a, b in zip(first, second, strict=True)]).sum(0)


def times(factor: torch.Tensor, values: Lanes) -> Lanes:
    """Every lane times its number."""
    return [factor.reshape(-1, *[1] * (value.ndim - 1)) * value for value in values]


class Problem:
    """What is trained, on what."""

    size = 0
    """Samples."""

    def start(self, lanes: int, generator: torch.Generator) -> Lanes:
        """The same parameters in every lane."""
        raise NotImplementedError

    def clipped(self, x: Lanes, batch: torch.Tensor) -> Lanes:
        """Sums of clipped gradients over `EXPECTED`."""
        raise NotImplementedError

    def scores(self, x: Lanes) -> dict[str, torch.Tensor]:
        """The objective, and the accuracy on other data, of every lane."""
        raise NotImplementedError

    def begin(self, step: int, generator: torch.Generator) -> None:
        """A step begins; a projection may change."""

    def project(self, x: Lanes) -> Lanes:
        """To where gradients are released."""
        return x

    def lift(self, u: Lanes) -> Lanes:
        """Back from there."""
        return u


class Quadratic(Problem):
    """``½Σh_i x_i²`` with curvatures from .003 to 1, and a gradient of length 1 at the start, clipped to that."""

    def __init__(self, dimension: int = 1000) -> None:
        self._h = torch.logspace(math.log10(0.003), 0, dimension)

    def start(self, lanes: int, generator: torch.Generator) -> Lanes:
        """See `Problem`."""
        x = torch.randn(len(self._h), generator=generator)
        return [(x / (self._h * x).norm()).expand(lanes, -1).clone()]

    def clipped(self, x: Lanes, batch: torch.Tensor) -> Lanes:
        """See `Problem`."""
        gradient = self._h * x[0]
        return [gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1.0)]

    def scores(self, x: Lanes) -> dict[str, torch.Tensor]:
        """See `Problem`."""
        return {"objective": 0.5 * (self._h * x[0].double().square()).sum(1)}


class Nothing(Problem):
    """No data: all that is released is noise, and every step away from the start is in vain."""

    _SIZE = 7850

    def start(self, lanes: int, generator: torch.Generator) -> Lanes:
        """See `Problem`."""
        return [torch.zeros(lanes, self._SIZE)]

    def clipped(self, x: Lanes, batch: torch.Tensor) -> Lanes:
        """See `Problem`."""
        return [torch.zeros_like(x[0])]

    def scores(self, x: Lanes) -> dict[str, torch.Tensor]:
        """The distance from the start in the place of an objective."""
        return {"objective": x[0].double().norm(dim=1)}


class Classification(Problem):
    """Rows with labels; the last column of the inputs is 1.

    Parameters
    ----------
    train, validation : pair of Tensor
        Inputs of shape (n, columns), and labels.
    """

    def __init__(self, train: tuple[torch.Tensor, torch.Tensor], validation: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._train, self._validation = ((_with_one(x), y) for x, y in (train, validation))
        self.size, self._columns = self._train[0].shape
        self._classes = int(self._train[1].max()) + 1

    def scores(self, x: Lanes) -> dict[str, torch.Tensor]:
        """See `Problem`."""
        losses = [
            self._losses(x, rows, labels).sum(1)
            for rows, labels in zip(self._train[0].split(1000), self._train[1].split(1000), strict=True)
        ]
        rows, labels = self._validation
        right = (self._logits(x, rows).argmax(2) == labels).double().mean(1)
        return {"objective": torch.stack(losses).sum(0) / self.size, "accuracy": right}

    def _losses(self, x: Lanes, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self._logits(x, rows).double()
        return logits.logsumexp(2) - logits[:, torch.arange(len(labels)), labels]

    def _logits(self, x: Lanes, rows: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _errors(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # Gradients of the losses with respect to the logits.
        return logits.softmax(2).sub_(torch.nn.functional.one_hot(labels, self._classes))


def _with_one(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows, torch.ones(len(rows), 1)], 1)


def _through(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    # (n, p) by (lanes, p, q) to (lanes, n, q), as one product.
    lanes, p, q = weights.shape
    return (rows @ weights.transpose(0, 1).reshape(p, lanes * q)).reshape(-1, lanes, q).transpose(0, 1)


def _back(rows: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
    # (n, p) and (lanes, n, q) to the sum of outer products, (lanes, p, q), as one product.
    lanes, n, q = errors.shape
    return (rows.T @ errors.transpose(0, 1).reshape(n, lanes * q)).reshape(-1, lanes, q).transpose(0, 1)


def _scale(squared: torch.Tensor) -> torch.Tensor:
    return squared.clamp_min(1.0).rsqrt_().unsqueeze(2) / EXPECTED


class Logistic(Classification):
    """Logistic regression."""

    def start(self, lanes: int, generator: torch.Generator) -> Lanes:
        """See `Problem`."""
        return [torch.zeros(lanes, self._columns, self._classes)]

    def clipped(self, x: Lanes, batch: torch.Tensor) -> Lanes:
        """See `Problem`."""
        rows, labels = self._train[0][batch], self._train[1][batch]
        errors = self._errors(self._logits(x, rows), labels)
        squared = rows.square().sum(1) * errors.square().sum(2)
        return [_back(rows, errors * _scale(squared))]

    def _logits(self, x: Lanes, rows: torch.Tensor) -> torch.Tensor:
        return _through(rows, x[0])


class Perceptron(Classification):
    """One hidden layer of rectified units; under ``rank`` gradients of the first matrix are released in a subspace.

    Parameters
    ----------
    train, validation : pair of Tensor
        As for `Classification`.
    width : int
        Of the hidden layer.
    rank : int, optional
        Dimension of DP-GRAPE's subspace of the inputs, drawn anew every 25 steps.
    """

    def __init__(
        self,
        train: tuple[torch.Tensor, torch.Tensor],
        validation: tuple[torch.Tensor, torch.Tensor],
        width: int = 32,
        rank: int | None = None,
    ) -> None:
        super().__init__(train, validation)
        self._width, self._rank = width, rank
        self._projector: torch.Tensor | None = None

    def start(self, lanes: int, generator: torch.Generator) -> Lanes:
        """See `Problem`."""
        first = torch.randn(self._columns, self._width, generator=generator) / math.sqrt(self._columns)
        second = torch.randn(self._width + 1, self._classes, generator=generator) / math.sqrt(self._width)
        return [w.expand(lanes, -1, -1).clone() for w in (first, second)]

    def begin(self, step: int, generator: torch.Generator) -> None:
        """See `Problem`."""
        if self._rank is not None and step % 25 == 0:
            drawn = torch.randn(self._columns, self._rank, generator=generator)
            self._projector = drawn / math.sqrt(self._rank)

    def project(self, x: Lanes) -> Lanes:
        """See `Problem`."""
        return x if self._projector is None else [torch.matmul(self._projector.T, x[0]), x[1]]

    def lift(self, u: Lanes) -> Lanes:
        """See `Problem`."""
        return u if self._projector is None else [torch.matmul(self._projector, u[0]), u[1]]

    def clipped(self, x: Lanes, batch: torch.Tensor) -> Lanes:
        """See `Problem`."""
        rows, labels = self._train[0][batch], self._train[1][batch]
        hidden = self._hidden(x, rows)
        errors = self._errors(torch.matmul(hidden, x[1]), labels)
        inward = torch.matmul(errors, x[1][:, :-1].transpose(1, 2)) * (hidden[:, :, :-1] > 0)
        seen = rows if self._projector is None else rows @ self._projector
        squared = seen.square().sum(1) * inward.square().sum(2) + hidden.square().sum(2) * errors.square().sum(2)
        scale = _scale(squared)
        return [_back(seen, inward * scale), torch.matmul(hidden.transpose(1, 2), errors * scale)]

    def _hidden(self, x: Lanes, rows: torch.Tensor) -> torch.Tensor:
        active = _through(rows, x[0]).relu()
        return torch.cat([active, torch.ones(*active.shape[:2], 1)], 2)

    def _logits(self, x: Lanes, rows: torch.Tensor) -> torch.Tensor:
        return torch.matmul(self._hidden(x, rows), x[1])


class Adapted(Classification):
    """Logistic regression on features that go through ``I + AB``, of rank 8, where B is 0 at the start: LoRA.

    Parameters
    ----------
    train, validation : pair of Tensor
        As for `Classification`.
    """

    _RANK, _ALPHA = 8, 4.0

    def start(self, lanes: int, generator: torch.Generator) -> Lanes:
        """See `Problem`."""
        width = self._columns - 1
        down = torch.randn(width, self._RANK, generator=generator) / math.sqrt(self._RANK)
        head = 0.1 * torch.randn(self._columns, self._classes, generator=generator)
        zeros = torch.zeros(self._RANK, width)
        return [w.expand(lanes, -1, -1).clone() for w in (down, zeros, head)]

    def clipped(self, x: Lanes, batch: torch.Tensor) -> Lanes:
        """See `Problem`."""
        rows, labels = self._train[0][batch], self._train[1][batch]
        low, adapted = self._adapted(x, rows)
        errors = self._errors(torch.matmul(adapted, x[2]), labels)
        outward = torch.matmul(errors, x[2][:, :-1].transpose(1, 2)) * self._ALPHA
        inward = torch.matmul(outward, x[1].transpose(1, 2))
        features = rows[:, :-1]
        squared = features.square().sum(1) * inward.square().sum(2)
        squared = squared + low.square().sum(2) * outward.square().sum(2)
        scale = _scale(squared + adapted.square().sum(2) * errors.square().sum(2))
        return [
            _back(features, inward * scale),
            torch.matmul(low.transpose(1, 2), outward * scale),
            torch.matmul(adapted.transpose(1, 2), errors * scale),
        ]

    def _adapted(self, x: Lanes, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low = _through(rows[:, :-1], x[0])
        moved = rows[:, :-1] + self._ALPHA * torch.matmul(low, x[1])
        return low, torch.cat([moved, torch.ones(*moved.shape[:2], 1)], 2)

    def _logits(self, x: Lanes, rows: torch.Tensor) -> torch.Tensor:
        return torch.matmul(self._adapted(x, rows)[1], x[2])


def poisson(size: int, generator: torch.Generator) -> torch.Tensor:
    """Places of a batch; none of a problem without samples."""
    return (torch.rand(size, generator=generator) < EXPECTED / max(size, 1)).nonzero().ravel()


def noise(shapes: Sequence[torch.Size], generator: torch.Generator) -> Lanes:
    """Standard normal noise, the same in every lane."""
    return [torch.randn(1, *shape[1:], generator=generator) for shape in shapes]
