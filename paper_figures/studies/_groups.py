"""Losses and accuracies by how frequent the class (or token) is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from dprmt._validation import ParameterError, check_count


def group_means(values: torch.Tensor, groups: torch.Tensor, count: int) -> list[float]:
    """Mean of the values in every group.

    Parameters
    ----------
    values : Tensor, shape (n,)
        Losses, or 0 and 1 for wrong and right.
    groups : Tensor of int64, shape (n,)
        The group of each value, in 0 … count - 1.
    count : int
        Number of groups, at least 1.

    Returns
    -------
    list of float
        One mean per group, summed in float64; NaN for a group without values.

    Raises
    ------
    ParameterError
        If shapes do not match or a group number is out of range.

    Examples
    --------
    >>> group_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2]), 3)
    [2.0, nan, 5.0]
    """
    count = check_count("count", count)
    if values.ndim != 1 or groups.shape != values.shape:
        raise ParameterError("groups", tuple(groups.shape), f"of the shape of values, {tuple(values.shape)}")
    if groups.numel() and not 0 <= int(groups.min()) <= int(groups.max()) < count:
        raise ParameterError("groups", [int(groups.min()), int(groups.max())], f"in [0, {count - 1}]")
    sizes = torch.bincount(groups, minlength=count)
    sums = torch.zeros(count, dtype=torch.float64, device=values.device)
    sums.index_add_(0, groups, values.detach().double())
    return [float(mean) for mean in (sums / sizes)]


def frequency_groups(counts: torch.Tensor, lowest: Sequence[int]) -> torch.Tensor:
    """The group of every class, by its number of samples.

    Parameters
    ----------
    counts : Tensor of integers, shape (c,)
        Samples per class.
    lowest : sequence of int
        Decreasing; group j holds the classes with ``lowest[j] <= count < lowest[j-1]``. The last should be 0, or
        the count of the rarest class.

    Returns
    -------
    Tensor of int64, shape (c,)
        0 for the most frequent classes.

    Raises
    ------
    ParameterError
        If ``lowest`` does not decrease, or a class has fewer samples than its last entry.

    Examples
    --------
    >>> frequency_groups(torch.tensor([900, 3, 40, 0]), lowest=[100, 10, 0]).tolist()
    [0, 2, 1, 2]
    """
    edges = [check_count("lowest", edge, low=0) for edge in lowest]
    if not edges or any(a <= b for a, b in itertools.pairwise(edges)):
        raise ParameterError("lowest", list(lowest), "decreasing, with at least one entry")
    if counts.numel() and int(counts.min()) < edges[-1]:
        raise ParameterError("lowest", edges[-1], f"at most the smallest count, {int(counts.min())}")
    limits = torch.tensor(edges, device=counts.device)
    return (counts[:, None] < limits[None]).sum(1)
