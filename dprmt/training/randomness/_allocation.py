"""The draws of random allocation: in every epoch each sample takes part in exactly one step."""

from __future__ import annotations

import torch

from dprmt.training.randomness._secure import SecureRandom


def allocation(samples: int, steps: int, generator: torch.Generator | SecureRandom) -> list[list[int]]:
    """Assign each sample to one random step of an epoch.

    Parameters
    ----------
    samples, steps : int
        Numbers n and t, >= 1.
    generator : torch.Generator or SecureRandom
        A generator whose state no one can guess, such as `secret_generator`.

    Returns
    -------
    list of list of int
        t increasing lists that hold every position once in total; some may be empty.

    Formal guarantees
    -----------------
    Steps of different samples are independent and exactly uniform on {0, …, t - 1}, up to the generator, because
    numbers not below t are drawn again. No permutation is cut, so batch sizes vary as independence implies.

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
