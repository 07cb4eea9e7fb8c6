"""Spectra as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from dprmt.cli._text_table import text_table
from dprmt.spectra import NoisySpectrum

Spectra = Mapping[str, NoisySpectrum]
_SPIKES_NAMED = 3  # predicted clean values in a row of the overview
_SPIKES_LISTED, _BULK_LISTED = 30, 5  # rows of the table of one matrix
_WIDE, _NARROW = 110, 72  # columns of a terminal under which less, and only what decides, is shown
_VERY_NARROW = 56  # the same, with long names cut
_DOUBTS = 5  # verdicts under the table
_SPIKE_COLUMNS = ("signal", "shrunk", "left_overlap", "right_overlap")


def printable(name: str) -> str:
    r"""The name with a replacement for every character that could upset a terminal or a picture.

    Examples
    --------
    >>> printable("layer.0\x1b[2J")
    'layer.0�[2J'
    """
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name)


def overview(found: Spectra, width: int | None = None) -> str:
    """One line per matrix, names last: a narrow terminal leaves out what decides least, and cuts names."""
    levels = sorted({spectrum.sigma for spectrum in found.values()})
    headings = ["shape", "σ", "σ̂", "top/edge", "spikes", "clean", "ranks", "energy", "visible", "fit D", "p", "matrix"]
    left_out = {"σ"} if len(levels) == 1 else set()
    if width is not None and width < _WIDE:
        left_out |= {"ranks", "energy", "fit D"}
    if width is not None and width < _NARROW:
        left_out |= {"σ", "visible", "clean"}
    if width is not None and width < _VERY_NARROW:
        left_out |= {"σ̂", "p"}
    headings = [heading for heading in headings if heading not in left_out]
    rows = [[_cells(name, spectrum)[heading] for heading in headings] for name, spectrum in found.items()]
    legend = "".join(f"{heading}: {_LEGEND[heading]};\n" for heading in headings if heading in _LEGEND)
    return (
        f"Singular values in noise of standard deviation {_level(levels)} per entry\n\n"
        f"{text_table(headings, rows, width=width)}\n{legend.format(rate=_rate(found)).removesuffix(';' + chr(10))}\n"
    )


_LEGEND = {
    "σ̂": "the noise level estimated from the matrix",
    "top/edge": "the largest singular value over the bulk edge, which that of noise alone is near",
    "spikes": "values above the gate, which noise alone exceeds in {rate} of such matrices",
    "clean": "predicted clean values of the top spikes",
    "ranks": "stable rank, effective rank",
    "energy": "share of the squared norm in values above the edge",
    "visible": "the smallest clean value that is called in 95 % of draws",
    "fit D": "distance of the other values from the law of noise",
    "p": "how often noise has a larger one",
}


def _cells(name: str, spectrum: NoisySpectrum) -> dict[str, str]:
    clean = [f"{spike.signal:.4g}" for spike in spectrum.spikes[:_SPIKES_NAMED]]
    return {
        "shape": _shape(spectrum),
        "σ": f"{spectrum.sigma:.4g}",
        "σ̂": f"{spectrum.fit.sigma:.3g}",
        "top/edge": f"{spectrum.top_over_edge:.3f}",
        "spikes": str(len(spectrum.spikes)),
        "clean": " ".join(clean + ["…"] * (len(spectrum.spikes) > _SPIKES_NAMED)),
        "ranks": f"{spectrum.stable_rank:.1f} {spectrum.effective_rank:.1f}",
        "energy": f"{100 * spectrum.energy_above_edge:.3g} %",
        "visible": f"{spectrum.visible:.4g}",
        "fit D": f"{spectrum.fit.distance:.2g}",
        "p": f"{spectrum.fit.p_value:.2g}",
        "matrix": printable(name),
    }


def verdict(found: Spectra, *, estimated: bool) -> str:
    """How many matrices are called, and how many noise alone would have had called."""
    called = sum(bool(spectrum.spikes) for spectrum in found.values())
    expected = sum(spectrum.false_alarm for spectrum in found.values())
    many = f"{called} of {len(found)} matrices {'has' if called == 1 else 'have'} a value above the gate"
    if len(found) == 1:
        many = f"{'A value is' if called else 'No value is'} above the gate"
    words = f"{many}; noise alone would give {expected:.2g} on average (false alarm rate {_rate(found)})"
    caution = ", were σ known: an estimate from a spectrum has a rate of its own" if estimated else ""
    nothing = " Nothing here can be told from noise.\n" if not called else "\n"
    return f"{words}{caution}.{nothing}"


def doubts(found: Spectra) -> Iterator[str]:
    """What speaks against the stated noise, one line for each verdict."""
    by_verdict: dict[str, list[str]] = {}
    for name, spectrum in found.items():
        if not spectrum.fit.fits:
            kind = spectrum.fit.verdict.partition(", σ is")[0]
            by_verdict.setdefault(kind, []).append(name)
    for said, names in list(by_verdict.items())[:_DOUBTS]:
        more = f" and {len(names) - 1} more: {said}" if len(names) > 1 else f": {found[names[0]].fit.verdict}"
        yield f"noise of {printable(names[0])}{more}\n"
    if len(by_verdict) > _DOUBTS:
        yield f"and {len(by_verdict) - _DOUBTS} more verdicts; --json has all\n"


def _rate(found: Spectra) -> str:
    rates = sorted({round(100 * spectrum.false_alarm, 4) for spectrum in found.values()})
    return f"{rates[0]:.3g} %" if len(rates) == 1 else f"{rates[0]:.3g} to {rates[-1]:.3g} %"


def value_rows(found: Spectra) -> Iterator[list[str]]:
    """A header, and a row for every singular value; what is known of spikes only is empty for the others."""
    yield ["matrix", "rows", "columns", "sigma", "index", "singular_value", "over_edge", *_SPIKE_COLUMNS]
    for name, spectrum in found.items():
        for place, value in enumerate(spectrum.singular_values.tolist()):
            spike = spectrum.spikes[place] if place < len(spectrum.spikes) else None
            known = ["" if spike is None else repr(getattr(spike, column)) for column in _SPIKE_COLUMNS]
            over = value / spectrum.bulk_edge if spectrum.bulk_edge > 0 else math.inf
            yield [name, *map(repr, (*spectrum.shape, spectrum.sigma, place + 1, value, over)), *known]


def details(name: str, spectrum: NoisySpectrum, width: int | None = None) -> str:
    """One line per singular value of one matrix: its spikes, and the first and the last of the others."""
    headings = ["", "observed", "/ edge", "noise", "clean", "shrunk", "left overlap", "right overlap"]
    table = []
    listed = _listed(len(spectrum.spikes), len(spectrum.singular_values))
    noise = spectrum.predicted()
    for before, i in zip([-1, *listed], listed, strict=False):
        if i > before + 1:
            table.append(["…"])
        observed = float(spectrum.singular_values[i])
        over = observed / spectrum.bulk_edge if spectrum.bulk_edge > 0 else math.inf
        cells = [str(i + 1), f"{observed:.4g}", f"{over:.4f}"]
        if i < len(spectrum.spikes):
            spike = spectrum.spikes[i]
            overlaps = spike.left_overlap, spike.right_overlap
            cells += ["", f"{spike.signal:.4g}", f"{spike.shrunk:.4g}", *(f"{overlap:.3f}" for overlap in overlaps)]
        else:
            cells += [f"{noise[i]:.4g}"]
        table.append(cells)
    columns = len(headings)
    if width is not None and width < _NARROW:
        columns = 6 if width >= _VERY_NARROW else 5
    headings, table = headings[:columns], [row[:columns] for row in table]
    if not spectrum.spikes:
        headings = headings[:4]
    return "".join(
        [
            f"{printable(name)}, {_shape(spectrum)}, σ = {spectrum.sigma:g}: ",
            f"bulk edge {spectrum.bulk_edge:.4g}, gate {spectrum.gate:.4g},",
            f" detection threshold {spectrum.detection_threshold:.4g},",
            f" called in 95 % of draws from {spectrum.visible:.4g} on, estimated σ {spectrum.fit.sigma:.4g},\n",
            f"stable rank {spectrum.stable_rank:.4g}, effective rank {spectrum.effective_rank:.4g},",
            f" energy above the edge {100 * spectrum.energy_above_edge:.3g} %,",
            f" fit of the law D = {spectrum.fit.distance:.2g} (p = {spectrum.fit.p_value:.2g})\n\n",
            text_table(headings, table),
            "\nnoise: predicted by the Marchenko–Pastur law",
            "; clean: the value that causes the spike" if spectrum.spikes else "",
            ";\noverlap: predicted squared overlap of the singular vector with the clean one\n"
            if "left overlap" in headings
            else "\n",
        ]
    )


def _listed(spikes: int, count: int) -> list[int]:
    # Positions of the singular values that get a row.
    named = [*range(min(spikes, _SPIKES_LISTED)), *range(spikes, min(spikes + _BULK_LISTED, count)), count - 1]
    return sorted(set(named))


def _shape(spectrum: NoisySpectrum) -> str:
    return "{} × {}".format(*spectrum.shape)


def _level(levels: Sequence[float]) -> str:
    if len(levels) == 1:
        return f"σ = {levels[0]:g}"
    return f"σ, estimated for each matrix, {levels[0]:.4g} to {levels[-1]:.4g},"
