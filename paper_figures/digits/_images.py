"""Images of digits as rows of numbers: to train on, to tune on, to test on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from paper_figures.digits._networks import Weights, accuracy, clipped_sum, start
from paper_figures.digits._samples import Part

_TRAIN, _TUNE, _TEST = 7000, 1000, 2000
_FILES = ("mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz")


@dataclass(frozen=True)
class Images:
    """`Samples` of rows of pixels and their digits, for a network with one hidden layer or none."""

    train: tuple[torch.Tensor, torch.Tensor]
    tune: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]

    @property
    def size(self) -> int:
        """How many there are to train on."""
        return len(self.train[1])

    @property
    def sizes(self) -> list[int]:
        """See `Samples`."""
        return [len(labels) for _, labels in (self.train, self.tune, self.test)]

    def start(self, hidden: int, seeds: Sequence[int]) -> Weights:
        """See `Samples`."""
        return start(self.pixels, hidden, seeds, self.classes)

    def clipped_sum(self, weights: Weights, drawn: torch.Tensor, clip: float) -> Weights:
        """See `Samples`."""
        x, y = self.train
        return clipped_sum(weights, x[drawn][None], y[drawn][None], clip)

    def accuracy(self, weights: Weights, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Samples`."""
        return accuracy(weights, self.tune if part == "tune" else self.test)

    @property
    def pixels(self) -> int:
        """Numbers of a row."""
        return int(self.train[0].shape[1])

    @property
    def classes(self) -> int:
        """How many there are, empty ones below the last included."""
        return int(max(labels.max() for _, labels in (self.train, self.tune, self.test))) + 1


def split_images(data: Path) -> Images:
    """The 10,000 images of MNIST's test file at 14 × 14, in an order of their own; ``data``: where ``mnist`` lies."""
    from paper_figures.barcode import mnist_images

    images, labels = mnist_images(*(data / name for name in _FILES))
    small = torch.nn.functional.avg_pool2d(images[:, None], 2).flatten(1)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return _cut(small[order] - small.mean(), labels[order], (_TRAIN, _TUNE, _TEST))


def drawn_images(train: int, tune: int, test: int, pixels: int = 36) -> Images:
    """Ten random patterns with noise, for tests."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, pixels, generator=generator)
    labels = torch.randint(0, 10, (train + tune + test,), generator=generator)
    rows = patterns[labels] + torch.randn(len(labels), pixels, generator=generator)
    return _cut(rows, labels, (train, tune, test))


def _cut(rows: torch.Tensor, labels: torch.Tensor, sizes: tuple[int, int, int]) -> Images:
    ends = torch.tensor((0, *sizes)).cumsum(0).tolist()
    parts = [(rows[a:b], labels[a:b]) for a, b in pairwise(ends)]
    return Images(*parts)
