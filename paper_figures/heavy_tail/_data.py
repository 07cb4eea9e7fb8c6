"""The synthetic set with heavy-tailed classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dprmt._validation import ParameterError, check_count


@dataclass(frozen=True)
class HeavyTailData:
    """Samples whose classes are of very different size.

    Attributes
    ----------
    inputs : Tensor, shape (n, d)
        float32, uniform in [0, 1], independent of the labels.
    labels : Tensor of int64, shape (n,)
        In order of decreasing frequency: class 0 is the most frequent one.
    groups : Tensor of int64, shape (n,)
        The frequency group of each sample's class, 0 for the most frequent.
    class_sizes : tuple of int
        Samples per class, of each group in turn; group i has 2^i classes of that size.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    groups: torch.Tensor
    class_sizes: tuple[int, ...]

    @property
    def classes(self) -> int:
        """Number of classes, 2^m - 1."""
        return 2 ** len(self.class_sizes) - 1


def heavy_tail_data(
    groups: int = 8, samples: int = 1024, dimension: int | None = None, *, seed: int = 0, device: Any = "cpu"
) -> HeavyTailData:
    """Draw the set: for i = 0 … m-1, 2^i classes with s·2^{-i} samples each.

    The defaults are the paper's instance: n = 8192 samples in d = 9216 dimensions, 255 classes with 1024 … 8
    samples each.

    Parameters
    ----------
    groups : int
        m >= 1.
    samples : int
        s, the samples of each group and of the largest class; divisible by 2^{m-1}.
    dimension : int, optional
        d; n + s, as in the paper's instance, if not given.
    seed : int
        Of the inputs.
    device : torch device
        Where they go; they are drawn on the CPU, so the same everywhere.

    Returns
    -------
    HeavyTailData
        The samples, sorted by class.

    Raises
    ------
    ParameterError
        If a count is out of range or ``samples`` is not divisible.

    References
    ----------
    Section 3 of the heavy-tail class imbalance paper on DP-AdamBC. It prints ``c = 2^{m+1} - 1`` and
    ``n = m 2^m``, which are not the numbers of its instance; the rule above is.

    Examples
    --------
    >>> data = heavy_tail_data(groups=3, samples=8)
    >>> data.inputs.shape, data.labels.bincount().tolist(), data.class_sizes
    (torch.Size([24, 32]), [8, 4, 4, 2, 2, 2, 2], (8, 4, 2))
    """
    m, s = check_count("groups", groups), check_count("samples", samples)
    if s % 2 ** (m - 1):
        raise ParameterError("samples", s, f"divisible by 2^(groups-1) = {2 ** (m - 1)}")
    n = m * s
    d = n + s if dimension is None else check_count("dimension", dimension)
    sizes = tuple(s >> i for i in range(m))
    per_class = torch.tensor([sizes[i] for i in range(m) for _ in range(2**i)])
    generator = torch.Generator().manual_seed(check_count("seed", seed, low=0))
    return HeavyTailData(
        inputs=torch.rand(n, d, generator=generator).to(device),
        labels=torch.arange(len(per_class)).repeat_interleave(per_class).to(device),
        groups=torch.arange(m).repeat_interleave(s).to(device),
        class_sizes=sizes,
    )
