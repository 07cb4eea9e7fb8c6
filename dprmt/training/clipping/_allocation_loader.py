"""Random allocation for a training loop on Opacus' engine: the counterpart of its loader with Poisson sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from opacus.data_loader import wrap_collate_with_empty
from torch.utils.data import DataLoader, IterableDataset, Sampler

from dprmt._validation import ParameterError, TrainingStateError, check_count
from dprmt.training.randomness import allocation, secret_generator


class AllocationSampler(Sampler[list[int]]):  # type: ignore[misc]
    """Batches of random allocation, drawn anew in every epoch.

    Parameters
    ----------
    samples, steps_per_epoch : int
        n and t, >= 1.
    generator : torch.Generator, optional
        By default a generator seeded by the operating system, whose state no one can guess.

    Raises
    ------
    ParameterError
        If a number is out of range.
    TrainingStateError
        If an epoch begins before the last one was finished.

    Examples
    --------
    >>> sampler = AllocationSampler(10, 3)
    >>> sorted(position for batch in sampler for position in batch) == list(range(10)), len(sampler)
    (True, 3)
    """

    def __init__(self, samples: int, steps_per_epoch: int, generator: torch.Generator | None = None) -> None:
        self.samples = check_count("samples", samples)
        self.steps_per_epoch = check_count("steps_per_epoch", steps_per_epoch)
        self.generator = secret_generator("cpu") if generator is None else generator
        self._handed_out = 0

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        if self._handed_out % self.steps_per_epoch:
            # Epochs are counted by their steps: parts of several would count as one, though each has its own draw.
            left = f"left after {self._handed_out} of {self.steps_per_epoch} steps"
            raise TrainingStateError(f"an epoch was {left}: finish it before another one is drawn")
        for number, batch in enumerate(allocation(self.samples, self.steps_per_epoch, self.generator), 1):
            self._handed_out = number
            yield batch


def allocation_loader(data_loader: DataLoader[Any], generator: torch.Generator | None = None) -> DataLoader[Any]:
    """Make a loader over the same data, with batches by random allocation: each sample in one step of every epoch.

    Use it with ``PrivacyEngine.make_private(..., poisson_sampling=False)`` and an accountant registered by
    ``dprmt.accounting.opacus.register(norms, sampling="allocation")``.

    Parameters
    ----------
    data_loader : DataLoader
        Its data, collate function and workers are used, but not its order; t is the number of its batches.
    generator : torch.Generator, optional
        As for `AllocationSampler`.

    Returns
    -------
    DataLoader
        A loader with t batches an epoch, of n/t samples on average. A batch may be empty: its tensors then have no
        rows, as in Opacus' loader, and it counts as a step.

    Raises
    ------
    ParameterError
        If the data have no length.

    Formal guarantees
    -----------------
    Draws are made by `dprmt.training.randomness.allocation`, with its guarantee. Your loop must take one optimizer
    step after every batch, including empty ones, and finish every epoch except the last. Pass
    ``poisson_sampling=False``: otherwise Opacus replaces this loader by its Poisson sampler, which the accountant
    cannot detect. ``BatchMemoryManager`` may split the batches.

    Examples
    --------
    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.arange(10.0))
    >>> loader = allocation_loader(DataLoader(data, batch_size=4))
    >>> len(loader), sorted(torch.cat([batch for [batch] in loader]).tolist()) == list(range(10))
    (3, True)
    """
    if isinstance(data_loader.dataset, IterableDataset):
        raise ParameterError("data_loader.dataset", type(data_loader.dataset).__name__, "data with a length")
    collate = wrap_collate_with_empty(collate_fn=data_loader.collate_fn)
    collate([data_loader.dataset[0]])  # learns the structure of a batch without samples
    sampler = AllocationSampler(len(data_loader.dataset), len(data_loader), generator)
    return DataLoader(
        data_loader.dataset,
        batch_sampler=sampler,
        num_workers=data_loader.num_workers,
        collate_fn=collate,
        pin_memory=data_loader.pin_memory,
        timeout=data_loader.timeout,
        worker_init_fn=data_loader.worker_init_fn,
        multiprocessing_context=data_loader.multiprocessing_context,
        generator=data_loader.generator,
        prefetch_factor=data_loader.prefetch_factor,
        persistent_workers=data_loader.persistent_workers,
    )
