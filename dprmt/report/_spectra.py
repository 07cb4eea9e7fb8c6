"""The report's section on whole spectra of real gradients."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from dprmt.report._page import Picture, Section, Table
from dprmt.spectra import bulk_edge

if TYPE_CHECKING:
    from dprmt.report.measurements import LayerSpectra


def spectra_section(spectra: list[list[LayerSpectra]]) -> Section:
    """Sorted singular values of layers along the depth, early, in the middle and late; one list per step."""
    everything = [entry for step in spectra for entry in step]
    prefix = _common_prefix([entry.layer for entry in everything])
    rows = [
        [
            entry.layer.removeprefix(prefix),
            str(entry.step),
            f"{entry.signal_over_threshold:.2f}",
            f"{_top(entry):.3f}",
            str(entry.above_edge),
        ]
        for entry in everything
    ]
    table = Table(
        "Layers along the depth of the model: the first, a middle one and the last of their kind"
        f"{f'; all names begin with {prefix}' if prefix else ''}.",
        ["layer", "step", "clean λ over threshold λ*", "noisy top value over bulk edge", "values above the edge"],
        rows,
    )
    return Section(
        title="Spectra of real gradients",
        sentences=[spectra_sentence(everything)],
        tables=[table],
        pictures=[_picture(step) for step in spectra],
        numbers={"private_spectra": [_numbers(entry) for entry in everything]},
    )


def _common_prefix(names: list[str]) -> str:
    # Whole parts of dotted names, the last part never among them.
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*(name.split(".")[:-1] for name in names), strict=False))
    return "".join(f"{parts[0]}." for parts in shared) if len(set(names)) > 1 else ""


def spectra_sentence(spectra: list[LayerSpectra]) -> str:
    """How many of them show a signal."""
    if not spectra:
        return "No matrix is denoised, so none is shown."
    detectable = [entry for entry in spectra if entry.signal_over_threshold > 1]
    seen = sum(entry.above_edge > 0 for entry in detectable)
    hidden = [entry for entry in spectra if entry.signal_over_threshold <= 1]
    leaks = sum(entry.above_edge > 0 for entry in hidden)
    return (
        f"Of the {len(spectra)} spectra shown, {len(detectable)} have a clean singular value above the detection"
        f" threshold, and {seen} of these a noisy one above the bulk edge. Of the other {len(hidden)}, whose signal is"
        f" too weak to be seen, {leaks} have one, which noise alone gives now and then."
    )


def _picture(spectra: list[LayerSpectra]) -> Picture:
    from dprmt.plots import plot_singular_values

    def draw(axes: Any) -> None:
        for entry, ax in zip(spectra, [axes] if len(spectra) == 1 else axes, strict=True):
            plot_singular_values(
                entry.noisy, entry.shape, entry.sigma, clean=entry.clean, denoised=entry.denoised, ax=ax
            )
            ax.set_title(f"{_short(entry.layer)}, step {entry.step}", fontsize="small")

    alt = (
        f"Sorted singular values at step {spectra[0].step} of {', '.join(entry.layer for entry in spectra)}: clean,"
        " noisy and denoised, with the bulk edge and the detection threshold."
    )
    return Picture(draw, alt, panels=len(spectra))


def _top(entry: LayerSpectra) -> float:
    return float(entry.noisy[0]) / bulk_edge(entry.shape, entry.sigma)


def _short(layer: str) -> str:
    # What tells a layer from others: adapters' names are long.
    return layer if len(layer) <= 48 else f"…{layer[-47:]}"


def _numbers(entry: LayerSpectra) -> dict[str, Any]:
    return {**vars(entry), "edge": bulk_edge(entry.shape, entry.sigma), "over_threshold": entry.signal_over_threshold}
