"""The section on whole steps of ``docs/performance.md``, from what ``benchmarks.step`` stored, and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.step import (
    FRONT,
    LENGTHS,
    MEMORY,
    OF_LENGTHS,
    OF_OPTIONS,
    OPTIONS,
    RESULTS,
    REVISION,
    TABLE,
    WAYS,
    load,
)

_BEGIN, _END = "<!-- steps: begin -->", "<!-- steps: end -->"
_WORDS = {"ghost": "ghost", "hutchinson": "Hutchinson 32", "hutch++": "Hutch++", "opacus hooks": "Opacus hooks"}
_WORDS |= {"opacus ghost": "Opacus ghost", "opacus fast": "Opacus fast", "exact": "exact, in blocks", "plain": "plain"}
_GOALS = {"exact": 1.35, "ghost": 1.35, "hutchinson": 1.08, "hutch++": 1.08}
_LORA, _PEAK, _FIRST = 1.03, 1.3, 1.5


def section() -> str:
    """Heading, words and tables; empty where nothing was measured."""
    found = load(RESULTS / "step.json")
    if not found["cells"]:
        return ""
    about = f"{_ABOUT}\n\n{_fresh(found['cells'])}"
    return "\n\n".join((_BEGIN, "## Whole steps", about, _PICTURE, tables(found), gpu(), _END))


def _fresh(cells: dict[str, Any]) -> str:
    """A sentence: which rows of ours are of the code as it is; the others are marked in the tables."""
    ours = {key: cell for key, cell in cells.items() if key.partition(": ")[2] in _GOALS and "ratio" in cell}
    dates = sorted({cell["date"] for cell in ours.values() if _is_fresh(cell)})
    fresh = sum(map(_is_fresh, ours.values()))
    if fresh == len(ours):
        said = f"All our rows belong to this version of the code. We measured them from {dates[0]} to {dates[-1]}."
        return f"{said}{_old_peaks(ours)}"
    return f"{fresh} of our {len(ours)} cells belong to this version of the code ({dates[-1]}). Cells with ° are older."


def _old_peaks(ours: dict[str, Any]) -> str:
    """Which peaks are from before small sums were formed first, and looks held no outputs, if there are any."""
    old = sum(not _has_new_peak(cell) for cell in ours.values())
    if not old:
        return ""
    return f" The peaks of {old} cells with ° are older."


def _has_new_peak(cell: dict[str, Any]) -> bool:
    return int(cell.get("memory", 1)) == MEMORY


def _is_fresh(cell: dict[str, Any]) -> bool:
    return int(cell.get("revision", 1)) == REVISION


def write(page: Path, found: dict[str, Any]) -> None:
    """Between the marks of a page, or at its end."""
    text = page.read_text(encoding="utf-8")
    before, mark, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2] if mark else "\n"
    page.write_text(before.rstrip("\n") + "\n\n" + section() + after, encoding="utf-8")


def tables(found: dict[str, Any]) -> str:
    """In Markdown."""
    cells = found["cells"]
    parts = [_table(cells, TABLE, WAYS), _table(cells, (*LENGTHS, *FRONT), OF_LENGTHS), _options(cells), _goals(cells)]
    return "\n\n".join(part for part in parts if part)


def _shape_words(shape: str) -> str:
    from benchmarks.step_shapes import SHAPES

    return SHAPES[shape].words


def _table(cells: dict[str, Any], shapes: Sequence[str], ways: Sequence[str]) -> str:
    shapes = [shape for shape in shapes if f"{shape}: plain" in cells]
    lines = ["| time ×; peak ×, first peak ×; first step | " + " | ".join(map(_shape_words, shapes)) + " |"]
    lines.append("|---" * (len(shapes) + 1) + "|")
    for way in ways:
        row = [_cell(cells, shape, way) for shape in shapes]
        lines.append(f"| {_WORDS[way]} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _cell(cells: dict[str, Any], shape: str, way: str) -> str:
    own, plain = cells.get(f"{shape}: {way}"), cells[f"{shape}: plain"]
    if own is None:
        return "–"
    if "failed" in own:
        return f"fails: {own['failed'].partition(':')[0]}"
    mark = "" if _is_fresh(own) or way == "plain" else " °"
    if way == "plain":
        return f"{own['seconds']:.2f} s; {own['mib']:.0f} MiB"
    old = "°" if way in _GOALS and not _has_new_peak(own) and not mark else ""
    peaks = f"{own['mib'] / plain['mib']:.2f}, {own['first_mib'] / plain['mib']:.2f}{old}"
    return f"{own['ratio']:.2f}; {peaks}; {own['first_seconds'] / own['seconds']:.1f}{mark}"


def _options(cells: dict[str, Any]) -> str:
    return _table(cells, OPTIONS, OF_OPTIONS)


def _goals(cells: dict[str, Any]) -> str:
    rows = [(shape, way) for shape in (*TABLE, *LENGTHS) for way in _GOALS if f"{shape}: {way}" in cells]
    own = {row: cells[f"{row[0]}: {row[1]}"] for row in rows}
    limits = {row: _LORA if row[0] == "lora" else _GOALS[row[1]] for row in rows}
    fast = [row for row in rows if own[row]["ratio"] <= limits[row]]
    small = [row for row in rows if own[row]["mib"] <= _PEAK * cells[f"{row[0]}: plain"]["mib"]]
    peers = {row: cells[peer]["mib"] for row in rows if (peer := f"{row[0]}: opacus ghost") in cells}
    below = [row for row, peer in peers.items() if own[row]["mib"] <= peer]
    small_first = [row for row in rows if own[row]["first_mib"] <= _PEAK * cells[f"{row[0]}: plain"]["mib"]]
    first = [row for row in rows if own[row]["first_seconds"] <= _FIRST * own[row]["seconds"]]
    lines = ["| goal for our rows, without options | met | met by cells of this version |", "|---|---|---|"]
    fresh = {row for row in rows if _is_fresh(own[row])}
    measured = {row for row in fresh if _has_new_peak(own[row])}
    names = {
        f"time: exact ≤ {_GOALS['exact']}, estimates ≤ {_GOALS['hutchinson']}, LoRA ≤ {_LORA}": fast,
        f"peak ≤ {_PEAK} × plain": small,
        f"peak of the first step ≤ {_PEAK} × plain": small_first,
        "peak below Opacus ghost's, where it was measured": below,
        f"first step ≤ {_FIRST} steps": first,
    }
    return "\n".join(
        lines
        + [
            f"| {name} | {len(met)} of {len(among)} | {len(now & {*met})} of {len(now & {*among})} |"
            for name, met in names.items()
            for among in [peers if met is below else rows]
            for now in [measured if met is small or met is small_first or met is below else fresh]
        ]
    )


def gpu(path: Path = RESULTS / "step_cuda.json") -> str:
    """What a GPU gave, or that none was at hand."""
    lines = ["| device, date | shape | norm method | batch | ms | times plain | GiB |", "|---|---|---|---|---|---|---|"]
    if not path.exists():
        said = "**Nothing was measured yet**: no GPU was at hand"
        return "\n".join([f"On a GPU, by `make gpu`. {said}.", "", *lines, "| – | – | – | – | – | – | – |"])
    for key, own in load(path)["cells"].items():
        shape, _, way = key.partition(": ")
        failed = f"fails: {own.get('failed', '').partition(':')[0]} | – | –"
        times = f"{1e3 * own['seconds']:.0f} | {own['ratio']:.2f}" if "failed" not in own else ""
        numbers = failed if "failed" in own else f"{times} | {own['mib'] / 1024:.1f}"
        where = f"{own.get('device', '–')}, {own.get('date', '–')}"
        lines.append(f"| {where} | {shape} | {way} | {own.get('batch', '–')} | {numbers} |")
    said = "On a GPU (`make gpu`), each norm method has the largest batch, of at most 16 samples, that fits."
    return "\n".join([f"{said} Ratios are of steps taken in turn:", "", *lines])


def draw(found: dict[str, Any], axes: Any) -> None:
    """Time over plain against ε, one point a way, one panel a length."""
    from dprmt.plots._style import MARKERS, PALETTE, finish

    ways = ("exact", "ghost", "hutchinson", "hutch++", "opacus hooks", "opacus ghost")
    for ax, shape in zip(list(getattr(axes, "flat", axes)), FRONT, strict=True):
        epsilons = found["epsilon"][shape]
        for place, way in enumerate(ways):
            own = found["cells"].get(f"{shape}: {way}")
            if own is None or "failed" in own:
                continue
            epsilon = epsilons["exact" if way.startswith("opacus") else way]
            look = {
                "color": PALETTE[place % len(PALETTE)],
                "marker": MARKERS[place % len(MARKERS)],
                "linestyle": "none",
                "fillstyle": "none",  # of two in one place both are seen
                "markeredgewidth": 1.8,
            }
            ax.plot([own["ratio"]], [epsilon], label=_WORDS[way], **look)
        ax.axvline(1.0, color="0.6", linewidth=0.8)
        ax.set_xlabel("time of a step over that without privacy")
        finish(ax, f"T = {shape.partition('-')[2]}")
    first = next(iter(getattr(axes, "flat", axes)))
    first.set_ylabel("ε at δ = 1e-5")
    first.legend(fontsize="small")


_PICTURE = "![Time of a step against ε, for exact norms, estimates and Opacus, at three lengths](images/step_front.png)"

_ABOUT = """\
We measured whole steps of SGD with noise, and divide by plain PyTorch at the same batch. Exact norms in blocks form
every sample's gradient once: T·d·p operations next to the 3·T·d·p of a step, in flat memory. Estimates save this time
but no memory. At T = 4,096 tokens exact norms cost no more than estimates.

Each cell has three entries: time; peak memory and its value in the first step; duration of the first step, in later
steps. The first step is longer because it includes isolation checks. Times are medians of three alternating pairs on
one CPU thread of a loaded machine, so a difference of a tenth means nothing. Peaks are of the resident set beyond what
a process holds before its first step. Models have random weights. *Opacus fast* takes two passes with formed gradients.
`python -m benchmarks.step` measures again."""
