"""What the calculator's page asks: the words of a command line in, its record, the words for a paper and a curve out.

It runs in the browser, under Pyodide, and in the tests, under any Python: the answers are those of ``dprmt epsilon``.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from typing import Any

from dprmt.accounting import compose, release_from_dict
from dprmt.cli import main
from dprmt.statements import mechanism_from_dict

_POINTS = 24  # of the curve
_BATCHES = {
    "poisson": ("sample_rate", "steps"),
    "at-most": ("samples", "at_most", "sample_rate", "steps"),
    "cyclic-poisson": ("sampling", "bands", "sample_rate", "steps"),
    "fixed-size": ("sampling", "samples", "batch_size", "steps"),
    "allocation": ("sampling", "steps_per_epoch", "epochs"),
}


def command(question: dict[str, Any]) -> list[str]:
    """The words after ``dprmt`` that a question stands for; the page shows the same (``page.js``)."""
    words = ["epsilon"]
    for name in ("noise_multiplier", *_BATCHES[question["sampling"]], "delta"):
        words += [f"--{name.replace('_', '-')}", str(question[name])]
    if question["norms"] != "exact":
        words += ["--probes", str(question["probes"])]
        words += ["--sketch", str(question["sketch"])] if question["norms"] == "hutch++" else []
        words += ["--secret-probes" if question["secret"] else "--public-probes"]
    words += ["--neighbours", question["neighbours"]]
    words += ["--group", str(question["group"])] if str(question["group"]) != "1" else []
    for name in ("beside", "also"):
        words += [f"--{name}", question[name]] if question.get(name) else []
    return words


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The record and the statement of ``dprmt epsilon``, with a curve of ε; ``error`` where it refuses."""
    words = command(question)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*words, "--json", "--statement"])
    if code:
        return {"error": err.getvalue().strip()}
    record = json.loads(out.getvalue())
    return {"record": record, "curve": _curve(record)}


def _curve(record: dict[str, Any]) -> dict[str, list[Any]]:
    run, also = mechanism_from_dict(record["mechanism"]), [release_from_dict(one) for one in record.get("also", ())]
    unit = "epochs" if "epochs" in record else "steps"
    last, points = record[unit], _POINTS // 3 if also else _POINTS
    # Close to each other at the start, where the curve bends: between them the page draws straight lines.
    counts = sorted({max(1, round(last * (place / points) ** 2)) for place in range(1, points + 1)})
    if also:
        length = run.steps_per_epoch or 1
        upper = [compose([(run, count * length), *also]).epsilon(record["delta"]).upper for count in counts]
    else:
        upper = run.epsilon(**{unit: counts}, delta=record["delta"]).upper.tolist()
    finite = [value if math.isfinite(value) else None for value in upper]
    return {"unit": unit, "steps": counts, "upper": finite}


def answer_json(question: str) -> str:
    """The same as text, for the way between languages."""
    return json.dumps(answer(json.loads(question)), allow_nan=False)
