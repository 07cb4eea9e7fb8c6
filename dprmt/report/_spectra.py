"""Report section on whole spectra of real gradients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from dprmt.report._page import Picture, Section, Table
from dprmt.report._words import matrices
from dprmt.spectra import bulk_edge

if TYPE_CHECKING:
    from dprmt.report.measurements import LayerSpectra, Spike

_NEAR = 0.5  # thresholds from which small matrices show something of a signal
_ADAPTER = ".default"  # peft's name of the only adapter, in the middle of names


def spectra_section(
    strongest: list[LayerSpectra],
    typical: list[LayerSpectra],
    alarms: list[LayerSpectra],
    spikes: list[Spike],
) -> Section:
    """Show sorted singular values: strongest signals of a run, layers along the depth, and the largest false alarm."""
    everything = [*strongest, *typical, *alarms]
    prefix = _common_prefix([entry.layer for entry in everything])
    rows = [
        [
            entry.layer.removeprefix(prefix).replace(_ADAPTER, ""),
            str(entry.step),
            f"{entry.signal_over_threshold:.2f}",
            f"{entry.top_over_edge:.3f}",
            entry.verdict,
            " / ".join(f"{value:.2f}" for value in entry.entropies),
        ]
        for entry in everything
    ]
    table = Table(
        "The layers with the strongest signals, each at its best step of the run, then some along the depth,"
        " then the largest false alarm, if there was one"
        f"{f'; all names begin with {prefix[:-1]}' if prefix else ''}.",
        [
            "layer",
            "step",
            "clean λ over threshold λ*",
            "noisy top value over bulk edge",
            "seen",
            "entropy of clean / noisy / denoised",
        ],
        rows,
    )
    return Section(
        title="Spectra of real gradients",
        sentences=[spectra_sentence(spikes), shown_sentence(strongest, alarms), entropy_sentence(everything)],
        tables=[table],
        pictures=[_picture(entries) for entries in (strongest, typical, alarms) if entries],
        numbers={"private_spectra": [_numbers(entry) for entry in everything]},
    )


def _common_prefix(names: list[str]) -> str:
    # Whole parts of dotted names, the last part never among them.
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*(name.split(".")[:-1] for name in names), strict=False))
    return "".join(f"{parts[0]}." for parts in shared) if len(set(names)) > 1 else ""


def spectra_sentence(spikes: list[Spike]) -> str:
    """Count the matrices of the run that show a signal in its noise, and those that only seem to."""
    own = [spike for spike in spikes if spike.noise_scale == 1]
    if not own:
        return "No matrix is measured, so none is shown."
    above = [spike for spike in own if spike.signal_over_threshold > 1]
    seen, alarms = (sum(s.called for s in group) for group in (above, [s for s in own if s not in above]))
    others = len(own) - len(above)
    expected = f"noise alone would give {0.01 * others:.2g}"
    if not above:
        return (
            f"Nothing to be seen at the noise of this run: no clean singular value of its {matrices(len(own))} (layer"
            f" and step) is above the detection threshold. Called all the same, at a false alarm rate of 1 %:"
            f" {alarms}; {expected}."
        )
    return (
        f"Of the {matrices(len(own))} of this run (layer and step), with a clean singular value above the detection"
        f" threshold: {len(above)}; called of these, at a false alarm rate of 1 %: {seen}. Of the other {others}, whose"
        f" signal is too weak to be seen, called by a false alarm: {alarms}; {expected}."
    )


def shown_sentence(strongest: Sequence[LayerSpectra], alarms: Sequence[LayerSpectra]) -> str:
    """Name the spectra shown that hold a signal above the threshold, and the largest false alarm."""
    above = [entry for entry in strongest if entry.signal_over_threshold > 1]
    shown = (
        f"Spectra shown whose clean top value is above the detection threshold: {len(above)}"
        if above
        else "No spectrum shown has a clean value above the detection threshold"
    )
    if not alarms:
        return f"{shown}. No matrix of this run was called by a false alarm, so none is shown."
    (alarm,) = alarms
    near = alarm.signal_over_threshold > _NEAR
    verdict = "so near it, a part of what is called may be signal" if near else "what looks like a signal is noise"
    return (
        f"{shown}. The largest false alarm is shown, too: {_short(alarm.layer)} at step {alarm.step} stands at"
        f" {alarm.top_over_edge:.3f} bulk edges, its clean top value at {_share(alarm.signal_over_threshold)} of the"
        f" threshold: {verdict}."
    )


def _share(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 or value == 0 else "less than 0.01"


def entropy_sentence(entries: Sequence[LayerSpectra]) -> str:
    """Describe the effect of noise and denoiser on the spectral entropy of the matrices shown."""
    if not entries:
        return "No spectral entropy is measured."
    clean, noisy, denoised = (sorted(values) for values in zip(*(entry.entropies for entry in entries), strict=True))
    return (
        "Spectral entropy, in nats, of the squared singular values as shares of their sum (a flat spectrum has the"
        f" logarithm of their number), over the {matrices(len(entries))} shown: clean {_range(clean)}, noisy"
        f" {_range(noisy)}, denoised {_range(denoised)}."
    )


def _range(ordered: Sequence[float]) -> str:
    return " to ".join("0" if abs(value) < 5e-7 else _share(value) for value in (ordered[0], ordered[-1]))


def _picture(spectra: list[LayerSpectra]) -> Picture:
    from dprmt.plots import plot_singular_values

    def draw(axes: Any) -> None:
        for entry, ax in zip(spectra, [axes] if len(spectra) == 1 else axes, strict=True):
            plot_singular_values(
                entry.noisy, entry.shape, entry.sigma, clean=entry.clean, denoised=entry.denoised, ax=ax
            )
            ax.set_title(f"{_short(entry.layer)}, step {entry.step}: {entry.verdict}", fontsize="small")

    alt = (
        f"Sorted singular values of {', '.join(f'{entry.layer} at step {entry.step}' for entry in spectra)}: clean,"
        " noisy and denoised, with the bulk edge, the gate and the detection threshold."
    )
    return Picture(draw, alt, panels=len(spectra))


def _short(layer: str) -> str:
    # What tells a layer from others: adapters' names are long. Whole parts, unless the last one is too long.
    if len(layer) <= 48:
        return layer
    end = layer[-47:]
    return f"…{end[end.find('.') + 1 :]}"


def _numbers(entry: LayerSpectra) -> dict[str, Any]:
    return {
        **vars(entry),
        "edge": bulk_edge(entry.shape, entry.sigma),
        "over_threshold": entry.signal_over_threshold,
        "entropies": entry.entropies,
        "seen": entry.verdict,
    }
