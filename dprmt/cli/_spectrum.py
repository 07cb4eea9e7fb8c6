"""The command ``spectrum``: the singular values of matrices in a file, against the noise in them."""

from __future__ import annotations

import argparse
import csv
import difflib
import html
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from dprmt import __version__
from dprmt._validation import ParameterError
from dprmt.cli._matrix_spectrum import FALSE_ALARM, MatrixSpectrum, named, recorded_spectrum
from dprmt.cli._options import (
    Commands,
    Option,
    UsageError,
    add_command_with,
    check_picture_name,
    count,
    name_of,
    read_options,
    real,
)
from dprmt.cli._runs import of_record
from dprmt.cli._spectrum_noise import OPTIONS, NoiseLevel, read_noise
from dprmt.cli._spectrum_tables import csv_rows, details, doubts, overview, printable, verdict
from dprmt.spectra import spectra_of
from dprmt.spectra._checkpoint import summary_row
from dprmt.spectra._tensor_files import UnreadableFileError, open_tensors

_COMMAND = "dprmt spectrum"
_MATRIX = "a matrix of real floating-point numbers"
_NAMES_LISTED = 3
_GATE = Option(
    "--false-alarm",
    real(low=1e-12, high=1 - 1e-6),
    f"chance that a matrix of noise alone is called, in [1e-12, 1 - 1e-6]; {FALSE_ALARM:g} by default",
    default=FALSE_ALARM,
    metavar="P",
)
_FROM_JSON = of_record(_COMMAND, "matrices")
_SORTED: dict[str, Callable[[MatrixSpectrum], float]] = {
    "energy": lambda spectrum: spectrum.energy_above_edge,
    "sigma": lambda spectrum: spectrum.fit.sigma,
    "spikes": lambda spectrum: len(spectrum.spikes),
    "stable-rank": lambda spectrum: spectrum.stable_rank,
    "top/edge": lambda spectrum: spectrum.top_over_edge,
}
_READ = {
    "kernel": "kernels, taken as matrices, their first axis against all others",
    "stack": "stacks, taken as one matrix for each place on their first axis",
    "product": "adapters, taken as the products B·A",
}
_TITLE = 100  # characters of a name that fit on a picture
_EXAMPLES = """\
examples:
  dprmt spectrum gradients.safetensors --sigma 0.01
  dprmt spectrum gradients.safetensors --noise-multiplier 1 --clipping-norm 0.5 --batch-size 2000 --csv
  dprmt spectrum runs/first/model --sigma auto
  dprmt spectrum gradients.npz --sigma 0.01 --param layers.0.query --plot query.png
  dprmt spectrum after.safetensors --minus before.safetensors --sigma auto --sort top/edge --top 10
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    parser = add_command_with(commands, "spectrum", (*OPTIONS, _GATE, _FROM_JSON), run_spectrum, _EXAMPLES)
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="*",
        type=name_of("a file"),
        help="a .npy, .npz, .safetensors, .pt, .pth, .ckpt or .bin file of matrices, an index of shards, or the folder"
        " of a model; several are analysed one after another",
    )
    parser.add_argument("--minus", metavar="BEFORE", type=name_of("a file"), help="a file that is subtracted by name")
    parser.add_argument("--sort", choices=sorted(_SORTED), help="order of the matrices, the largest first")
    parser.add_argument("--top", metavar="N", help="show the first N matrices only")
    parser.add_argument("--html", metavar="OUT", type=name_of("a file"), help="write the table of all matrices as HTML")
    parser.add_argument("--csv", action="store_true", help="one line a singular value, as csv")
    parser.add_argument(
        "--param", metavar="NAME", help="the matrices of this name, with * and ?; one is shown value by value"
    )
    parser.add_argument(
        "--plot", metavar="OUT", type=name_of("a file"), help="write a picture (png, pdf or svg) of one matrix"
    )


def run_spectrum(namespace: argparse.Namespace) -> None:
    """``dprmt spectrum``: one row per matrix of the file, or one row per singular value of a single matrix.

    Two axes are a matrix. Four or five, and three whose last is at most 7, are the kernel (out, in, …) of a
    convolution, read as out × in·…; three others are a stack of matrices, such as experts. ``lora_A`` and ``lora_B``
    are one matrix, their product. The answer says how each was read, and why an array has no spectrum. The noise level
    is asked for: in differentially private training it is known; ``--sigma auto`` estimates it. The estimate stands
    beside it in any case, with a test of whether white noise of the stated level explains the values below the gate.

    A singular value is called a spike if noise alone, at the given level, has its largest one that high with a chance
    of ``--false-alarm`` at most, 1 % by default. The answer says of how many matrices that is to be expected.

    The picture shows the matrix of ``--param``, or else that with the largest top singular value in units of its bulk
    edge; its title says which. With ``--json`` stdout is one object::

        {"version": "0.1.0", "sigma": 0.01, "false_alarm": 0.01,
         "matrices": [{"name": "query", "shape": [16, 768], "array_shape": [16, 768], "sigma": 0.01,
                       "bulk_edge": 0.317, "detection_threshold": 0.105, "gate": 0.322, "false_alarm": 0.01,
                       "singular_values": [0.495, …],
                       "spikes": [{"observed": 0.495, "signal": 0.42, "shrunk": 0.33,
                                   "left_overlap": 0.90, "right_overlap": 0.69}, …]}, …],
         "skipped": ["bias", …]}

    with the matrices in the order of the file, singular values in decreasing order, one spike per value above the gate,
    and the names of the arrays that are no matrices; the first "sigma" is null if each matrix has its own.
    "false_alarm" is the chance of noise to pass the gate: what was asked for, or less where the bulk edge itself is
    passed less often.
    """
    record = read_options(namespace, (_FROM_JSON,))[_FROM_JSON.dest]
    noise, alarm = _levels(namespace, record)
    if namespace.csv and namespace.json:
        raise UsageError(f"{_COMMAND}: --csv must be left out where --json is given")
    if namespace.plot is not None:
        check_picture_name(_COMMAND, namespace.plot)
    shown = None if namespace.top is None else count()("top", namespace.top)
    if record is None:
        spectra, skipped = _analysed(namespace, noise, alarm)
    else:
        spectra, skipped = _recorded(record, alarm, namespace)
    if not spectra:
        _refuse_all(namespace, skipped)
    if namespace.sort is not None:
        spectra.sort(key=_SORTED[namespace.sort], reverse=True)
    called, spectra = spectra, spectra[:shown]
    widest = max(spectra, key=lambda spectrum: spectrum.top_over_edge)
    if namespace.plot is not None:
        _draw(namespace.plot, widest, len(spectra), alarm)
    if namespace.html is not None:
        Path(namespace.html).write_text(_page(spectra, skipped), encoding="utf-8")
    if namespace.json:
        matrices = [spectrum.as_dict() for spectrum in spectra]
        asked = {"version": __version__, "sigma": noise.sigma, "false_alarm": alarm}
        document = {**asked, "matrices": matrices, "skipped": list(skipped), "reasons": skipped}
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    elif namespace.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_rows(spectra))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.write(details(spectra[0], width) if len(spectra) == 1 else overview(spectra, width))
        sys.stdout.writelines(
            (verdict(called, estimated=noise.sigma is None), *doubts(called), *_notes(spectra, skipped))
        )
        if namespace.plot is not None:
            sys.stdout.write(f"wrote {namespace.plot}: {printable(widest.name)}\n")


def _levels(namespace: argparse.Namespace, record: dict[str, Any] | None) -> tuple[NoiseLevel, float]:
    """The noise, and how often noise alone may be called: as asked for, or as a record says."""
    given = [option.dest for option in OPTIONS if getattr(namespace, option.dest) is not None]
    if record is None:
        if not namespace.file:
            raise UsageError(f"{_COMMAND}: FILE must be given, or --from-json")
        return read_noise(namespace), read_options(namespace, (_GATE,))[_GATE.dest]
    for name in [*given, *(["file"] if namespace.file else [])]:
        shown = "FILE" if name == "file" else "--" + name.replace("_", "-")
        _refuse(shown, "left out where --from-json is given", _given(getattr(namespace, name)))
    if namespace.false_alarm is None and "false_alarm" in record:
        namespace.false_alarm = repr(record["false_alarm"])
    return NoiseLevel(record.get("sigma")), read_options(namespace, (_GATE,))[_GATE.dest]


def _recorded(
    record: dict[str, Any], alarm: float, namespace: argparse.Namespace
) -> tuple[list[MatrixSpectrum], dict[str, str]]:
    try:
        found = {one["name"]: recorded_spectrum(one, alarm) for one in record["matrices"]}
        skipped = {name: str(reason) for name, reason in record["reasons"].items()}
    except (ParameterError, KeyError, TypeError, AttributeError) as error:
        _refuse("--from-json", f"what --json of {_COMMAND} printed", namespace.from_json, str(error))
    if namespace.param is None:
        return list(found.values()), skipped
    if namespace.param not in found:
        _refuse("--param", f"one of {_some_names(dict.fromkeys(found), namespace.param)}", namespace.param)
    return [found[namespace.param]], {}


def _given(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def _analysed(
    namespace: argparse.Namespace, noise: NoiseLevel, alarm: float
) -> tuple[list[MatrixSpectrum], dict[str, str]]:
    # The spectra of the matrices of all files, and what keeps the other arrays from having one.
    spectra: list[MatrixSpectrum] = []
    skipped: dict[str, str] = {}
    names: dict[str, None] = {}
    wanted = "*" if namespace.param is None else namespace.param
    for file in namespace.file:
        prefix = f"{Path(file).name}:" if len(namespace.file) > 1 else ""
        try:
            arrays = open_tensors(Path(file))
            before = None if namespace.minus is None else open_tensors(Path(namespace.minus))
            reading = None if before is None else {name: read() for name, read in before.items()}
            found = spectra_of(
                file, noise.sigma, minus=reading, param=wanted, false_alarm=alarm, progress=_with_progress
            )
        except UnreadableFileError as error:
            _refuse("FILE", error.allowed, file, error.reason)
        names |= dict.fromkeys(arrays)
        spectra += named(found, prefix)
        skipped |= {prefix + name: reason for name, reason in found.skipped.items()}
    if not names:
        _refuse("FILE", f"a file with {_MATRIX}", _given(namespace.file), "it holds no arrays")
    if namespace.param is not None and not spectra and not skipped:
        _refuse("--param", f"one of {_some_names(names, namespace.param)}", namespace.param)
    return spectra, skipped


def _page(spectra: list[MatrixSpectrum], skipped: dict[str, str]) -> str:
    rows = [summary_row(spectrum.name, spectrum) for spectrum in spectra]
    rows += [{"matrix": name, "verdict": reason} for name, reason in skipped.items()]
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    cells = ("".join(f"<td>{html.escape(_cell(row.get(name, '')))}</td>" for name in rows[0]) for row in rows)
    lines = "\n".join(f"<tr>{line}</tr>" for line in cells)
    style = "td,th{padding:2px 8px;text-align:right}body{font-family:sans-serif;color-scheme:light dark}"
    head = f"<!doctype html><meta charset=utf-8><title>Spectra</title><style>{style}</style>"
    return f"{head}<table><tr>{heads}</tr>\n{lines}</table>\n"


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value))


def _with_progress(items: list[str]) -> Iterable[str]:
    # A bar on stderr, where a terminal is attached and there is more than one step.
    if len(items) < 2 or not sys.stderr.isatty():
        return items
    try:
        from rich.console import Console
        from rich.progress import track
    except ModuleNotFoundError:
        return items

    return track(items, "spectra", len(items), console=Console(stderr=True), transient=True)


def _draw(place: str, spectrum: MatrixSpectrum, among: int, alarm: float) -> None:
    from dprmt.plots import plot_singular_values, plot_spectrum_histogram, save_picture

    values, shape, sigma = spectrum.singular_values, spectrum.shape, spectrum.sigma
    shrunk = [spike.shrunk for spike in spectrum.spikes] + [0.0] * (len(values) - len(spectrum.spikes))
    name = printable(spectrum.name)
    name = name if len(name) <= _TITLE else "…" + name[-_TITLE:]
    title = f"{name}, {shape[0]} × {shape[1]}, σ = {sigma:g}"
    if among > 1:
        title += f"\nthe largest ratio of top singular value to bulk edge among {among} matrices"

    def draw(axes: Any) -> None:
        plot_singular_values(values, shape, sigma, denoised=shrunk, false_alarm=alarm, ax=axes[0])
        plot_spectrum_histogram(values, shape, sigma, false_alarm=alarm, ax=axes[1])
        axes[0].figure.suptitle(title, fontsize="medium", parse_math=False)

    save_picture(place, draw, size=(11.0, 4.4), panels=(1, 2))


def _refuse_all(namespace: argparse.Namespace, skipped: dict[str, str]) -> NoReturn:
    name, reason = next(iter(skipped.items()))
    if namespace.param is not None:
        _refuse("--param", f"the name of {_MATRIX}", namespace.param, f"it {reason}")
    others = f", {len(skipped) - 1} more likewise" if len(skipped) > 1 else ""
    _refuse("FILE", f"a file with {_MATRIX}", _given(namespace.file), f"{name!r} {reason}{others}")


def _notes(spectra: list[MatrixSpectrum], skipped: dict[str, str]) -> Iterable[str]:
    for kind, words in _READ.items():
        names = [spectrum.name for spectrum in spectra if spectrum.kind == kind]
        if names:
            yield f"{words}: {_listed(names)}\n"
    for reason in dict.fromkeys(skipped.values()):
        yield f"skipped, {reason}: {_listed([name for name, why in skipped.items() if why == reason])}\n"


def _listed(names: list[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_NAMES_LISTED])
    more = ", …" if len(names) > _NAMES_LISTED else ""
    return f"{len(names)} ({shown}{more})"


def _some_names(tensors: dict[str, None], wanted: str) -> str:
    # A few that are like the one that was asked for, if any are.
    like = [name for name in tensors if wanted in name] or difflib.get_close_matches(wanted, tensors)
    listed = (like or list(tensors))[:_NAMES_LISTED]
    more = f", … ({len(tensors)} in all)" if len(tensors) > len(listed) else ""
    return ", ".join(repr(name) for name in listed) + more


def _refuse(option: str, allowed: str, given: str, reason: str = "") -> NoReturn:
    why = f" ({reason})" if reason else ""
    raise UsageError(f"{_COMMAND}: {option} must be {allowed}, got {given!r}{why}") from None
