"""The command ``spectrum``: the singular values of matrices in a file, against the noise in them."""

from __future__ import annotations

import argparse
import csv
import difflib
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dprmt import __version__
from dprmt._validation import ParameterError
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
from dprmt.cli._spectrum_tables import details, doubts, overview, printable, value_rows, verdict
from dprmt.spectra import CheckpointSpectra, NoisySpectrum, noisy_spectrum_from_dict, spectra_of
from dprmt.spectra._checkpoint import SUBTRACTED
from dprmt.spectra._tensor_files import UnreadableFileError, open_tensors

_T = TypeVar("_T")
_COMMAND = "dprmt spectrum"
_MATRIX = "a matrix of real floating-point numbers"
_NAMES_LISTED = 3
_AUTO = "auto"
_LOW, _HIGH = 1e-100, 1e100
_number = real(low=_LOW, high=_HIGH)
_POSITIVE = real(low=0.0, low_open=True, high=1e12)
_PARTS = (
    Option("--noise-multiplier", real(low=1e-3, high=1e6), "σ_DP, in [1e-3, 1e6]", metavar="S"),
    Option("--clipping-norm", _POSITIVE, "C, > 0", metavar="C"),
    Option("--batch-size", _POSITIVE, "B, the expected batch size; then σ = σ_DP·C/B", metavar="B"),
)
_NOISE = (
    Option(
        "--sigma",
        lambda name, text: _AUTO if text == _AUTO else _number(name, text),
        "standard deviation of one entry of the noise, σ_DP·C/|B|, in [1e-100, 1e100]; not the noise multiplier; auto"
        " estimates it, matrix by matrix",
        metavar="SIGMA|auto",
    ),
    *_PARTS,
)
_GATE = Option(
    "--false-alarm",
    real(low=1e-12, high=1 - 1e-6),
    "chance that a matrix of noise alone is called, in [1e-12, 1 - 1e-6]; 0.01 by default",
    default=0.01,
    metavar="P",
)
_FROM_JSON = of_record(_COMMAND, "matrices")
_SORTED: dict[str, Callable[[NoisySpectrum], float]] = {
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
    parser = add_command_with(commands, "spectrum", (*_NOISE, _GATE, _FROM_JSON), run_spectrum, _EXAMPLES)
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="*",
        type=name_of("a file"),
        help="a .npy, .npz, .safetensors, .pt, .pth, .ckpt, .bin, .gguf, .h5 or .mat file of matrices, an index of"
        " shards, or the folder of a model; several are analysed one after another",
    )
    parser.add_argument("--minus", metavar="BEFORE", type=name_of("a file"), help="a file that is subtracted by name")
    parser.add_argument("--sort", choices=sorted(_SORTED), help="order of the matrices, the largest first")
    parser.add_argument("--top", metavar="N", help="show the first N matrices only")
    parser.add_argument("--html", metavar="OUT", type=name_of("a file"), help="write the table of all matrices as HTML")
    parser.add_argument("--csv", action="store_true", help="one line for each matrix, as csv")
    parser.add_argument("--csv-values", action="store_true", help="one line for each singular value, as csv")
    parser.add_argument(
        "--param", metavar="NAME", help="the matrices of this name, with * and ?; one is shown value by value"
    )
    parser.add_argument(
        "--plot", metavar="OUT", type=name_of("a file"), help="write a picture (png, pdf or svg) of one matrix"
    )
    parser.add_argument(
        "--plot-all", metavar="OUT", type=name_of("a file"), help="write a picture (png, pdf or svg) of all matrices"
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
    sigma, alarm = _levels(namespace, record)
    kinds = [f"--{name.replace('_', '-')}" for name in ("json", "csv", "csv_values") if getattr(namespace, name)]
    if len(kinds) > 1:
        raise UsageError(f"{_COMMAND}: {kinds[1]} must be left out where {kinds[0]} is given")
    for option in ("plot", "plot_all", "html"):
        if (place := getattr(namespace, option)) is not None:
            endings = {"endings": ()} if option == "html" else {}
            check_picture_name(_COMMAND, place, f"--{option.replace('_', '-')}", **endings)
    shown = None if namespace.top is None else count()("top", namespace.top)
    found = _analysed(namespace, sigma, alarm) if record is None else _recorded(record, alarm, namespace)
    if not found:
        _refuse_all(namespace, found.skipped)
    names = list(found)
    if namespace.sort is not None:
        names.sort(key=lambda name: _SORTED[namespace.sort](found[name]), reverse=True)
    every, found = found, replace(found, spectra={name: found[name] for name in names[:shown]})
    widest = max(found, key=lambda name: found[name].top_over_edge)
    if namespace.plot is not None:
        _draw(namespace.plot, widest, found[widest], len(found), alarm)
    if namespace.plot_all is not None:
        _draw_all(namespace.plot_all, found)
    if namespace.html is not None:
        Path(namespace.html).write_text(_page(found), encoding="utf-8")
    if namespace.json:
        about = {
            name: {"name": name, "kind": found.kinds[name], "array_shape": found.array_shapes[name]} for name in found
        }
        matrices = [about[name] | spectrum.as_dict() for name, spectrum in found.items()]
        asked = {"version": __version__, "sigma": sigma, "false_alarm": alarm}
        document = {**asked, "matrices": matrices, "skipped": list(found.skipped), "reasons": found.skipped}
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    elif namespace.csv:
        rows = found.rows()
        writer = csv.DictWriter(sys.stdout, list(rows[0]), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif namespace.csv_values:
        csv.writer(sys.stdout, lineterminator="\n").writerows(value_rows(found))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.write(details(widest, found[widest], width) if len(found) == 1 else overview(found, width))
        sys.stdout.writelines((verdict(every, estimated=sigma is None), *doubts(every), *_notes(found)))
        if namespace.plot is not None:
            sys.stdout.write(f"wrote {namespace.plot}: {printable(widest)}\n")


def _sigma_of(namespace: argparse.Namespace) -> float | None:
    # From --sigma, or from the three numbers that make it; None to estimate it.
    values = read_options(namespace, _NOISE)
    parts = [values[option.dest] for option in _PARTS]
    given = [option for option, value in zip(_PARTS, parts, strict=True) if value is not None]
    if values["sigma"] is not None:
        for option in given:
            raise ParameterError(option.dest, values[option.dest], "left out where --sigma is given")
        return None if values["sigma"] == _AUTO else float(values["sigma"])
    if not given:
        flags = ", ".join(option.flag for option in _PARTS)
        raise ParameterError("sigma", None, f"given, or {flags}: a number in [{_LOW:g}, {_HIGH:g}] or auto")
    for option, value in zip(_PARTS, parts, strict=True):
        if value is None:
            raise ParameterError(option.dest, None, f"given where {given[0].flag} is")
    noise_multiplier, clipping_norm, batch_size = parts
    return float(_number("sigma", repr(noise_multiplier * clipping_norm / batch_size)))


def _levels(namespace: argparse.Namespace, record: dict[str, Any] | None) -> tuple[float | None, float]:
    # The noise, and how often noise alone may be called: as asked for, or as a record says.
    given = [option.dest for option in _NOISE if getattr(namespace, option.dest) is not None]
    if record is None:
        if not namespace.file:
            raise UsageError(f"{_COMMAND}: FILE must be given, or --from-json")
        return _sigma_of(namespace), read_options(namespace, (_GATE,))[_GATE.dest]
    for name in [*given, *(["file"] if namespace.file else [])]:
        shown = "FILE" if name == "file" else "--" + name.replace("_", "-")
        _refuse(shown, "left out where --from-json is given", _given(getattr(namespace, name)))
    if namespace.false_alarm is None and "false_alarm" in record:
        namespace.false_alarm = repr(record["false_alarm"])
    return record.get("sigma"), read_options(namespace, (_GATE,))[_GATE.dest]


def _recorded(record: dict[str, Any], alarm: float, namespace: argparse.Namespace) -> CheckpointSpectra:
    found = CheckpointSpectra()
    try:
        for one in record["matrices"]:
            name = str(one["name"])
            found.spectra[name] = noisy_spectrum_from_dict(one, false_alarm=alarm)
            found.kinds[name] = str(one.get("kind", "matrix"))
            found.array_shapes[name] = tuple(one["array_shape"])
        found.skipped.update({name: str(reason) for name, reason in record["reasons"].items()})
    except (ParameterError, KeyError, TypeError, AttributeError) as error:
        _refuse("--from-json", f"what --json of {_COMMAND} printed", namespace.from_json, str(error))
    if namespace.param is None:
        return found
    if namespace.param not in found:
        _refuse("--param", f"one of {_some_names(list(found), namespace.param)}", namespace.param)
    return replace(found, spectra={namespace.param: found[namespace.param]}, skipped={})


def _given(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def _analysed(namespace: argparse.Namespace, sigma: float | None, alarm: float) -> CheckpointSpectra:
    # The spectra of the matrices of all files, and what keeps the other arrays from having one.
    every = CheckpointSpectra()
    wanted = "*" if namespace.param is None else namespace.param
    if namespace.minus is not None:
        _reading("--minus", namespace.minus, lambda: open_tensors(Path(namespace.minus)))
    for file in namespace.file:
        prefix = f"{Path(file).name}:" if len(namespace.file) > 1 else ""
        options = {"minus": namespace.minus, "param": wanted, "false_alarm": alarm, "progress": _with_progress}
        found = _reading("FILE", file, partial(spectra_of, file, sigma, **options))
        for part in ("spectra", "kinds", "array_shapes", "skipped"):
            getattr(every, part).update({prefix + name: value for name, value in getattr(found, part).items()})
    if not every and not every.skipped:
        names = [name for file in namespace.file for name in open_tensors(Path(file))]
        if not names:
            _refuse("FILE", f"a file with {_MATRIX}", _given(namespace.file), "it holds no arrays")
        _refuse("--param", f"one of {_some_names(names, wanted)}", wanted)
    return every


def _reading(option: str, file: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except UnreadableFileError as error:
        _refuse(option, error.allowed, file, error.reason)


def _page(found: CheckpointSpectra) -> str:
    style = "body{font-family:sans-serif;color-scheme:light dark}"
    head = f"<!doctype html><meta charset=utf-8><title>Spectra</title><style>{style}</style>"
    return f"{head}{found._repr_html_()}\n"


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


def _draw(place: str, name: str, spectrum: NoisySpectrum, among: int, alarm: float) -> None:
    from dprmt.plots import plot_singular_values, plot_spectrum_histogram, save_picture

    values, shape, sigma = spectrum.singular_values, spectrum.shape, spectrum.sigma
    shrunk = [spike.shrunk for spike in spectrum.spikes] + [0.0] * (len(values) - len(spectrum.spikes))
    name = printable(name)
    title = name if len(name) <= _TITLE else "…" + name[-_TITLE:]
    if among > 1:
        title += f"\nthe largest ratio of top singular value to bulk edge among {among} matrices"

    def draw(axes: Any) -> None:
        plot_singular_values(values, shape, sigma, denoised=shrunk, false_alarm=alarm, ax=axes[0])
        plot_spectrum_histogram(values, shape, sigma, false_alarm=alarm, ax=axes[1])
        axes[0].figure.suptitle(title, fontsize="medium", parse_math=False)

    save_picture(place, draw, size=(11.0, 4.4), panels=(1, 2))


def _draw_all(place: str, found: CheckpointSpectra) -> None:
    from dprmt.plots import save_picture

    printed = {printable(name): spectrum for name, spectrum in found.items()}
    height = min(2.0 + 0.2 * len(found), 40.0)
    save_picture(place, lambda ax: replace(found, spectra=printed).plot(ax), size=(8.0, height))


def _refuse_all(namespace: argparse.Namespace, skipped: dict[str, str]) -> NoReturn:
    name, reason = next(iter(skipped.items()))
    if namespace.param is not None:
        _refuse("--param", f"the name of {_MATRIX}", namespace.param, f"it {reason}")
    others = f", {len(skipped) - 1} more likewise" if len(skipped) > 1 else ""
    if namespace.minus is not None and all(why.endswith(SUBTRACTED) for why in skipped.values()):
        _refuse("--minus", "a file with matrices of FILE", namespace.minus, f"{name!r} {reason}{others}")
    _refuse("FILE", f"a file with {_MATRIX}", _given(namespace.file), f"{name!r} {reason}{others}")


def _notes(found: CheckpointSpectra) -> Iterable[str]:
    skipped = found.skipped
    for kind, words in _READ.items():
        names = [name for name in found if found.kinds[name] == kind]
        if names:
            yield f"{words}: {_listed(names)}\n"
    for reason in dict.fromkeys(skipped.values()):
        yield f"skipped, {reason}: {_listed([name for name, why in skipped.items() if why == reason])}\n"


def _listed(names: list[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_NAMES_LISTED])
    more = ", …" if len(names) > _NAMES_LISTED else ""
    return f"{len(names)} ({shown}{more})"


def _some_names(tensors: list[str], wanted: str) -> str:
    # A few that are like the one that was asked for, if any are.
    like = [name for name in tensors if wanted in name] or difflib.get_close_matches(wanted, tensors)
    listed = (like or tensors)[:_NAMES_LISTED]
    more = f", … ({len(tensors)} in all)" if len(tensors) > len(listed) else ""
    return ", ".join(repr(name) for name in listed) + more


def _refuse(option: str, allowed: str, given: str, reason: str = "") -> NoReturn:
    why = f" ({reason})" if reason else ""
    raise UsageError(f"{_COMMAND}: {option} must be {allowed}, got {given!r}{why}") from None
