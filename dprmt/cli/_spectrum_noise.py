"""The noise level that ``dprmt spectrum`` holds a spectrum against: given, from how noise was added, or estimated."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from dprmt._validation import ParameterError
from dprmt.cli._options import Option, read_options, real

_AUTO = "auto"
_LOW, _HIGH = 1e-100, 1e100
_number = real(low=_LOW, high=_HIGH)


def _sigma(name: str, text: str) -> float | str:
    return _AUTO if text == _AUTO else _number(name, text)


_POSITIVE = real(low=0.0, low_open=True, high=1e12)
_PARTS = (
    Option("--noise-multiplier", real(low=1e-3, high=1e6), "σ_DP, in [1e-3, 1e6]", metavar="S"),
    Option("--clipping-norm", _POSITIVE, "C, > 0", metavar="C"),
    Option("--batch-size", _POSITIVE, "B, the expected batch size; then σ = σ_DP·C/B", metavar="B"),
)
OPTIONS = (
    Option(
        "--sigma",
        _sigma,
        "standard deviation of one entry of the noise, σ_DP·C/|B|, in [1e-100, 1e100]; not the noise multiplier; auto"
        " estimates it, matrix by matrix",
        metavar="SIGMA|auto",
    ),
    *_PARTS,
)


@dataclass(frozen=True)
class NoiseLevel:
    """How the noise level of a matrix is found.

    Attributes
    ----------
    sigma : float or None
        The same for all matrices, or estimated from each.
    """

    sigma: float | None


def read_noise(namespace: argparse.Namespace) -> NoiseLevel:
    """From ``--sigma``, or from the three numbers that make it."""
    values = read_options(namespace, OPTIONS)
    parts = [values[option.dest] for option in _PARTS]
    given = [option for option, value in zip(_PARTS, parts, strict=True) if value is not None]
    if values["sigma"] is not None:
        for option in given:
            raise ParameterError(option.dest, values[option.dest], "left out where --sigma is given")
        return NoiseLevel(None if values["sigma"] == _AUTO else values["sigma"])
    if not given:
        flags = ", ".join(option.flag for option in _PARTS)
        raise ParameterError("sigma", None, f"given, or {flags}: a number in [{_LOW:g}, {_HIGH:g}] or auto")
    for option, value in zip(_PARTS, parts, strict=True):
        if value is None:
            raise ParameterError(option.dest, None, f"given where {given[0].flag} is")
    noise_multiplier, clipping_norm, batch_size = parts
    return NoiseLevel(_number("sigma", repr(noise_multiplier * clipping_norm / batch_size)))
