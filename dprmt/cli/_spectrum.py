"""The command ``spectrum``: the singular values of matrices in a file, against the noise in them."""

from __future__ import annotations

import argparse
import csv
import difflib
import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from dprmt import __version__
from dprmt._validation import ParameterError
from dprmt.cli._matrix_spectrum import (
    FALSE_ALARM,
    LARGEST_ENTRY,
    MatrixSpectrum,
    as_matrix,
    is_usable,
    matrix_spectrum,
    recorded_spectrum,
    why_not,
)
from dprmt.cli._options import (
    Commands,
    Option,
    UsageError,
    add_command_with,
    check_picture_name,
    name_of,
    read_options,
    real,
)
from dprmt.cli._records import of_record
from dprmt.cli._spectrum_noise import OPTIONS, NoiseLevel, read_noise
from dprmt.cli._spectrum_tables import csv_rows, details, overview, printable, verdict
from dprmt.cli._tensor_files import Reader, UnreadableFileError, open_tensors

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
_TITLE = 100  # characters of a name that fit on a picture
_EXAMPLES = """\
examples:
  dprmt spectrum gradients.safetensors --sigma 0.01
  dprmt spectrum gradients.safetensors --noise-multiplier 1 --clipping-norm 0.5 --batch-size 2000 --csv
  dprmt spectrum runs/first/model --sigma auto
  dprmt spectrum gradients.npz --sigma 0.01 --param layers.0.query --plot query.png
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    parser = add_command_with(commands, "spectrum", (*OPTIONS, _GATE, _FROM_JSON), run_spectrum, _EXAMPLES)
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        type=name_of("a file"),
        help="a .npy, .npz, .safetensors, .pt, .pth, .ckpt or .bin file of matrices, or the folder of a model",
    )
    parser.add_argument("--csv", action="store_true", help="one line a singular value, as csv")
    parser.add_argument("--param", metavar="NAME", help="one matrix only, value by value")
    parser.add_argument(
        "--plot", metavar="OUT", type=name_of("a file"), help="write a picture (png, pdf or svg) of one matrix"
    )


def run_spectrum(namespace: argparse.Namespace) -> None:
    """``dprmt spectrum``: one row per matrix of the file, or one row per singular value of a single matrix.

    Biases and other arrays that are no matrices of real floating-point numbers are skipped. Convolution kernels
    (out, in, …) are taken as matrices of shape (out, in·…), and the answer says of which. The noise level is asked
    for: in differentially private training it is known, and an estimate (``--sigma auto``) from a spectrum with much
    signal in it is too large (see ``dprmt.spectra.estimate_sigma``).

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
    try:
        if record is None:
            tensors = _chosen(open_tensors(Path(namespace.file)), namespace.file, namespace.param)
            spectra, skipped = _analysed(tensors, noise, alarm, namespace.file)
        else:
            spectra, skipped = _recorded(record, alarm, namespace)
    except UnreadableFileError as error:
        _refuse("FILE", error.allowed, namespace.file, error.reason)
    if not spectra:
        _refuse_all(namespace, skipped)
    widest = max(spectra, key=lambda spectrum: spectrum.top_over_edge)
    if namespace.plot is not None:
        _draw(namespace.plot, widest, len(spectra), alarm)
    if namespace.json:
        matrices = [spectrum.as_dict() for spectrum in spectra]
        asked = {"version": __version__, "sigma": noise.sigma, "false_alarm": alarm}
        document = {**asked, "matrices": matrices, "skipped": list(skipped)}
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    elif namespace.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_rows(spectra))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.write(details(spectra[0], width) if len(spectra) == 1 else overview(spectra, width))
        sys.stdout.writelines((verdict(spectra, estimated=noise.sigma is None), *_notes(spectra, skipped)))
        if namespace.plot is not None:
            sys.stdout.write(f"wrote {namespace.plot}: {printable(widest.name)}\n")


def _levels(namespace: argparse.Namespace, record: dict[str, Any] | None) -> tuple[NoiseLevel, float]:
    """The noise, and how often noise alone may be called: as asked for, or as a record says."""
    given = [option.dest for option in OPTIONS if getattr(namespace, option.dest) is not None]
    if record is None:
        if namespace.file is None:
            raise UsageError(f"{_COMMAND}: FILE must be given, or --from-json")
        return read_noise(namespace), read_options(namespace, (_GATE,))[_GATE.dest]
    for name in [*given, *(["file"] if namespace.file is not None else [])]:
        shown = "FILE" if name == "file" else "--" + name.replace("_", "-")
        _refuse(shown, "left out where --from-json is given", getattr(namespace, name))
    if namespace.false_alarm is None and "false_alarm" in record:
        namespace.false_alarm = repr(record["false_alarm"])
    return NoiseLevel(record.get("sigma")), read_options(namespace, (_GATE,))[_GATE.dest]


def _recorded(
    record: dict[str, Any], alarm: float, namespace: argparse.Namespace
) -> tuple[list[MatrixSpectrum], dict[str, str]]:
    try:
        found = {one["name"]: recorded_spectrum(one, alarm) for one in record["matrices"]}
        skipped = dict.fromkeys(record.get("skipped", ()), "was skipped before")
    except (ParameterError, KeyError, TypeError, AttributeError) as error:
        _refuse("--from-json", f"what --json of {_COMMAND} printed", namespace.from_json, str(error))
    if namespace.param is None:
        return list(found.values()), skipped
    if namespace.param not in found:
        _refuse("--param", f"one of {_some_names(dict.fromkeys(found), namespace.param)}", namespace.param)
    return [found[namespace.param]], {}


def _chosen(tensors: dict[str, Reader], file: str, param: str | None) -> dict[str, Reader]:
    if not tensors:
        _refuse("FILE", f"a file with {_MATRIX}", file, "it holds no arrays")
    if param is None:
        return tensors
    if param not in tensors:
        _refuse("--param", f"one of {_some_names(tensors, param)}", param)
    return {param: tensors[param]}


def _analysed(
    tensors: dict[str, Reader], noise: NoiseLevel, alarm: float, file: str
) -> tuple[list[MatrixSpectrum], dict[str, str]]:
    # The spectra of the matrices, and what keeps the other arrays from having one.
    spectra, skipped = [], {}
    for name, read in _with_progress(tensors.items(), len(tensors)):
        array = read()
        reason = why_not(array)
        if reason is not None:
            skipped[name] = reason
            continue
        if not is_usable(array):
            allowed = f"a file of finite matrices with entries up to {LARGEST_ENTRY:g}"
            _refuse("FILE", allowed, file, f"not so {name!r}")
        sigma = noise.of(as_matrix(array))
        if sigma > 0:
            spectra.append(matrix_spectrum(name, array, sigma, alarm))
        else:
            skipped[name] = "has an estimated noise level of 0"
    return spectra, skipped


def _with_progress(items: Iterable[Any], total: int) -> Iterable[Any]:
    # A bar on stderr, where a terminal is attached and there is more than one step.
    if total < 2 or not sys.stderr.isatty():
        return items
    try:
        from rich.console import Console
        from rich.progress import track
    except ModuleNotFoundError:
        return items

    return track(items, "spectra", total, console=Console(stderr=True), transient=True)


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
    _refuse("FILE", f"a file with {_MATRIX}", namespace.file, f"{name!r} {reason}{others}")


def _notes(spectra: list[MatrixSpectrum], skipped: dict[str, str]) -> Iterable[str]:
    reshaped = [spectrum.name for spectrum in spectra if spectrum.array_shape != spectrum.shape]
    if reshaped:
        yield f"taken as matrices, their first axis against all others: {_listed(reshaped)}\n"
    if skipped:
        yield f"skipped, no matrices of real floating-point numbers: {_listed(list(skipped))}\n"


def _listed(names: list[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_NAMES_LISTED])
    more = ", …" if len(names) > _NAMES_LISTED else ""
    return f"{len(names)} ({shown}{more})"


def _some_names(tensors: Mapping[str, object], wanted: str) -> str:
    # A few that are like the one that was asked for, if any are.
    like = [name for name in tensors if wanted in name] or difflib.get_close_matches(wanted, tensors)
    listed = (like or list(tensors))[:_NAMES_LISTED]
    more = f", … ({len(tensors)} in all)" if len(tensors) > len(listed) else ""
    return ", ".join(repr(name) for name in listed) + more


def _refuse(option: str, allowed: str, given: str, reason: str = "") -> NoReturn:
    why = f" ({reason})" if reason else ""
    raise UsageError(f"{_COMMAND}: {option} must be {allowed}, got {given!r}{why}") from None
