"""One matrix's spectrum with its name, as the command line reports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dprmt.spectra import CheckpointSpectra, NoisySpectrum, noisy_spectrum_from_dict

FALSE_ALARM = 0.01


@dataclass(frozen=True, eq=False, repr=False)
class MatrixSpectrum(NoisySpectrum):
    """The spectrum of a matrix of a file.

    Attributes
    ----------
    name : str
        Of the matrix in its file.
    kind : str
        How the array was read: "matrix", "kernel", "stack" or "product".
    array_shape : tuple of int
        Of the array as it was: longer for a kernel or a stack.
    """

    name: str = ""
    kind: str = "matrix"
    array_shape: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """All of it in types that JSON knows."""
        about = {"name": self.name, "kind": self.kind, "array_shape": list(self.array_shape)}
        return {**about, **super().as_dict()}


def named(found: CheckpointSpectra, prefix: str = "") -> Iterator[MatrixSpectrum]:
    """The spectra of a file with their names."""
    for name, spectrum in found.items():
        kind, shape = found.kinds[name], found.array_shapes[name]
        yield MatrixSpectrum(**vars(spectrum), name=prefix + name, kind=kind, array_shape=shape)


def recorded_spectrum(record: Mapping[str, Any], false_alarm: float) -> MatrixSpectrum:
    """What :meth:`MatrixSpectrum.as_dict` described, at this rate of false alarms."""
    values = vars(noisy_spectrum_from_dict(record, false_alarm=false_alarm))
    name, kind = str(record["name"]), str(record.get("kind", "matrix"))
    return MatrixSpectrum(**values, name=name, kind=kind, array_shape=tuple(record["array_shape"]))
