"""The report from first to last: measure, compute, write."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Any

from dprmt import __version__
from dprmt._files import parse_json, strict_json, write_whole
from dprmt._rounding import round_up
from dprmt._validation import ParameterError, check_count, require
from dprmt.accounting import neighbours_from_dict
from dprmt.report._page import Section, render_page
from dprmt.report._privacy import Run, privacy_curves, privacy_rows, privacy_section
from dprmt.report._telemetry import telemetry_sections
from dprmt.report._words import counted
from dprmt.statements._sentences import relation_label

_WARNING = (
    "This report reads clean gradients and uses known seeds. On a recipe's public data that is how theory is checked;"
    " on private data nothing of it may be shown to anyone: no ε covers these numbers."
)

_PICTURES = ("matplotlib", "jinja2")  # packages for every page


@dataclass(frozen=True)
class Report:
    """The sections of a report.

    Attributes
    ----------
    page, numbers : Path
        The page, and the numbers it shows, as files.
    sections : list of Section
        In the order of the page.
    """

    page: Path
    numbers: Path
    sections: list[Section]


def write_report(
    out: str | Path,
    recipe: str | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seeds: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Measure the theory on a recipe's first steps, compute the price of randomized clipping, and write one page.

    Parameters
    ----------
    out : str or Path
        Folder for ``index.html`` and ``numbers.json``, created if missing.
    recipe : str, optional
        A recipe whose first steps are run, by name or as a ``.toml`` file; the report's default if None.
    changes : mapping, optional
        Changed values of the recipe, by dotted name.
    steps : int, optional
        Number of steps, >= 1 and at most the recipe's; ten by default.
    seeds : int
        Number of runs, >= 1, each with independent noise and batches. Several runs give bands for the Improvement.
    say : callable, optional
        Gets a line about what is done next.

    Returns
    -------
    Report
        The written files, and their folder.

    Raises
    ------
    ParameterError
        If the folder cannot be written, a count is out of range, or the recipe cannot be used.
    ModuleNotFoundError
        If a package of the extra ``demo`` is missing.
    OSError
        If a file could not be written; existing files are not changed.

    Formal guarantees
    -----------------
    None: the page shows clean gradients and uses known seeds. On private data no ε covers it, and the page states
    this. Every stated ε is an upper bound (:class:`dprmt.accounting.DPSGD`).

    Examples
    --------
    >>> report = write_report("report", "minilm-docstrings")  # doctest: +SKIP
    >>> print(report.sections[0].sentences[0])  # doctest: +SKIP
    """
    require("demo", *_PICTURES, "torch", "opacus", "transformers", "peft", "datasets")
    from dprmt.report._validation import measured_sections, report_experiment

    check_count("seeds", seeds)
    if steps is not None:
        check_count("steps", steps)
    if Path(out).exists():  # a new folder is made once the recipe is known to be fine
        _writable_folder(Path(out))
    experiment = report_experiment(recipe, changes or {}, say)
    folder, run = _writable_folder(Path(out)), Run()
    introduction, sections, numbers = measured_sections(experiment, steps, seeds, say)
    rows = privacy_rows(run, say)
    sections.append(privacy_section(run, rows, privacy_curves(run, say)))
    say("drawing")
    title = "Noise in private training: theory against measurement"
    page = render_page(title, introduction, sections, warning=_WARNING)
    return _written(folder, page, sections, numbers)


def write_run_report(out: str | Path, run: str | Path) -> Report:
    """Write a run's telemetry as one page: whether it learns, and which layers are noise.

    Parameters
    ----------
    out : str or Path
        Folder for ``index.html`` and ``numbers.json``, created if missing.
    run : str or Path
        Folder of a running or finished run.

    Returns
    -------
    Report
        The written files, and their folder.

    Raises
    ------
    ParameterError
        If there is no full reading of telemetry in the folder's ``metrics.jsonl``, or ``out`` cannot be written.
    OSError
        If a file could not be written.

    Formal guarantees
    -----------------
    Post-processing of what the run released: its ε covers the page. The ``private`` entries of the metrics are not
    read.

    Examples
    --------
    >>> report = write_run_report("page", "runs/sst2")  # doctest: +SKIP
    >>> print(report.sections[0].sentences[0])  # doctest: +SKIP
    """
    require("demo", *_PICTURES)
    lines = _metrics(Path(run))
    folder = _writable_folder(Path(out))
    sections = telemetry_sections(lines)
    last = lines[-1]
    said = f"{counted(len(lines), 'step')} read, the last of them number {last['step']}"
    spent, relation = last.get("epsilon"), _relation(Path(run))
    if isinstance(spent, float) and relation is not None:
        said += f"; ε ≤ {round_up(spent)} after it ({relation})"
    free = (
        "Every number here is a function of what the run released, its noisy gradients and weights: it costs no"
        " privacy, and may be shown to everyone who may see the model."
    )
    page = render_page("What a private run says of itself", [f"{said}.", free], sections)
    return _written(folder, page, sections, {})


def _written(folder: Path, page: str, sections: list[Section], numbers: Mapping[str, Any]) -> Report:
    shown = {section.title: {"sentences": list(section.sentences), **section.numbers} for section in sections}
    document = {"version": __version__, **numbers, "sections": shown}
    text = strict_json(document, default=methodcaller("tolist"))  # of arrays
    write_whole(folder / "numbers.json", text + "\n", public=True)
    write_whole(folder / "index.html", page, public=True)
    return Report(folder / "index.html", folder / "numbers.json", sections)


def _writable_folder(out: Path) -> Path:
    """Return the folder, made if it is missing."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        reason = (error.strerror or "not usable").lower()
        raise ParameterError("out", str(out), f"a folder that can be written ({reason})") from None
    return out


def _relation(run: Path) -> str | None:
    """Return the neighbouring relation of the run's record; None if it has none, and then no ε is printed."""
    try:
        record = parse_json((run / "run.json").read_bytes())
        return relation_label(neighbours_from_dict(record["step"]["neighbours"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _metrics(run: Path) -> list[dict[str, Any]]:
    from dprmt.training.harness import read_metrics

    try:
        lines = read_metrics(run)
    except OSError:
        lines = []
    if not lines:
        raise ParameterError("run", str(run), "a run folder with metrics.jsonl, in which a step was taken")
    return lines
