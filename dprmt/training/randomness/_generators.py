"""Torch generators whose state cannot be guessed."""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
import torch

_WORDS = 624  # of the Mersenne Twister's state
_HEADER = 24  # bytes of torch's CPU state before these words: seed, words left, whether seeded, next word


def secret_generator(device: torch.device | str, secret: bytes | None = None) -> torch.Generator:
    """A generator whose stream is a function of a secret, with as much of it as torch's generators can hold.

    ``torch.Generator.manual_seed`` keeps 32 bits of its seed on the CPU, few enough to try them all against a released
    gradient. Here the Mersenne Twister gets all 19,937 bits of its state from SHAKE-256 of the secret. Elsewhere
    torch takes 64 bits.

    Parameters
    ----------
    device : device
        Of the generator.
    secret : bytes, optional
        By default 32 new bytes from the operating system.

    Returns
    -------
    torch.Generator
        The Mersenne Twister is no cryptographic generator: 624 of its words, seen exactly, predict the rest.

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
    generator.set_state(_twister_state(np.frombuffer(stream.digest(4 * _WORDS), dtype="<u4")))
    return generator


def _twister_state(words: np.ndarray) -> torch.Tensor:
    # The layout is torch's own and undocumented; a test compares the stream with numpy's Mersenne Twister.
    state = torch.Generator().manual_seed(0).get_state()
    raw = state.numpy()
    raw[8:12] = np.frombuffer(np.int32(1).tobytes(), np.uint8)  # words left: none of this block
    raw[_HEADER : _HEADER + 8 * _WORDS] = np.frombuffer(words.astype("<u8").tobytes(), np.uint8)
    return state
