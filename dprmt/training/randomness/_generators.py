"""Torch generators whose state cannot be guessed."""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch


def secret_generator(device: torch.device | str, secret: bytes | None = None) -> torch.Generator:
    """Make a generator whose stream is a function of a secret, with as much of it as torch's generators can hold.

    ``torch.Generator.manual_seed`` keeps 32 bits of its seed on the CPU, few enough to try them all against a released
    gradient. Here the Mersenne Twister gets all 19,937 bits of its state from SHAKE-256 of the secret. Elsewhere
    torch takes 64 bits.

    Parameters
    ----------
    device : device
        Device of the generator.
    secret : bytes, optional
        By default 32 new bytes from the operating system.

    Returns
    -------
    torch.Generator
        The Mersenne Twister is not cryptographic: 624 exact outputs predict the rest.

    Examples
    --------
    >>> one, other = secret_generator("cpu"), secret_generator("cpu")
    >>> bool((torch.randn(4, generator=one) == torch.randn(4, generator=other)).all())
    False
    """
    stream = hashlib.shake_256(secrets.token_bytes(32) if secret is None else secret)
    generator = torch.Generator(device)
    if generator.device.type != "cpu":
        return generator.manual_seed(int.from_bytes(stream.digest(8), "little") & (2**63 - 1))
    generator.set_state(_twister_state(np.frombuffer(stream.digest(4 * 624), dtype="<u4")))
    return generator


@contextmanager
def draws_from(secret: bytes, devices: Iterable[torch.device]) -> Iterator[None]:
    """Seed the default generators of torch, NumPy and Python from a secret, and give them their states back.

    Parameters
    ----------
    secret : bytes
        At least 32, never used twice.
    devices : iterable of device
        Devices of the model; the CPU is always included.

    Yields
    ------
    None
        Run a forward and a backward pass inside: dropout then does not depend on a known seed.
    """
    cuda = sorted({device for device in devices if device.type == "cuda"}, key=str)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  (a model may draw from it)
    try:
        with torch.random.fork_rng(devices=cuda):
            torch.default_generator.set_state(secret_generator("cpu", secret).get_state())
            words = np.frombuffer(hashlib.shake_256(b"numpy" + secret).digest(32), dtype="<u4")
            for place, device in enumerate(cuda):
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(secret_generator(device, b"%d" % place + secret).initial_seed())
            random.seed(b"python" + secret)
            np.random.seed(words)  # noqa: NPY002
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _twister_state(words: np.ndarray) -> torch.Tensor:
    # The layout is torch's own and undocumented; a test compares the stream with numpy's Mersenne Twister.
    state = torch.Generator().manual_seed(0).get_state()
    raw = state.numpy()
    raw[8:12] = np.frombuffer(np.int32(1).tobytes(), np.uint8)  # words left: none of this block
    start = 24  # bytes of seed, words left, whether seeded, and next word
    raw[start : start + 8 * len(words)] = np.frombuffer(words.astype("<u8").tobytes(), np.uint8)
    return state
