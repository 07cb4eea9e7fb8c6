"""Seeded Gaussian probes: regenerated whenever they are needed, never stored.

A probe matrix is the output of a counter-based generator (Philox-4x64-10, Salmon et al. 2011, 128-bit key)
whose key is

    BLAKE2b-128 keyed with the secret seed, of (purpose, step, layer, sample),

the four written so that different quadruples are different strings (each part carries its type and length).

**Independence.** Keyed BLAKE2b is a pseudorandom function: to anyone without the seed the keys of different quadruples
are independent and uniform. So probes of different layers, steps, samples and purposes (sketch and tail of Hutch++)
are independent streams unless two keys collide. N quadruples collide with probability at most N²/2¹²⁹, or 1e-15 for a
run of 1e12. ``torch.Generator.manual_seed`` is not used, because it keeps 32 bits of its seed on the CPU: a run of 1e5
matrices would repeat some. A stream depends only on its quadruple, not on the order of calls, the position in a batch,
or the size of a micro-batch.

The normals are drawn in float64 and rounded to the wanted dtype, at most 2⁻²⁴ relative for float32; the
rounding margin of `dprmt.training.norms.rounding_margin` counts this. They are drawn on the CPU and copied,
so that they are the same on every device.
"""

from __future__ import annotations

import hashlib
import math
import operator
import secrets
from collections.abc import Sequence
from typing import Any, NoReturn, SupportsIndex, TypeAlias

import numpy as np
import torch

from dprmt._validation import ParameterError, check_count

SampleId: TypeAlias = SupportsIndex | str

_PERSON = b"dprmt probes v1"


class ProbeGenerator:
    """Gaussian probes with entries N(0, 1/k), one matrix per step and layer, or one per sample as well.

    Parameters
    ----------
    seed : bytes or int, optional
        The secret: at most 64 bytes, at least 16, or an integer in [0, 2²⁵⁶). None, the default, draws 32 bytes from
        the operating system (`secrets`). Processes that share a logical batch need the same seed where probes are
        shared. Use a known seed for tests only: see below.

    Formal guarantees
    -----------------
    With a secret seed, matrices of different (purpose, step, layer, sample) are independent with independent N(0, 1/k)
    entries, as ``dprmt.accounting.Hutchinson`` requires. This holds up to the pseudorandomness of BLAKE2b and Philox,
    and a collision of probability N²/2¹²⁹ for N matrices. You must

    * number logical steps so that no number repeats in a run with one seed, and pass the same number for all
      micro-batches of a logical step;
    * give every layer (every parameter matrix) a different name;
    * for secret probes, name samples by their identity in the data set, never by their position in a batch.

    The seed appears neither in ``repr`` nor in pickles, because pickling raises an error. With a public seed, the
    guarantee of public probes holds only if data and training run were chosen without looking at the probes. The
    guarantee of secret probes does not hold.

    Raises
    ------
    ParameterError
        If the seed is out of range.

    Examples
    --------
    >>> generator = ProbeGenerator(seed=0)  # a known seed: for tests only
    >>> generator
    ProbeGenerator(seed=<secret>)
    >>> generator.shared(step=3, layer="head", rows=768, probes=32).shape
    torch.Size([768, 32])
    >>> both = generator.per_sample([5, 9], step=3, layer="head", rows=768, probes=32)
    >>> bool((both[1] == generator.per_sample([9], step=3, layer="head", rows=768, probes=32)[0]).all())
    True
    """

    __slots__ = ("__seed",)

    def __init__(self, seed: bytes | int | None = None) -> None:
        self.__seed = _seed_bytes(seed)

    def __repr__(self) -> str:
        return "ProbeGenerator(seed=<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ProbeGenerator holds a secret seed and cannot be pickled or copied")

    def restart(self, seed: bytes) -> None:
        """Draw from another secret from now on.

        Parameters
        ----------
        seed : bytes
            The secret, 16 to 64 bytes.
        """
        self.__seed = _seed_bytes(seed)

    def shared(
        self,
        *,
        step: SupportsIndex,
        layer: str,
        rows: SupportsIndex,
        probes: SupportsIndex,
        purpose: str = "probes",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> torch.Tensor:
        """Return the one matrix that all samples of a logical step share.

        Parameters
        ----------
        step : int
            Number of the logical step, >= 0.
        layer : str
            Name of the layer, not empty.
        rows, probes : int
            Shape of the matrix; ``probes`` is k.
        purpose : str
            "probes", or "sketch" for Hutch++'s.
        dtype, device
            Dtype (float32 or float64) and device of the result.

        Returns
        -------
        Tensor, shape (rows, probes)
            Independent N(0, 1/k) entries.

        Raises
        ------
        ParameterError
            If an argument is out of its range.
        """
        (matrix,) = self._matrices([_message("all")], step, layer, rows, probes, purpose, dtype)
        return matrix.to(device)

    def per_sample(
        self,
        samples: Sequence[SampleId] | torch.Tensor,
        *,
        step: SupportsIndex,
        layer: str,
        rows: SupportsIndex,
        probes: SupportsIndex,
        purpose: str = "probes",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> torch.Tensor:
        """Return a matrix for every sample, by the samples' identities.

        Parameters
        ----------
        samples : sequence of int or str, or tensor of integers, shape (B,)
            Identities, all different.
        step, layer, rows, probes, purpose, dtype, device
            As in :meth:`shared`.

        Returns
        -------
        Tensor, shape (B, rows, probes)
            Independent N(0, 1/k) entries.

        Raises
        ------
        ParameterError
            If an argument is out of its range, or an identity appears twice.
        """
        return self._matrices(sample_names(samples), step, layer, rows, probes, purpose, dtype).to(device)

    def _matrices(
        self,
        names: Sequence[bytes],
        step: SupportsIndex,
        layer: str,
        rows: SupportsIndex,
        probes: SupportsIndex,
        purpose: str,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        number = check_count("step", step, low=0)
        for argument, word in (("layer", layer), ("purpose", purpose)):
            if not isinstance(word, str) or not word:
                raise ParameterError(argument, word, "a name that is not empty")
        if dtype not in (torch.float32, torch.float64):
            raise ParameterError("dtype", dtype, "torch.float32 or torch.float64")
        shape = check_count("rows", rows), check_count("probes", probes)
        head = _message(purpose, str(number), layer)
        result = torch.empty((len(names), *shape), dtype=dtype)
        for matrix, name in zip(result, names, strict=True):
            digest = hashlib.blake2b(head + name, key=self.__seed, digest_size=16, person=_PERSON).digest()
            stream = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
            matrix.copy_(torch.from_numpy(stream.standard_normal(shape) / math.sqrt(shape[1])))
        return result


def sample_names(samples: Sequence[SampleId] | torch.Tensor) -> list[bytes]:
    """Return identities as byte strings that differ whenever the identities do.

    Returns
    -------
    list of bytes
        One per sample.

    Raises
    ------
    ParameterError
        If an identity is neither an integer nor a string, or appears twice.

    Examples
    --------
    >>> len({*sample_names([7, "7"])})
    2
    """
    known = checked_ids("samples", samples)
    names = [_message(type(sample).__name__, str(sample)) for sample in known]
    if len(set(names)) < len(names):
        twice = next(sample for sample, name in zip(known, names, strict=True) if names.count(name) > 1)
        raise ParameterError("samples", twice, "identities that are all different")
    return names


def checked_ids(name: str, values: Any, rows: int | None = None) -> list[SampleId]:
    """Return integers and strings, of a number of rows if it is given, as such; raises for anything else."""
    values = values.tolist() if isinstance(values, torch.Tensor) else values
    is_list = hasattr(values, "__len__") and not isinstance(values, (str, bytes))
    if not is_list or rows not in (None, len(values)):
        count = len(values) if hasattr(values, "__len__") else type(values).__name__
        each = "sample" if rows is None else f"of the {rows} rows"
        raise ParameterError(name, count, f"one integer or string for each {each}")
    found: list[SampleId] = []
    for value in values:
        try:
            if isinstance(value, bool):
                raise TypeError
            found.append(str(value) if isinstance(value, str) else operator.index(value))
        except TypeError:
            raise ParameterError(name, value, "integers or strings", "convert all of them, as by str()") from None
    return found


def _message(*parts: str) -> bytes:
    """Return parts with their lengths, so that different ones are different strings."""
    return b"".join(len(text).to_bytes(8, "little") + text for text in map(str.encode, parts))


def _seed_bytes(seed: bytes | int | None) -> bytes:
    if seed is None:
        return secrets.token_bytes(32)
    allowed = "16 to 64 bytes, or an integer in [0, 2**256)"
    if isinstance(seed, bytes):
        if not 16 <= len(seed) <= 64:
            raise ParameterError("seed", f"<hidden, {len(seed)} bytes>", allowed)
        return b"B" + seed if len(seed) < 64 else hashlib.blake2b(seed).digest()
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**256:
        raise ParameterError("seed", "<hidden>", allowed)
    return b"I" + seed.to_bytes(32, "little")
