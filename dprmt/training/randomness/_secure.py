"""Generators whose state cannot be guessed; noise and sampling, also from a cryptographic stream."""

from __future__ import annotations

import hashlib
import math
import random
import secrets
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

import numpy as np
import torch

from dprmt._validation import ParameterError, check_count, check_real, how_to_install

_ROOM = 15  # bytes that a buffer must have beyond what the cipher writes to it
_SUMMANDS = 4  # 2n normals with n = 2: the work of the attack is 2^(53(2n - 1))
_PIECE = 1 << 14  # entries of noise per block: half a MiB of every intermediate, which caches hold
_ZEROS = memoryview(bytes(1 << 17))  # few enough to stay in a cache with the results
_PART = 2**36 - 32  # bytes under a nonce, at most: 32 bits count its blocks, from 2


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
    # The layout is torch's own and undocumented; a test compares the stream with numpy's Mersenne Twister.
    words = np.frombuffer(stream.digest(4 * 624), dtype="<u4")
    state = generator.manual_seed(0).get_state()
    raw = state.numpy()
    raw[8:12] = np.frombuffer(np.int32(1).tobytes(), np.uint8)  # words left: none of this block
    start = 24  # bytes of seed, words left, whether seeded, and next word
    raw[start : start + 8 * len(words)] = np.frombuffer(words.astype("<u8").tobytes(), np.uint8)
    generator.set_state(state)
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


class CipherStream:
    """AES-256 in counter mode: the encryption of zeros, under nonce 0, 1, 2, ….

    Counter mode is GCM's here, which libraries have faster code for; its tags are not asked for. A block's counter is
    the nonce and the block's number under it, so that none comes twice. What is left of a nonce and too short for what
    is asked for is left out.
    """

    __slots__ = ("__encryptor", "__key", "__left", "__nonce")

    def __init__(self, key: bytes) -> None:
        self.__key, self.__nonce = key, -1
        self.__start()

    def words(self, count: int) -> np.ndarray:
        """Return the next 64-bit words of the stream."""
        buffer = np.empty(8 * count + _ROOM, dtype=np.uint8)
        self.fill(buffer.data)
        return buffer[: 8 * count].view("<u8")

    def fill(self, buffer: memoryview) -> None:
        """Overwrite a buffer with the next bytes of the stream, except for its last 15, which the library works in."""
        count, size = len(buffer) - _ROOM, min(len(_ZEROS), _PART)
        for first in range(0, count, size):
            part = min(size, count - first)
            if self.__left < part:
                self.__start()
            self.__left -= part
            self.__encryptor.update_into(_ZEROS[:part], buffer[first : first + part + _ROOM])

    def __start(self) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        except ImportError:
            raise ParameterError("secure", True, f"False, or install it: {how_to_install('secure')}") from None
        self.__nonce, self.__left = self.__nonce + 1, _PART
        mode = modes.GCM(self.__nonce.to_bytes(12, "big"))
        self.__encryptor = Cipher(algorithms.AES256(self.__key), mode).encryptor()


class SecureRandom:
    """Gaussian noise and Poisson sampling that resist attacks on the random numbers.

    Parameters
    ----------
    key : bytes, optional
        32 secret bytes. By default new bytes from the operating system, as a run should use. A key used twice gives
        the same noise twice, so that the difference of two releases shows the data.

    Privacy
    -------
    Holds if: the key is secret and used once. The stream is AES-256 in counter mode, as in GCM of the library
    `cryptography`. To an attacker without the key who cannot distinguish AES from a random permutation, N blocks are
    uniform up to an advantage of N²/2¹²⁹.

    Covers: attacks on floating-point noise. A single normal takes at most 2⁵³ values, which can reveal the sum before
    the noise (Mironov 2012; Jin et al. 2021, arXiv:2112.05307). Here each entry is half the sum of four normals
    (Holohan and Braghin 2021, arXiv:2107.10138, section 5.1), so that a search takes 2¹⁵⁹ steps. Each normal is Box
    and Muller's transform of a separate pair of 64-bit words, rounded to the 53 bits of float64. Nothing is rejected,
    so the time does not depend on the value, up to the hardware's arithmetic. Values beyond 18.8 standard deviations,
    of probability below 10⁻⁷⁷, do not occur.

    Covers: sampling. 64-bit integers are compared with ⌊q·2⁶⁴⌋, so the inclusion probability is this number over 2⁶⁴,
    never more than q. Numbers below a bound are exactly uniform.

    Does not cover: an attacker who reads memory, other side channels, and the difference between sums of discrete
    numbers and the normal law. A discrete mechanism would close the last gap.

    Key and state appear neither in ``repr`` nor in pickles nor in copies, so no checkpoint can hold them.

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
        if key is not None and (not isinstance(key, bytes) or len(key) != 32):
            raise ParameterError("key", "<hidden>", "32 bytes")
        self.__stream = CipherStream(secrets.token_bytes(32) if key is None else key)

    def __repr__(self) -> str:
        return "SecureRandom(key=<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SecureRandom holds a secret and cannot be pickled or copied")

    def normal(self, shape: Sequence[int], *, std: float = 1.0, device: torch.device | str = "cpu") -> torch.Tensor:
        """Draw independent entries of N(0, std²) on the CPU.

        Parameters
        ----------
        shape : sequence of int
            Shape of the result.
        std : float
            Standard deviation >= 0.
        device : device
            Device of the result.

        Returns
        -------
        Tensor
            float64; add it to a sum in float64 and round afterwards.

        Raises
        ------
        ParameterError
            If ``std`` is out of range.
        """
        return self.add_normal(torch.zeros(tuple(shape), dtype=torch.float64, device="cpu"), std=std).to(device)

    def add_normal(self, total: torch.Tensor, *, std: float = 1.0) -> torch.Tensor:
        """Add what :meth:`normal` draws to a sum, in place, in float64; rounded once, to the sum's dtype.

        Takes no memory of the sum's size.

        Parameters
        ----------
        total : Tensor
            Contiguous, on the CPU.
        std : float
            >= 0.

        Returns
        -------
        Tensor
            The sum.

        Raises
        ------
        ParameterError
            If the sum lies otherwise, or ``std`` is out of range.

        Examples
        --------
        >>> key = bytes(32)
        >>> noise = SecureRandom(key).normal((3,), std=2.0)
        >>> bool((SecureRandom(key).add_normal(torch.ones(3), std=2.0) == (1.0 + noise).float()).all())
        True
        """
        scale = check_real("std", std, low=0.0)
        if total.device.type != "cpu":
            raise ParameterError("total.device", total.device, "the CPU")
        if not total.is_contiguous():
            raise ParameterError("total.stride()", total.stride(), "the stride of a contiguous tensor")
        # Words are drawn in order, and made to noise on as many threads as torch has.
        pieces = total.view(-1).split(_PIECE) if total.numel() else ()
        several = max(1, min(torch.get_num_threads(), len(pieces)))
        with ThreadPoolExecutor(several) as pool:
            for first in range(0, len(pieces), several):
                now = pieces[first : first + several]
                if first == 0 or len(now[-1]) < _PIECE:
                    spaces = [_Workspace(len(piece)) for piece in now]
                for space, _ in zip(spaces, now, strict=False):
                    self.__stream.fill(space.bytes)
                done = (map if several == 1 else pool.map)(partial(_Workspace.add_sums, scale=scale), spaces, now)
                list(done)
        return total

    def poisson_sample(self, size: int, rate: float) -> list[int]:
        """Draw each number below ``size`` independently with probability ``rate``.

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
        words = self.__stream.words(count)
        return np.flatnonzero(words < np.uint64(heads)).tolist()

    def integers(self, count: int, below: int) -> torch.Tensor:
        """Return independent numbers, exactly uniform on {0, …, below - 1}: what is drawn above is drawn again.

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
            numbers = (self.__stream.words(left) & mask).astype(np.int64)
            accepted.append(numbers[numbers < bound])
            left -= len(accepted[-1])
        return torch.from_numpy(np.concatenate(accepted))


class _Workspace:
    """Where so many entries of noise are made from 64-bit words; memory that is not asked for again and again."""

    def __init__(self, count: int) -> None:
        self._half = -(-count // 2)
        shape = (2, _SUMMANDS, self._half)
        size = 8 * math.prod(shape)
        buffer = np.empty(size + _ROOM, dtype=np.uint8)
        self.bytes, self._words = buffer.data, torch.from_numpy(buffer[:size].view("<i8").reshape(shape))
        self._numbers = self._words.view(torch.float64)  # in their place: 64 bits each
        self._radius, self._sine = self._numbers
        self._cosine = torch.empty_like(self._sine)
        self._noise = torch.empty(count, dtype=torch.float64, device="cpu")
        self._least = torch.tensor(2.0**-128, dtype=torch.float64, device="cpu")  # squared uniform number
        self._radii, self._sines, self._cosines = (part.numpy() for part in (self._radius, self._sine, self._cosine))

    def add_sums(self, total: torch.Tensor, scale: float) -> None:
        """Add entries to what is there; in float64, and rounded once."""
        noise = self._noise[: len(total)]
        self.put_sums(noise, scale)
        total.copy_(noise.add_(total))

    def put_sums(self, out: torch.Tensor, scale: float) -> None:
        """Apply Box and Muller's transform to pairs of words, and write the summands' sums times ``scale`` over their
        deviation.

        A word w is a number of [-2⁶³, 2⁶³). The radius is √(-log u²) with u² = (w/2⁶³)² + 2⁻¹²⁸, and the angle is
        πw/2⁶³. The last term keeps the radius finite for w near 0, and is otherwise below all roundings. Each
        operation takes the same steps for all numbers.
        """
        # Entries i and i + half share their pairs, so that the four numbers of one entry are of four pairs.
        self._numbers.copy_(self._words)
        radius, sine = self._radius, self._sine
        torch.addcmul(self._least, radius, radius, value=2.0**-126, out=radius)
        torch.log(radius, out=radius)
        torch.sqrt(radius.mul_(-(scale**2) / _SUMMANDS), out=radius)
        sine.mul_(math.pi * 2.0**-63)
        torch.cos(sine, out=self._cosine)
        torch.sin(sine, out=sine)
        entries = out.numpy()
        _put_sum(self._cosines, self._radii, entries[: self._half])
        _put_sum(self._sines, self._radii, entries[self._half :])


def _put_sum(numbers: np.ndarray, radii: np.ndarray, out: np.ndarray) -> None:
    """Write the sum of four products."""
    present = len(out)
    np.einsum("ij,ij->j", numbers[:, :present], radii[:, :present], out=out)


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
    step_of = uniform(samples, steps, generator)
    order = torch.argsort(step_of, stable=True)
    sizes = torch.bincount(step_of, minlength=steps).tolist()
    return [part.tolist() for part in torch.split(order, sizes)]


def uniform(count: int, below: int, generator: torch.Generator | SecureRandom) -> torch.Tensor:
    """Draw independent numbers of {0, …, below - 1}, exactly uniform: what is drawn above is drawn again."""
    if isinstance(generator, SecureRandom):
        return generator.integers(count, below)
    values, device = 1 << (below - 1).bit_length(), generator.device
    drawn = torch.randint(values, (count,), generator=generator, device=device)
    while (again := torch.nonzero(drawn >= below)[:, 0]).numel():
        drawn[again] = torch.randint(values, (again.numel(),), generator=generator, device=device)
    return drawn
