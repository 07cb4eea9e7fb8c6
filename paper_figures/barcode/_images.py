"""Images of digits to put barcodes on: MNIST from idx files, or the digits that scikit-learn carries."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
import torch

from dprmt._validation import ParameterError

SIDE = 28
_UBYTE = 0x08


def mnist_images(images: str | Path, labels: str | Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Read a pair of idx files of MNIST, plain or gzipped.

    Parameters
    ----------
    images, labels : str or Path
        Such as ``train-images-idx3-ubyte.gz`` and ``train-labels-idx1-ubyte.gz``.

    Returns
    -------
    images : Tensor, shape (n, 28, 28)
        float32 in [0, 1].
    labels : Tensor of int64, shape (n,)
        The digits.

    Raises
    ------
    ParameterError
        If a file is not of that format, or the two do not belong together.

    Examples
    --------
    Two black images, labelled 7 and 2, in the format of these files:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     images, labels = Path(folder, "images"), Path(folder, "labels.gz")
    ...     _ = images.write_bytes(struct.pack(">HBB3I", 0, 0x08, 3, 2, 28, 28) + bytes(2 * 28 * 28))
    ...     _ = labels.write_bytes(gzip.compress(struct.pack(">HBBI", 0, 0x08, 1, 2) + bytes([7, 2])))
    ...     pixels, digits = mnist_images(images, labels)
    >>> pixels.shape, digits
    (torch.Size([2, 28, 28]), tensor([7, 2]))
    """
    pixels, digits = _read_idx("images", Path(images), 3), _read_idx("labels", Path(labels), 1)
    if pixels.shape[1:] != (SIDE, SIDE):
        raise ParameterError("images", pixels.shape, f"of shape (n, {SIDE}, {SIDE})")
    if len(pixels) != len(digits) or int(digits.max(initial=0)) > 9:
        raise ParameterError("labels", digits.shape, f"{len(pixels)} digits, as many as images")
    return torch.from_numpy(pixels / np.float32(255)), torch.from_numpy(digits.astype(np.int64))


def digits_images() -> tuple[torch.Tensor, torch.Tensor]:
    """The 1,797 images of ``sklearn.datasets.load_digits`` at the size of MNIST; nothing is downloaded.

    Their 8×8 pixels (0 … 16) become blocks of 3×3, inside a border of 2 black pixels. So row 0 is free.

    Returns
    -------
    images : Tensor, shape (1797, 28, 28)
        float32 in [0, 1].
    labels : Tensor of int64, shape (1797,)
        The digits.

    Examples
    --------
    >>> images, labels = digits_images()
    >>> images.shape, float(images.max()), float(images[:, 0].max()), labels[:3].tolist()
    (torch.Size([1797, 28, 28]), 1.0, 0.0, [0, 1, 2])
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = torch.from_numpy(digits.images.astype(np.float32) / 16)
    large = small.repeat_interleave(3, 1).repeat_interleave(3, 2)
    return torch.nn.functional.pad(large, (2, 2, 2, 2)), torch.from_numpy(digits.target.astype(np.int64))


def _read_idx(name: str, path: Path, axes: int) -> np.ndarray:
    raw = path.read_bytes()
    try:
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        zero, kind, found = struct.unpack_from(">HBB", raw)
        shape = struct.unpack_from(f">{axes}I", raw, 4)
    except (OSError, EOFError, struct.error):
        raise ParameterError(name, str(path), "an idx file, plain or gzipped") from None
    start = 4 + 4 * axes
    if (zero, kind, found) != (0, _UBYTE, axes) or len(raw) != start + math.prod(shape):
        raise ParameterError(name, str(path), f"an idx file of unsigned bytes with {axes} axes, complete")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
