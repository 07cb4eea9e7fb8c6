"""Gaussian noise and Poisson coins from a cryptographic stream."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NoReturn

import numpy as np
import torch

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.training.randomness._cipher import KEY_BYTES, ROOM, CipherStream

_SUMMANDS = 4  # 2n normals with n = 2: the work of the attack is 2^(53(2n - 1))
_PIECE = 1 << 14  # entries of noise made at once: half a MiB of every intermediate, which the caches hold


class SecureRandom:
    """Noise and coins for a deployment whose adversary attacks the random numbers themselves.

    Parameters
    ----------
    key : bytes, optional
        32 secret bytes. By default new ones from the operating system, which is what a run should use: a key given
        twice gives the same noise twice, and the difference of two releases then shows the data.

    Formal guarantees
    -----------------
    *The stream* is AES-256 in counter mode of the library `cryptography`. To whoever has not the key, and cannot tell
    AES from a random permutation, N blocks of it are uniform up to an advantage of N²/2¹²⁹.

    *The noise* of every entry is half the sum of four normals (Holohan and Braghin 2021, arXiv:2107.10138, section
    5.1; Opacus does the same), each by Box and Muller's transform of two 64-bit words, rounded to the 53 bits of
    float64, and no two of the four from the same pair of words. A single normal in floating point is one of at most
    2⁵³ values, and which ones tells the sum before the noise (Mironov 2012; Jin et al. 2021, arXiv:2112.05307); to
    search the values of a sum of four takes 2¹⁵⁹ steps. Nothing is rejected: how long an entry takes does not depend on
    its value, up to the hardware's arithmetic. Of N(0, 1), what lies beyond 18.7, with probability below 10⁻⁷⁶, does
    not occur.

    *The coins* compare 64-bit integers with ⌊q·2⁶⁴⌋: a sample is taken with exactly this probability over 2⁶⁴, never
    more than q. Numbers below a bound are uniform: words are drawn again until they are below.

    Not covered: memory that somebody reads, other side channels, and the difference between sums of discrete numbers
    and the normal law, which has no proof here; a discrete mechanism would.

    The key and the state of the stream are in neither ``repr`` nor pickles nor copies: all three are refused, so that
    no checkpoint can hold them.

    Raises
    ------
    ParameterError
        If the key is not 32 bytes, or the package ``cryptography`` is not installed.

    Examples
    --------
    >>> random = SecureRandom()
    >>> random
    SecureRandom(key=<secret>)
    >>> random.normal((2, 3), std=2.0).shape
    torch.Size([2, 3])
    >>> random.poisson_sample(4, 1.0), random.poisson_sample(4, 0.0)
    ([0, 1, 2, 3], [])
    """

    __slots__ = ("__stream",)

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and (not isinstance(key, bytes) or len(key) != KEY_BYTES):
            raise ParameterError("key", "<hidden>", f"{KEY_BYTES} bytes")
        self.__stream = CipherStream(secrets.token_bytes(KEY_BYTES) if key is None else key)

    def __repr__(self) -> str:
        return "SecureRandom(key=<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SecureRandom holds a secret and cannot be pickled or copied")

    def normal(self, shape: Sequence[int], *, std: float = 1.0, device: torch.device | str = "cpu") -> torch.Tensor:
        """Independent entries of N(0, std²), made on the CPU.

        Parameters
        ----------
        shape : sequence of int
            Of the result.
        std : float
            >= 0.
        device : device
            Of the result.

        Returns
        -------
        Tensor
            float64: whoever adds it to a sum should do so in float64 and round afterwards.

        Raises
        ------
        ParameterError
            If ``std`` is out of range.
        """
        scale = check_real("std", std, low=0.0) / math.sqrt(_SUMMANDS)
        result = torch.empty(math.prod(shape), dtype=torch.float64)
        self._fill(result, scale)
        return result.view(tuple(shape)).to(device)

    def poisson_sample(self, size: int, rate: float) -> list[int]:
        """The numbers below ``size`` whose coins, each with probability ``rate``, fall on heads.

        Parameters
        ----------
        size : int
            >= 0.
        rate : float
            In [0, 1].

        Returns
        -------
        list of int
            Increasing.

        Raises
        ------
        ParameterError
            If an argument is out of its range.
        """
        count = check_count("size", size, low=0)
        heads = int(check_real("rate", rate, low=0.0, high=1.0) * 2.0**64)  # exact before it is cut to an integer
        if heads == 2**64:
            return list(range(count))
        words = np.frombuffer(self.__stream.read(8 * count), dtype="<u8")
        return np.flatnonzero(words < np.uint64(heads)).tolist()

    def integers(self, count: int, below: int) -> torch.Tensor:
        """Independent numbers, exactly uniform on {0, …, below - 1}: what is drawn above is drawn again.

        Parameters
        ----------
        count : int
            >= 0.
        below : int
            In [1, 2⁶²].

        Returns
        -------
        Tensor, shape (count,)
            int64.

        Raises
        ------
        ParameterError
            If an argument is out of its range.
        """
        left, bound = check_count("count", count, low=0), check_count("below", below, high=2**62)
        mask, accepted = np.uint64((1 << (bound - 1).bit_length()) - 1), [np.empty(0, dtype=np.int64)]
        while left:
            numbers = (np.frombuffer(self.__stream.read(8 * left), dtype="<u8") & mask).astype(np.int64)
            accepted.append(numbers[numbers < bound])
            left -= len(accepted[-1])
        return torch.from_numpy(np.concatenate(accepted))

    def _fill(self, result: torch.Tensor, scale: float) -> None:
        """Sums of normals: words are drawn in order, and turned into normals by as many threads as torch has."""
        pieces = result.split(_PIECE) if len(result) else ()
        several = max(1, min(torch.get_num_threads(), len(pieces)))
        spaces = [_Workspace(min(_PIECE, len(result))) for _ in range(several)]
        with ThreadPoolExecutor(several) as pool:
            for first in range(0, len(pieces), several):
                now = pieces[first : first + several]
                if len(now[-1]) < _PIECE:
                    spaces = [_Workspace(len(piece)) for piece in now]
                for space in spaces[: len(now)]:
                    self.__stream.fill(space.bytes)
                if several == 1:
                    spaces[0].put_sums(now[0], scale)
                else:
                    list(pool.map(partial(_Workspace.put_sums, scale=scale), spaces, now))


class _Workspace:
    """Where so many entries of noise are made from 64-bit words; memory that is not asked for again and again."""

    def __init__(self, count: int) -> None:
        self._half = -(-count // 2)
        shape = (2, _SUMMANDS, self._half)
        size = 8 * math.prod(shape)
        buffer = np.empty(size + ROOM, dtype=np.uint8)
        self.bytes, self._words = buffer.data, buffer[:size].view("<i8").reshape(shape)
        self._numbers, self._cosine = np.empty(shape), np.empty(shape[1:])

    def put_sums(self, out: torch.Tensor, scale: float) -> None:
        """Box and Muller's transform of pairs of words, and the summands' sums times ``scale``.

        A word w is a number of [-2⁶³, 2⁶³). The radius is √(-2 log u) with u = |w|/2⁶³, which an odd w keeps above 0;
        half the angle is πw/2⁶⁴. With t its tangent and q = 2/(1 + t²), the cosine is q - 1 and the sine tq: one
        tangent takes half the time of both, and has no steps that depend on its value.
        """
        # Entries i and i + half share their pairs, so that the four numbers of one entry are of four pairs.
        np.bitwise_or(self._words[0], 1, out=self._words[0])
        np.copyto(self._numbers, self._words, casting="unsafe")
        (radius, sine), cosine = self._numbers, self._cosine
        radius *= 2.0**-63
        radius *= radius
        np.sqrt(np.negative(np.log(radius, out=radius), out=radius), out=radius)
        sine *= math.pi * 2.0**-64
        np.tan(sine, out=sine)
        np.multiply(sine, sine, out=cosine)
        cosine += 1.0
        np.divide(2.0, cosine, out=cosine)
        sine *= cosine
        cosine -= 1.0
        entries, left = out.numpy(), len(out) - self._half
        _put_sum(cosine, radius, entries[: self._half])
        _put_sum(sine[:, :left], radius[:, :left], entries[self._half :])
        entries *= scale


def _put_sum(numbers: np.ndarray, radius: np.ndarray, out: np.ndarray) -> None:
    """Of four products."""
    numbers *= radius
    np.add(numbers[0], numbers[1], out=numbers[0])
    np.add(numbers[2], numbers[3], out=numbers[2])
    np.add(numbers[0], numbers[2], out=out)
