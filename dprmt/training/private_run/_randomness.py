"""Randomness of a run: one secret per start, from which noise, Poisson sampling and probes are derived."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from dprmt._validation import ParameterError, TrainingStateError, check_count
from dprmt.training.randomness import SecureRandom, secret_generator

_SECRET_BYTES = 32


@dataclass(frozen=True)
class Randomness:
    """A secret of 32 bytes and what is derived from it; its ``repr`` does not show it.

    Formal guarantees
    -----------------
    Streams of different purposes are independent up to the pseudorandomness of SHAKE-256, and as hard to guess as a
    stream of :func:`dprmt.training.randomness.secret_generator`. The Mersenne Twister is not a cryptographic
    generator. Released gradients show sums of rounded normals and data, not its raw output. For an attacker on the
    generator or on floating-point noise, use ``secure``, which has the guarantee of ``SecureRandom``.
    """

    secret: bytes
    is_secret: bool
    secure: bool = False

    def __post_init__(self) -> None:
        if len(self.secret) != _SECRET_BYTES:  # a fixed length separates secret and purpose
            raise ParameterError("secret", "<hidden>", f"{_SECRET_BYTES} bytes")

    def __repr__(self) -> str:
        return f"Randomness(is_secret={self.is_secret})"

    def derive(self, purpose: str) -> bytes:
        """Derive 32 bytes for one purpose; each purpose is used once."""
        return hashlib.shake_256(self.secret + purpose.encode()).digest(_SECRET_BYTES)

    def generator(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator | SecureRandom:
        """Return a generator for one purpose."""
        if self.secure:
            return SecureRandom(self.derive(purpose))
        return secret_generator(device, self.derive(purpose))


def fresh_randomness(noise_seed: int | None, attempt: int, secure: bool = False) -> Randomness:
    """Make the randomness of one start of a run."""
    if noise_seed is None:
        drawn = Randomness(secrets.token_bytes(_SECRET_BYTES), True, secure)
        if secure:
            drawn.generator("noise")  # raises an error now if the package is missing
        return drawn
    if secure:
        raise ParameterError("noise_seed", noise_seed, "None with privacy.secure: a known seed gives no protection")
    if isinstance(noise_seed, bool) or not isinstance(noise_seed, int) or not 0 <= noise_seed < 2**63:
        raise ParameterError("noise_seed", noise_seed, "None or an integer in [0, 2**63)")
    text = f"dprmt run, noise seed {noise_seed}, attempt {check_count('attempt', attempt)}"
    return Randomness(hashlib.blake2b(text.encode(), digest_size=_SECRET_BYTES).digest(), False)


# The processes of a ``torchrun``: one if there is none.

_Value = TypeVar("_Value")


@contextmanager
def process_group() -> Iterator[tuple[int, int]]:
    """Join the group that ``torchrun`` set up, and leave it again."""
    if dist.is_available() and dist.is_initialized():
        yield dist.get_rank(), dist.get_world_size()
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0, 1
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """Return the number of this process."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def most_in_any(count: int) -> int:
    """Return the largest of all processes' counts."""
    most = torch.tensor(count)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


def sum_of_all(value: float) -> float:
    """Return the sum of all processes' numbers."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


def from_first(value: _Value) -> _Value:
    """Return the first process' value, in all processes."""
    if not (dist.is_available() and dist.is_initialized()):
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def in_first(work: Callable[[], _Value]) -> _Value | None:
    """Work in the first process, None elsewhere; an error there is raised in all processes, so that all end."""
    value, problem = None, None
    if rank() == 0:
        try:
            value = work()
        except (ParameterError, TrainingStateError) as error:
            problem = error
    if (problem := from_first(problem)) is not None:
        raise problem
    return value
