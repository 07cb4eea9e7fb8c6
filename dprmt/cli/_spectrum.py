"""The command ``spectrum``: the singular values of matrices in a file, against the noise in them."""

from __future__ import annotations

import argparse
import csv
import difflib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dprmt import __version__
from dprmt._validation import ParameterError
from dprmt.cli._options import Commands, UsageError, add_parser, count, leave_out, name_of, picture, real, writable
from dprmt.cli._terminal import text_table
from dprmt.plots import _style, plot_singular_values
from dprmt.spectra import CheckpointSpectra, NoisySpectrum, spectra_of
from dprmt.spectra._checkpoint import summary
from dprmt.spectra._tensor_files import UnreadableFileError, open_tensors

Spectra = Mapping[str, NoisySpectrum]
_SHOWN = 3  # names of a list, and predicted clean values in a row of the overview
_PARTS = ("noise_multiplier", "clipping_norm", "batch_size")
_SORTED = {"energy": "energy_above_edge", "sigma": "estimated_sigma", "spikes": "spikes", "stable-rank": "stable_rank"}
_SORTED["top/edge"] = "top_over_edge"
"""What ``--sort`` takes, and the column of :meth:`CheckpointSpectra.rows` that it stands for."""
_READ = {
    "kernel": "kernels, taken as matrices, their first axis against all others",
    "stack": "stacks, taken as one matrix for each place on their first axis",
    "product": "adapters, taken as the products B·A",
}
_EXAMPLES = (
    "gradients.safetensors --sigma 0.01",
    "gradients.safetensors --noise-multiplier 1 --clipping-norm 0.5 --batch-size 2000 --csv",
    "gradients.npz --sigma 0.01 --param layers.0.query --plot query.png",
    "after.safetensors --minus before.safetensors --sigma auto --sort top/edge --top 10",
)
_SPIKE_COLUMNS = ("signal", "shrunk", "left_overlap", "right_overlap")
_VALUE_COLUMNS = ("singular_value", "over_edge", *_SPIKE_COLUMNS)
_OVERVIEW = {
    "shape": ("{shape}", ""),
    "σ": ("{sigma:.4g}", ""),
    "σ̂": ("{estimated_sigma:.3g}", "the noise level estimated from the matrix"),
    "top/edge": (
        "{top_over_edge:.3f}",
        "the largest singular value over the bulk edge, which that of noise alone is near",
    ),
    "spikes": ("{spikes}", "values above the gate, which noise alone exceeds in {rate} of such matrices"),
    "clean": ("{clean}", "predicted clean values of the top spikes"),
    "ranks": ("{stable_rank:.1f} {effective_rank:.1f}", "stable rank, effective rank"),
    "energy": ("{energy:.3g} %", "share of the squared norm in values above the edge"),
    "visible": ("{visible:.4g}", "the smallest clean value that is called in 95 % of draws"),
    "fit D": ("{fit_distance:.2g}", "distance of the other values from the law of noise"),
    "p": ("{fit_p_value:.2g}", "how often noise has a larger one"),
    "matrix": ("{matrix}", ""),
}
"""Columns of the overview: the cell, from what :func:`summary` returns, and what the legend says."""


def _level(text: str) -> float | str:
    return text if text == "auto" else real(low=1e-100, high=1e100)(text)


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    parser = add_parser(commands, "spectrum", run_spectrum, _EXAMPLES, usage="FILE ... [options]")
    add, file, positive = parser.add_argument, name_of("a file"), real(low=0.0, low_open=True, high=1e12)
    files = (
        "a .npy, .npz, .safetensors, .pt, .pth, .ckpt, .bin, .gguf, .h5 or .mat file of matrices, an index of shards,"
        " or the folder of a model; several are analysed one after another"
    )
    sigma = (
        "standard deviation of one entry of the noise, σ_DP·C/|B|, in [1e-100, 1e100]; not the noise multiplier; auto"
        " estimates it, matrix by matrix"
    )
    alarm = "chance that a matrix of noise alone is called, in [1e-12, 1 - 1e-6]; 0.01 by default"
    name = "the matrices of this name, with * and ?; one is shown value by value"
    draw = "write a picture (png, pdf or svg) of"
    add("file", metavar="FILE", nargs="+", type=file, help=files)
    add("--sigma", metavar="SIGMA|auto", type=_level, help=sigma)
    add("--noise-multiplier", metavar="S", type=real(low=1e-3, high=1e6), help="σ_DP, in [1e-3, 1e6]")
    add("--clipping-norm", metavar="C", type=positive, help="C, > 0")
    add("--batch-size", metavar="B", type=positive, help="B, the expected batch size; then σ = σ_DP·C/B")
    add("--false-alarm", metavar="P", type=real(low=1e-12, high=1 - 1e-6), default=0.01, help=alarm)
    add("--minus", metavar="BEFORE", type=file, help="a file that is subtracted by name")
    add("--sort", choices=sorted(_SORTED), help="order of the matrices, the largest first")
    add("--top", metavar="N", type=count(), help="show the first N matrices only")
    add("--html", metavar="OUT", type=writable(), help="write the table of all matrices as HTML")
    add("--csv", action="store_true", help="one line for each matrix, as csv")
    add("--csv-values", action="store_true", help="one line for each singular value, as csv")
    add("--param", metavar="NAME", help=name)
    add("--plot", metavar="OUT", type=picture, help=f"{draw} one matrix")
    add("--plot-all", metavar="OUT", type=picture, help=f"{draw} all matrices")


def run_spectrum(namespace: argparse.Namespace) -> None:
    """Print the spectrum of every matrix of a checkpoint, or the singular values of one matrix.

    Arrays are read as `dprmt.spectra.spectra_of` describes. The output names how each array was read, and why an array
    has no spectrum. The noise level must be given: in differentially private training it is known, and ``--sigma auto``
    estimates it. The estimate is printed in any case, with a test of whether white noise of the given level explains
    the values below the gate.

    A singular value is a spike if noise alone has a larger one with probability at most ``--false-alarm``, 1 % by
    default. The output has the number of matrices in which noise alone is expected to have a spike.

    The plot shows the matrix of ``--param``, or the matrix whose top singular value is largest relative to its bulk
    edge. With ``--json`` the output is one object. Its matrices are in the order of the file, with singular values in
    decreasing order and one spike for each value above the gate. Arrays without a spectrum are listed with the reason.
    ``sigma`` is null if each matrix has its own level. ``false_alarm`` of a matrix is the probability that noise passes
    its gate.
    """
    kinds = [name for name in ("json", "csv", "csv_values") if getattr(namespace, name)]
    if len(kinds) > 1:
        raise ParameterError(kinds[1], None, f"left out where --{kinds[0]} is given")
    sigma = _sigma_of(namespace)
    found = every = _analysed(namespace, sigma)
    names = list(found)
    if namespace.sort is not None:
        names.sort(key=lambda name: summary(every[name])[_SORTED[namespace.sort]], reverse=True)
    found = replace(every, spectra={name: every[name] for name in names[: namespace.top]})
    widest = max(found, key=lambda name: found[name].top_over_edge)
    if namespace.plot is not None:
        _draw(namespace, widest, found)
    if namespace.plot_all is not None:
        printed = replace(found, spectra={printable(name): spectrum for name, spectrum in found.items()})
        _style.save_picture(namespace.plot_all, printed.plot, size=(8.0, min(2.0 + 0.2 * len(found), 40.0)))
    if namespace.html is not None:
        style = "body{font-family:sans-serif;color-scheme:light dark}"
        head = f"<!doctype html><meta charset=utf-8><title>Spectra</title><style>{style}</style>"
        Path(namespace.html).write_text(f"{head}{found._repr_html_()}\n", encoding="utf-8")
    if namespace.json:
        about = ((name, {"kind": found.kinds[name], "array_shape": found.array_shapes[name]}) for name in found)
        matrices = [{"name": name} | how | found[name].as_dict() for name, how in about]
        asked = {"version": __version__, "sigma": sigma, "false_alarm": namespace.false_alarm}
        document = {**asked, "matrices": matrices, "skipped": list(found.skipped), "reasons": found.skipped}
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    elif namespace.csv:
        rows = found.rows()
        writer = csv.DictWriter(sys.stdout, list(rows[0]), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif namespace.csv_values:
        of_matrices = ((name, *one.shape, one.sigma, *row) for name, one in found.items() for row in _value_rows(one))
        columns = ("matrix", "rows", "columns", "sigma", "index", *_VALUE_COLUMNS)
        csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *of_matrices])
    else:
        sys.stdout.write(_overview(found) + (_details(found[widest]) if len(found) == 1 else ""))
        sys.stdout.writelines((_verdict(every, estimated=sigma is None), *_doubts(every), *_notes(found)))
        if namespace.plot is not None:
            sys.stdout.write(f"wrote {namespace.plot}: {printable(widest)}\n")


def _sigma_of(namespace: argparse.Namespace) -> float | None:
    # From --sigma, or from the three numbers that make it; None to estimate it.
    parts, found = {name: getattr(namespace, name) for name in _PARTS}, namespace.sigma
    given = [name for name in _PARTS if parts[name] is not None]
    if found is not None:
        leave_out(parts, _PARTS, "--sigma is given")
    elif namespace.minus is not None:
        leave_out(parts, _PARTS, "--minus is: give --sigma learning rate·σ·C·√steps/L, for steps of SGD")
    if given:
        leave_out(parts, (), f"{namespace.shown(given[0])} is", _PARTS)
        noise, norm, size = parts.values()
        found = namespace.parser.read("sigma", _level, repr(noise * norm / size))
    if found is None:
        raise ParameterError("sigma", None, f"given, a number or auto; or {', '.join(map(namespace.shown, _PARTS))}")
    return None if found == "auto" else float(found)


def _analysed(namespace: argparse.Namespace, sigma: float | None) -> CheckpointSpectra:
    # The spectra of the matrices of all files, at least one, and what keeps the other arrays from having one.
    every = CheckpointSpectra()
    asked = {"minus": namespace.minus, "param": namespace.param or "*", "false_alarm": namespace.false_alarm}
    try:
        for file in namespace.file:
            prefix = f"{Path(file).name}:" if len(namespace.file) > 1 else ""
            found = spectra_of(file, sigma, progress=_with_progress, **asked)
            for part in ("spectra", "kinds", "array_shapes", "skipped"):
                getattr(every, part).update({prefix + name: value for name, value in getattr(found, part).items()})
        if not every:
            raise _without_matrices(namespace, every.skipped)
    except UnreadableFileError as error:
        raise UsageError(str(error)) from None
    return every


def _without_matrices(namespace: argparse.Namespace, skipped: Mapping[str, str]) -> ParameterError:
    file, wanted, why = namespace.file[0], namespace.param, [f"{name!r} {skipped[name]}" for name in skipped]
    names = [] if why else [name for file in namespace.file for name in open_tensors(Path(file))]
    if not names:
        more = f", {len(why) - 1} more likewise" if len(why) > 1 else ""
        got = f"{wanted or file!r} ({why[0] if why else 'it holds no arrays'}{more})"
        return ParameterError("param" if wanted else "file", got, "of a matrix of real floating-point numbers")
    # Of a name that is not there, a few that are like it, if any are.
    like = [name for name in names if wanted in name] or difflib.get_close_matches(wanted, names) or names
    more = f", … ({len(names)} in all)" if len(names) > len(like[:_SHOWN]) else ""
    return ParameterError("param", repr(wanted), f"one of {', '.join(map(repr, like[:_SHOWN]))}{more}")


def _with_progress(names: list[str]) -> Iterator[str]:
    # Counted on stderr where a terminal is attached.
    for number, name in enumerate(names, 1):
        if len(names) > 1 and sys.stderr.isatty():
            sys.stderr.write(f"\rspectra: {number} of {len(names)}{'' if number < len(names) else chr(10)}")
        yield name


def _draw(namespace: argparse.Namespace, name: str, found: Spectra) -> None:
    spectrum, alarm, title = found[name], namespace.false_alarm, printable(name)[-100:]
    values, sigma = spectrum.singular_values, spectrum.sigma
    shrunk = [spike.shrunk for spike in spectrum.spikes] + [0.0] * (len(values) - len(spectrum.spikes))
    if len(found) > 1:
        title += f"\nthe largest ratio of top singular value to bulk edge among {len(found)} matrices"

    def draw(axes: Any) -> None:
        plot_singular_values(values, spectrum.shape, sigma, denoised=shrunk, false_alarm=alarm, ax=axes[0])
        if sigma > 0:
            spectrum.plot(axes[1], false_alarm=alarm)
        else:
            axes[1].remove()
        axes[0].figure.suptitle(title, fontsize="medium", parse_math=False)

    _style.save_picture(namespace.plot, draw, size=(11.0, 4.4), panels=(1, 2))


def _notes(found: CheckpointSpectra) -> Iterator[str]:
    for kind, words in _READ.items():
        names = [name for name in found if found.kinds[name] == kind]
        if names:
            yield f"{words}: {_listed(names)}\n"
    for reason in dict.fromkeys(found.skipped.values()):
        yield f"skipped, {reason}: {_listed([name for name, why in found.skipped.items() if why == reason])}\n"


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(printable, names[:_SHOWN]))
    return f"{len(names)} ({shown}{', …' * (len(names) > _SHOWN)})"


def printable(name: str) -> str:
    r"""The name with a replacement for every character that could upset a terminal or a picture.

    Examples
    --------
    >>> printable("layer.0\x1b[2J")
    'layer.0�[2J'
    """
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name)


def _overview(found: Spectra) -> str:
    """One line per matrix."""
    levels = sorted({spectrum.sigma for spectrum in found.values()})
    columns = {heading: column for heading, column in _OVERVIEW.items() if heading != "σ" or len(levels) > 1}
    rows = []
    for name, spectrum in found.items():
        clean = [f"{spike.signal:.4g}" for spike in spectrum.spikes[:_SHOWN]]
        values = summary(spectrum) | {
            "clean": " ".join(clean + ["…"] * (len(spectrum.spikes) > _SHOWN)),
            "energy": 100 * spectrum.energy_above_edge,
            "matrix": printable(name),
        }
        rows.append([cell.format(**values) for cell, _ in columns.values()])
    legend = ";\n".join(f"{heading}: {meaning}" for heading, (_, meaning) in columns.items() if meaning)
    level = f"σ = {levels[0]:g}"
    if len(levels) > 1:
        level = f"σ, estimated for each matrix, {levels[0]:.4g} to {levels[-1]:.4g},"
    return (
        f"Singular values in noise of standard deviation {level} per entry\n\n"
        f"{text_table(list(columns), rows)}\n{legend.format(rate=_rate(found))}\n\n"
    )


def _verdict(found: Spectra, *, estimated: bool) -> str:
    """How many matrices are called, and how many noise alone would have had called."""
    called = sum(bool(spectrum.spikes) for spectrum in found.values())
    expected = sum(spectrum.false_alarm for spectrum in found.values())
    caution = ", were σ known: an estimate has another rate" if estimated else ""
    nothing = "" if called else " Nothing here can be told from noise."
    return (
        f"matrices with a value above the gate: {called} of {len(found)}; noise alone would give {expected:.2g} on"
        f" average (false alarm rate {_rate(found)}){caution}.{nothing}\n"
    )


def _doubts(found: Spectra) -> Iterator[str]:
    """What speaks against the stated noise, one line for each kind of verdict."""
    by_verdict: dict[str, list[str]] = {}
    for name, spectrum in found.items():
        if not spectrum.fit.fits:
            by_verdict.setdefault(spectrum.fit.verdict.partition(", σ is")[0], []).append(name)
    for said, names in by_verdict.items():
        more = f" and {len(names) - 1} more: {said}" if len(names) > 1 else f": {found[names[0]].fit.verdict}"
        yield f"noise of {printable(names[0])}{more}\n"


def _rate(found: Spectra) -> str:
    rates = sorted({round(100 * spectrum.false_alarm, 4) for spectrum in found.values()})
    return f"{rates[0]:.3g} %" if len(rates) == 1 else f"{rates[0]:.3g} to {rates[-1]:.3g} %"


def _value_rows(spectrum: NoisySpectrum) -> Iterator[list[Any]]:
    """A row for every singular value; what is known of spikes only is empty for the others."""
    edge = spectrum.bulk_edge
    for place, value in enumerate(spectrum.singular_values.tolist()):
        spike = spectrum.spikes[place] if place < len(spectrum.spikes) else None
        known = ["" if spike is None else getattr(spike, column) for column in _SPIKE_COLUMNS]
        yield [place + 1, value, value / edge if edge > 0 else math.inf, *known]


def _details(spectrum: NoisySpectrum) -> str:
    """One line per singular value of one matrix: its spikes, and the first and the last of the others."""
    spikes, rows = len(spectrum.spikes), list(_value_rows(spectrum))
    shown = sorted({*range(min(spikes, 30)), *range(spikes, min(spikes + 5, len(rows))), len(rows) - 1})
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in rows[place]] for place in shown]
    return (
        f"bulk edge {spectrum.bulk_edge:.4g}, gate {spectrum.gate:.4g}, detection threshold"
        f" {spectrum.detection_threshold:.4g}\n\n{text_table(['', *_VALUE_COLUMNS], cells)}\n"
        "signal: the clean value that causes the spike;\n"
        "overlap: predicted squared overlap of the singular vector with the clean one\n\n"
    )
