"""Poisson sampling of logical batches."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler

from dprmt.training.randomness import SecureRandom

_COINS = 2.0**24  # values of one float32 of torch.rand


def charged_sample_rate(batch_size: float, samples: int) -> float:
    """Return the smallest probability, at least the nominal one, with which Opacus' sampler can include a sample."""
    # It compares float32 numbers, multiples of 2⁻²⁴, with q rounded to float32: it does what it was asked for only if q
    # is such a multiple.
    return min(1.0, math.ceil(batch_size / samples * _COINS) / _COINS)


def poisson_batches(
    samples: int, sample_rate: float, steps: int, generator: torch.Generator | SecureRandom
) -> Iterator[list[int]]:
    """Draw the positions of each step's samples by Opacus' Poisson sampler."""
    if isinstance(generator, SecureRandom):
        return (generator.poisson_sample(samples, sample_rate) for _ in range(steps))
    sampler = UniformWithReplacementSampler(
        num_samples=samples, sample_rate=sample_rate, generator=generator, steps=steps
    )
    return iter(sampler)
