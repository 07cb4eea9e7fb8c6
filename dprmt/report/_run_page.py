"""The page of one run, from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dprmt import __version__
from dprmt._files import parse_json, strict_json, write_whole
from dprmt._validation import ParameterError
from dprmt.accounting import neighbours_from_dict
from dprmt.report._page import plain_numbers, render_page
from dprmt.report._telemetry import telemetry_sections
from dprmt.report._words import counted
from dprmt.report._write import RunReport, section_numbers, writable_folder
from dprmt.statements import relation_label, round_up


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
