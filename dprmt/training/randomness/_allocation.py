"""The draws of random allocation: in every epoch each sample takes part in exactly one step."""

from __future__ import annotations

import torch

from dprmt.training.randomness._secure import SecureRandom


def allocation(samples: int, steps: int, generator: torch.Generator | SecureRandom) -> list[list[int]]:
    """Random allocation: positions of each step's samples in one epoch.

    Parameters
    ----------
    samples, steps : int
        n and t, >= 1.
    generator : torch.Generator or SecureRandom
        Whose state nobody can guess, such as that of `secret_generator`.

    Returns
    -------
    list of list of int
        t lists, increasing, that hold every position once between them; some may be empty.

    Formal guarantees
    -----------------
    Steps of different samples are independent and exactly uniform on {0, …, t - 1}, up to the generator: numbers of as
    many bits as t - 1 has are drawn again until they are below t. Nothing is cut out of a permutation, so the sizes of
    batches are as random as independence makes them.

    Examples
    --------
    >>> batches = allocation(6, 2, torch.Generator().manual_seed(1))
    >>> sorted(batches[0] + batches[1])
    [0, 1, 2, 3, 4, 5]
    """
    step_of = _uniform(samples, steps, generator)
    order = torch.argsort(step_of, stable=True)
    sizes = torch.bincount(step_of, minlength=steps).tolist()
    return [part.tolist() for part in torch.split(order, sizes)]


def _uniform(count: int, below: int, generator: torch.Generator | SecureRandom) -> torch.Tensor:
    if isinstance(generator, SecureRandom):
        return generator.integers(count, below)
    values = 1 << (below - 1).bit_length()
    drawn = torch.randint(values, (count,), generator=generator)
    while (again := torch.nonzero(drawn >= below)[:, 0]).numel():
        drawn[again] = torch.randint(values, (again.numel(),), generator=generator)
    return drawn
