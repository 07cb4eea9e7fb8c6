"""Spectra as text."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dprmt.cli._matrix_spectrum import MatrixSpectrum

if TYPE_CHECKING:
    from rich.table import Table

_SPIKES_NAMED = 3  # predicted clean values in a row of the overview
_SPIKES_LISTED, _BULK_LISTED = 30, 5  # rows of the table of one matrix
_UNLIMITED = 100_000  # columns
_SPIKE_COLUMNS = ("signal", "shrunk", "left_overlap", "right_overlap")


def printable(name: str) -> str:
    r"""The name with a replacement for every character that could upset a terminal or a picture.

    Examples
    --------
    >>> printable("layer.0\x1b[2J")
    'layer.0�[2J'
    """
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name)


def overview(spectra: Sequence[MatrixSpectrum]) -> str:
    """One line per matrix. Names come last, so that a narrow terminal breaks nothing but them."""
    levels = sorted({spectrum.sigma for spectrum in spectra})
    estimated = len(levels) > 1
    table = _table("shape", *(["σ"] if estimated else []), "edge", "threshold", "top", "top/edge", "spikes")
    table.add_column("clean")
    table.add_column("matrix")
    for spectrum in spectra:
        scales = spectrum.bulk_edge, spectrum.detection_threshold, float(spectrum.singular_values[0])
        clean = [f"{spike.signal:.4g}" for spike in spectrum.spikes[:_SPIKES_NAMED]]
        clean += ["…"] if len(spectrum.spikes) > _SPIKES_NAMED else []
        table.add_row(
            _shape(spectrum),
            *([f"{spectrum.sigma:.4g}"] if estimated else []),
            *(f"{scale:.4g}" for scale in scales),
            f"{spectrum.top_over_edge:.3f}",
            str(len(spectrum.spikes)),
            " ".join(clean),
            printable(spectrum.name),
        )
    return "".join(
        [
            f"Singular values in noise of standard deviation {_level(levels)} per entry\n\n",
            _rendered(table),
            "edge: bulk edge, where noise ends; threshold: the smallest clean value that shows;\n",
            "spikes: values above the edge; clean: predicted clean values of the top spikes\n",
        ]
    )


def csv_rows(spectra: Sequence[MatrixSpectrum]) -> Iterator[list[str]]:
    """A header, and a row for every singular value; what is known of spikes only is empty for the others."""
    yield ["matrix", "rows", "columns", "sigma", "index", "singular_value", "over_edge", *_SPIKE_COLUMNS]
    for spectrum in spectra:
        for place, value in enumerate(spectrum.singular_values.tolist()):
            spike = spectrum.spikes[place] if place < len(spectrum.spikes) else None
            known = ["" if spike is None else repr(getattr(spike, name)) for name in _SPIKE_COLUMNS]
            numbers = map(repr, (*spectrum.shape, spectrum.sigma, place + 1, value, value / spectrum.bulk_edge))
            yield [spectrum.name, *numbers, *known]


def details(spectrum: MatrixSpectrum) -> str:
    """One line per singular value of one matrix: its spikes, and the first and the last of its bulk."""
    table = _table("", "observed", "/ edge", "noise", "clean", "shrunk", "left overlap", "right overlap")
    rows = _listed(len(spectrum.spikes), len(spectrum.singular_values))
    noise = spectrum.predicted()
    for before, i in zip([-1, *rows], rows, strict=False):
        if i > before + 1:
            table.add_row("…")
        observed = float(spectrum.singular_values[i])
        cells = [str(i + 1), f"{observed:.4g}", f"{observed / spectrum.bulk_edge:.4f}"]
        if i < len(spectrum.spikes):
            spike = spectrum.spikes[i]
            overlaps = spike.left_overlap, spike.right_overlap
            cells += ["", f"{spike.signal:.4g}", f"{spike.shrunk:.4g}", *(f"{overlap:.3f}" for overlap in overlaps)]
        else:
            cells += [f"{noise[i]:.4g}", "", "0", "", ""]
        table.add_row(*cells)
    return "".join(
        [
            f"{printable(spectrum.name)}, {_shape(spectrum)}, σ = {spectrum.sigma:g}: ",
            f"bulk edge {spectrum.bulk_edge:.4g}, detection threshold {spectrum.detection_threshold:.4g}\n\n",
            _rendered(table),
            "noise: predicted by the Marchenko–Pastur law; clean: the value that causes the spike;\n",
            "overlap: predicted squared overlap of the singular vector with the clean one\n",
        ]
    )


def _listed(spikes: int, count: int) -> list[int]:
    # Positions of the singular values that get a row.
    named = [*range(min(spikes, _SPIKES_LISTED)), *range(spikes, min(spikes + _BULK_LISTED, count)), count - 1]
    return sorted(set(named))


def _table(*headings: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _rendered(table: Table) -> str:
    # As wide as it needs to be, whatever the terminal, and without blanks at the ends of lines.
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=_UNLIMITED, markup=False, highlight=False).print(table)
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def _shape(spectrum: MatrixSpectrum) -> str:
    return "{} × {}".format(*spectrum.shape)


def _level(levels: Sequence[float]) -> str:
    if len(levels) == 1:
        return f"σ = {levels[0]:g}"
    return f"σ, estimated for each matrix, {levels[0]:.4g} to {levels[-1]:.4g},"
