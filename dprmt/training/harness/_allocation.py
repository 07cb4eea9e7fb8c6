"""Random allocation: in every epoch each sample takes part in exactly one step, chosen uniformly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dprmt.training.private_run._randomness import Randomness
from dprmt.training.randomness import SecureRandom, allocation, secret_generator


def epoch_length(batch_size: float, samples: int) -> int:
    """Return the number t of steps of an epoch whose batches, of n/t samples on average, are closest to the expected
    size.
    """
    return max(1, round(samples / batch_size))


@dataclass
class AllocatedBatches:
    """Batches of a run under random allocation, and what its checkpoints have to know of them.

    Formal guarantees
    -----------------
    A run that is resumed where it was checkpointed, nothing having been charged since, keeps the same draws. If
    a step was charged since, the epoch is over: it is charged as a whole, and a new one is drawn. So at every instant
    what was released is part of ``charged / steps_per_epoch`` epochs, rounded up, each with one draw, and ε of so many
    whole epochs holds: (R1'') of ``docs/theory/random_allocation.md``.

    Where randomness is to be secure, no file may hold it: nothing is checkpointed, and a run that is resumed in the
    middle of an epoch gives it up.
    """

    samples: int
    steps_per_epoch: int
    randomness: Randomness
    charged: int = 0  # over all starts; steps of an epoch that was given up count as well
    state: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._secret = b""
        done = self.charged % self.steps_per_epoch
        if done and self.state is not None and self.state["charged"] == self.charged:
            self._secret = bytes(self.state["secret"].tolist())
        elif done:
            self.charged += self.steps_per_epoch - done

    def was_charged(self) -> None:
        """Record that the last batch counts towards ε, before the next one is drawn."""
        self.charged += 1

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches without end."""
        while True:
            done = self.charged % self.steps_per_epoch
            if not done:
                epoch = self.charged // self.steps_per_epoch + 1  # of all starts, so that none comes again
                self._secret = self.randomness.derive(f"allocation of epoch {epoch}")
            generator = SecureRandom(self._secret) if self.randomness.secure else secret_generator("cpu", self._secret)
            yield from allocation(self.samples, self.steps_per_epoch, generator)[done:]

    def for_checkpoint(self) -> dict[str, Any] | None:
        """Return the draws of the epoch that is under way, and after which charge; as secret as the training data."""
        if self.randomness.secure:
            return None
        secret = torch.tensor(list(self._secret), dtype=torch.uint8)
        return {"secret": secret, "charged": self.charged}
