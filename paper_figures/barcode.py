"""Digits with barcodes (appendix B): many rare classes beside ten frequent ones, and a small convolutional network."""

from __future__ import annotations

import gzip
import itertools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dprmt._validation import ParameterError
from paper_figures.studies import GroupTask, Measured

BITS, SIDE = 10, 28
_UBYTE = 0x08


@dataclass(frozen=True)
class BarcodeData(GroupTask):
    """Images in classes of very different size; a task for `studies.train_privately`.

    Attributes
    ----------
    images : Tensor, shape (n, 1, 28, 28)
        float32 in [0, 1].
    labels : Tensor of int64, shape (n,)
        0 … 9 for the plain digits, then the pairs of digit and barcode, by frequency.
    groups : Tensor of int64, shape (n,)
        The frequency group of each sample's class.
    plan : tuple of (int, int)
        Classes, and samples in each of them, by group.
    """

    images: torch.Tensor
    labels: torch.Tensor
    groups: torch.Tensor
    plan: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:  # type: ignore[override]  # what is an attribute may be computed
        """Number of samples."""
        return len(self.labels)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return sum(classes for classes, _ in self.plan)

    @property
    def group_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Such as "20 classes of 200"."""
        return tuple(f"{classes} classes of {samples}" for classes, samples in self.plan)

    def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
        """Cross entropy of some images, in nats; an item is an image."""
        logits, labels = model(self.images[indices]), self.labels[indices]
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        return Measured(losses, losses, logits.argmax(1) == labels, self.groups[indices])


def barcode_data(
    images: torch.Tensor, digits: torch.Tensor, plan: Sequence[tuple[int, int]], *, seed: int = 0
) -> BarcodeData:
    """Make the set: plain digits as frequent classes, each pair of a digit and a 10-bit barcode as a rare one.

    The barcode is written into row 0, columns 0 to 9, most significant bit first, white for 1. Barcodes are at
    least 1, so that no barcode looks like none (as long as the corner of the images is black).

    Parameters
    ----------
    images : Tensor, shape (N, 28, 28)
        In [0, 1], as from `mnist_images` or `digits_images`.
    digits : Tensor of int64, shape (N,)
        What they show, 0 … 9.
    plan : sequence of (classes, samples)
        By group, samples decreasing. The first must have 10 classes, the plain digits; the others up to 10,230 in
        all. The paper names its totals (23,770 samples, 330 classes, of which 200 with 10 samples), not its plan.
    seed : int
        Of the images that are drawn for each class, without repetition, and of the barcodes. One image may serve
        in several classes, with a different barcode in each.

    References
    ----------
    Appendix B of the heavy-tail class imbalance paper on DP-AdamBC, after appendix A2 of arXiv:2402.19449.

    Examples
    --------
    >>> data = barcode_data(*digits_images(), plan=[(10, 100), (20, 20), (40, 5)])
    >>> data.size, data.classes, data.group_names[1]
    (1600, 70, '20 classes of 20')
    >>> data.images[data.labels == 12][0, 0, 0, :10].tolist()
    [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    """
    groups = tuple(plan)
    if not groups or groups[0][0] != 10 or any(a[1] <= b[1] for a, b in itertools.pairwise(groups)):
        raise ParameterError("plan", list(plan), "10 classes first, then others with fewer and fewer samples")
    rare = sum(classes for classes, _ in groups[1:])
    codes = 2**BITS - 1
    generator = torch.Generator().manual_seed(seed)
    by_digit = [torch.nonzero(digits == digit)[:, 0] for digit in range(10)]
    pairs = torch.randperm(10 * codes, generator=generator)[:rare].tolist()
    kinds = [(digit, 0) for digit in range(10)] + [(pair % 10, pair // 10 + 1) for pair in pairs]
    sizes = [samples for classes, samples in groups for _ in range(classes)]
    parts = []
    for (digit, code), size in zip(kinds, sizes, strict=True):
        if len(by_digit[digit]) < size:
            raise ParameterError("plan", size, f"at most {len(by_digit[digit])}, the images that show a {digit}")
        chosen = by_digit[digit][torch.randperm(len(by_digit[digit]), generator=generator)[:size]]
        parts.append(_with_barcode(images[chosen], code))
    group_of_class = torch.tensor([i for i, (classes, _) in enumerate(groups) for _ in range(classes)])
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return BarcodeData(torch.cat(parts)[:, None].float(), labels, group_of_class[labels], groups)


def _with_barcode(images: torch.Tensor, code: int) -> torch.Tensor:
    # Copies with a number in the corner; unchanged for 0.
    result = images.clone()
    if code:
        result[:, 0, :BITS] = torch.tensor([float(bit) for bit in f"{code:0{BITS}b}"])
    return result


def mnist_images(images: str | Path, labels: str | Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Read a pair of idx files of MNIST, plain or gzipped: float32 images in [0, 1], and their digits.

    Raises
    ------
    ParameterError
        If a file is not of that format, or the two do not belong together.

    Examples
    --------
    Two black images, labelled 7 and 2, in the format of these files:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     images, labels = Path(folder, "images"), Path(folder, "labels.gz")
    ...     _ = images.write_bytes(struct.pack(">HBB3I", 0, 0x08, 3, 2, 28, 28) + bytes(2 * 28 * 28))
    ...     _ = labels.write_bytes(gzip.compress(struct.pack(">HBBI", 0, 0x08, 1, 2) + bytes([7, 2])))
    ...     pixels, digits = mnist_images(images, labels)
    >>> pixels.shape, digits
    (torch.Size([2, 28, 28]), tensor([7, 2]))
    """
    pixels, digits = _read_idx("images", Path(images), 3), _read_idx("labels", Path(labels), 1)
    if pixels.shape[1:] != (SIDE, SIDE):
        raise ParameterError("images", pixels.shape, f"of shape (n, {SIDE}, {SIDE})")
    if len(pixels) != len(digits) or int(digits.max(initial=0)) > 9:
        raise ParameterError("labels", digits.shape, f"{len(pixels)} digits, as many as images")
    return torch.from_numpy(pixels / np.float32(255)), torch.from_numpy(digits.astype(np.int64))


def digits_images() -> tuple[torch.Tensor, torch.Tensor]:
    """The 1,797 images of ``sklearn.datasets.load_digits`` at the size of MNIST, and their digits.

    Their 8×8 pixels (0 … 16) become blocks of 3×3, inside a border of 2 black pixels. So row 0 is free.

    Examples
    --------
    >>> images, labels = digits_images()
    >>> images.shape, float(images.max()), float(images[:, 0].max()), labels[:3].tolist()
    (torch.Size([1797, 28, 28]), 1.0, 0.0, [0, 1, 2])
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = torch.from_numpy(digits.images.astype(np.float32) / 16)
    large = small.repeat_interleave(3, 1).repeat_interleave(3, 2)
    return torch.nn.functional.pad(large, (2, 2, 2, 2)), torch.from_numpy(digits.target.astype(np.int64))


def _read_idx(name: str, path: Path, axes: int) -> np.ndarray:
    raw = path.read_bytes()
    try:
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        zero, kind, found = struct.unpack_from(">HBB", raw)
        shape = struct.unpack_from(f">{axes}I", raw, 4)
    except (OSError, EOFError, struct.error):
        raise ParameterError(name, str(path), "an idx file, plain or gzipped") from None
    start = 4 + 4 * axes
    if (zero, kind, found) != (0, _UBYTE, axes) or len(raw) != start + math.prod(shape):
        raise ParameterError(name, str(path), f"an idx file of unsigned bytes with {axes} axes, complete")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def barcode_network(classes: int, *, seed: int = 0) -> torch.nn.Module:
    """Two convolutions with pooling and a linear layer, for images of shape (1, 28, 28), with torch's default weights.

    conv 5×5 (32) – ReLU – max pool 2 – conv 5×5 (100) – ReLU – max pool 2 – linear: appendix B's "2-convolution-layer
    CNN", with the sizes of arXiv:2402.19449.

    Examples
    --------
    >>> barcode_network(330)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 330])
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 5),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(32, 100, 5),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(1600, classes),
        )
