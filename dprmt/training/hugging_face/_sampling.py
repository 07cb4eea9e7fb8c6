"""Logical batches of a Trainer: every sample by a coin of its own, and no sample's content."""

from __future__ import annotations

import math
from collections.abc import Iterator

from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader, Dataset, Sampler

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.training.randomness import SecureRandom, secret_generator

_COINS = 2.0**24  # values of a coin of Opacus' sampler


class PoissonBatches(Sampler[list[int]]):  # type: ignore[misc]
    """Positions of Poisson-sampled batches, as many in an epoch as batches of the expected size would fill.

    Parameters
    ----------
    samples : int
        n >= 1, the size of the data set.
    expected_batch_size : float
        L in (0, n]: n times the sampling probability.
    secure : bool
        Coins from a cipher, `dprmt.training.randomness.SecureRandom`, in place of torch's generator.

    Attributes
    ----------
    rate : float
        The probability: L/n, rounded up to a multiple of 2⁻²⁴.

    Raises
    ------
    ParameterError
        If a number is out of its range.

    Formal guarantees
    -----------------
    Every sample is in every batch with probability exactly `rate`, independently of the others and of all other
    batches, if the generator's numbers are uniform and independent: the coins of Opacus' sampler are multiples of 2⁻²⁴,
    and so is the rate. (`secure`: with at most this probability.) The generator's state comes from the operating
    system; nobody can set it. Batches may be empty; the step after one is a step like any other.

    Examples
    --------
    >>> batches = PoissonBatches(1000, 100)
    >>> len(batches), batches.rate >= 0.1, all(0 <= i < 1000 for batch in batches for i in batch)
    (10, True, True)
    """

    def __init__(self, samples: int, expected_batch_size: float, *, secure: bool = False) -> None:
        self.samples = check_count("samples", samples)
        size = check_real("expected_batch_size", expected_batch_size, low=0.0, low_open=True)
        if size > samples:
            allowed = f"at most the size of the training set, {samples}"
            raise ParameterError("expected_batch_size", expected_batch_size, allowed)
        self.rate = min(1.0, math.ceil(size / samples * _COINS) / _COINS)
        self._generator = SecureRandom() if secure else secret_generator("cpu")

    def __len__(self) -> int:
        return max(1, round(1 / self.rate))

    def __iter__(self) -> Iterator[list[int]]:
        if isinstance(self._generator, SecureRandom):
            for _ in range(len(self)):
                yield self._generator.poisson_sample(self.samples, self.rate)
        else:
            yield from UniformWithReplacementSampler(
                num_samples=self.samples, sample_rate=self.rate, generator=self._generator, steps=len(self)
            )


class _Positions(Dataset[int]):  # type: ignore[misc]
    """The numbers of the samples; what is in them is looked up micro-batch by micro-batch."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, position: int) -> int:
        return position


def positions_loader(batches: PoissonBatches) -> DataLoader[int]:
    """A loader for a Trainer's loop, which only counts what it gives."""
    return DataLoader(_Positions(batches.samples), batch_sampler=batches, collate_fn=_as_they_are)


def _as_they_are(positions: list[int]) -> dict[str, list[int]]:
    return {"positions": positions}
