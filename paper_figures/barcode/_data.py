"""Digits with barcodes: many rare classes beside the ten frequent ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dprmt._validation import ParameterError, check_count
from paper_figures.studies import GroupTask, Measured

BITS = 10


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
        """Cross entropy of some images, in nats.

        Parameters
        ----------
        model : Module
            From (B, 1, 28, 28) to logits (B, classes).
        indices : Tensor of int64, shape (B,)
            Which images.

        Returns
        -------
        Measured
            One item per image.
        """
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

    Returns
    -------
    BarcodeData
        Sorted by class.

    Raises
    ------
    ParameterError
        If the plan is not as described or there are too few images of a digit.

    References
    ----------
    Appendix B of the heavy-tail class imbalance paper on DP-AdamBC, after appendix A2 of arXiv:2402.19449.

    Examples
    --------
    >>> from paper_figures.barcode import digits_images
    >>> data = barcode_data(*digits_images(), plan=[(10, 100), (20, 20), (40, 5)])
    >>> data.size, data.classes, data.group_names[1]
    (1600, 70, '20 classes of 20')
    >>> data.images[data.labels == 12][0, 0, 0, :10].tolist()
    [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    """
    groups = tuple((check_count("plan", classes), check_count("plan", samples)) for classes, samples in plan)
    if images.ndim != 3 or images.shape[1] < 1 or images.shape[2] < BITS or digits.shape != images.shape[:1]:
        raise ParameterError("images", tuple(images.shape), f"of shape (N, 28, 28), with N = {len(digits)} digits")
    if not groups or groups[0][0] != 10 or any(a[1] <= b[1] for a, b in itertools.pairwise(groups)):
        raise ParameterError("plan", list(plan), "10 classes first, then others with fewer and fewer samples")
    rare = sum(classes for classes, _ in groups[1:])
    codes = 2**BITS - 1
    if rare > 10 * codes:
        raise ParameterError("plan", rare, f"with at most {10 * codes} barcoded classes")
    generator = torch.Generator().manual_seed(check_count("seed", seed, low=0))
    by_digit = [torch.nonzero(digits == digit)[:, 0] for digit in range(10)]
    pairs = torch.randperm(10 * codes, generator=generator)[:rare].tolist()
    kinds = [(digit, 0) for digit in range(10)] + [(pair % 10, pair // 10 + 1) for pair in pairs]
    sizes = [samples for classes, samples in groups for _ in range(classes)]
    parts = []
    for (digit, code), size in zip(kinds, sizes, strict=True):
        if len(by_digit[digit]) < size:
            raise ParameterError("plan", size, f"at most {len(by_digit[digit])}, the images that show a {digit}")
        chosen = by_digit[digit][torch.randperm(len(by_digit[digit]), generator=generator)[:size]]
        parts.append(with_barcode(images[chosen], code))
    counts = torch.tensor(sizes)
    group_of_class = torch.tensor([i for i, (classes, _) in enumerate(groups) for _ in range(classes)])
    labels = torch.arange(len(sizes)).repeat_interleave(counts)
    return BarcodeData(torch.cat(parts)[:, None].float(), labels, group_of_class[labels], groups)


def with_barcode(images: torch.Tensor, code: int) -> torch.Tensor:
    """Copies of the images with a number written into the corner; unchanged for 0.

    Parameters
    ----------
    images : Tensor, shape (n, h, w)
        With w >= 10.
    code : int
        In [0, 1023].

    Returns
    -------
    Tensor, shape (n, h, w)
        A copy.

    Raises
    ------
    ParameterError
        If the code is out of range.

    Examples
    --------
    >>> with_barcode(torch.zeros(1, 2, 10), 5)[0, 0].tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    """
    code = check_count("code", code, low=0, high=2**BITS - 1)
    result = images.clone()
    if code:
        result[:, 0, :BITS] = torch.tensor([float(bit) for bit in f"{code:0{BITS}b}"])
    return result
