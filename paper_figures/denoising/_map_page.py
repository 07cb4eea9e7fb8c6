"""The map of ``docs/theory/when_denoising_helps.md``: table and picture, from stored looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dprmt._files import read_lines
from dprmt.accounting import DPSGD, calibrate
from paper_figures._picture import COLORS, picture
from paper_figures.denoising._map import EPSILONS, SETTINGS
from paper_figures.denoising._map_opening import HEADER, rows

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PICTURE = DOCS / "theory" / "when_denoising_helps.md", DOCS / "images" / "gate_map.png"
BEGIN = "<!-- from here on written by python -m paper_figures study gate-map page -->"
END = "<!-- up to here: the map -->"
EXACT = "gate-map-float32.jsonl"
"""Beside the looks: those in 32 bits that one in 16 has replaced."""
ROLES = ("LoRA A", "LoRA B", "full matrix", "embedding", "head")

Look = Mapping[str, Any]


def write(file: Path, page: Path = PAGE, image: Path = PICTURE) -> None:
    """The map's part of the page, and its picture."""
    looks = [line["value"] for line in read_lines(file)]
    looks.sort(key=lambda seen: (list(SETTINGS).index(seen["setting"]), seen["step"]))
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    exact = [line["value"] for line in read_lines(file.with_name(EXACT))]
    page.write_text(f"{before}{BEGIN}\n\n{text(looks, exact)}\n\n{END}{after}", encoding="utf-8")
    picture(image, lambda axes: draw(looks, axes), panels=3, rows=len(_settings(looks)) // 3 + 1)


def text(looks: Sequence[Look], exact: Sequence[Look]) -> str:
    """What the looks say, in sentences and tables; ``exact``: those taken in 32 bits beside one in 16."""
    parts = [
        sentence(looks),
        rounding(looks, exact),
        _table(_HEADER, _rows(looks)),
        _several(looks),
        _growth(looks),
        _opening(looks),
    ]
    return "\n\n".join(part for part in parts if part)


def strength(seen: Look, layer: Mapping[str, Any], epsilon: float, size: int) -> float | None:
    """λ₁ of the clean sum over the detection threshold of the noise, at a batch of this size; None if there is none."""
    at = seen["sizes"].index(size)
    noise = seen["noise"][f"{epsilon:g}"][at]
    return None if noise is None else float(layer["tops"][at] / (noise * _root(layer)))


def _root(layer: Mapping[str, Any]) -> float:
    rows, columns = layer["shape"]
    return float((rows * columns) ** 0.25)


def chosen_batch(seen: Look) -> int:
    """The measured size nearest to the recipe's batch that is not above it, or the smallest."""
    wanted = SETTINGS[seen["setting"]].batch
    return max([size for size in seen["sizes"] if size <= wanted] or seen["sizes"][:1])


def largest_batch(seen: Look) -> int:
    """Of those that the data have."""
    return max(size for size in seen["sizes"] if size <= seen["samples"])


def samples_to_open(seen: Look, layer: Mapping[str, Any], noise: float) -> float:
    """How large n must be for the whole data as one batch to reach the threshold, the mean gradient as it is."""
    size = largest_batch(seen)
    mean = layer["tops"][seen["sizes"].index(size)] / size
    return float(noise * _root(layer) / mean)


def full_batch_noise(seen: Look, epsilon: float) -> float:
    """σ of the recipe's length without sampling."""
    delta = SETTINGS[seen["setting"]].delta
    run = calibrate(DPSGD(1.0, 1.0), steps=seen["length"], target_epsilon=epsilon, delta=delta)
    return run.noise_multiplier


_HEADER = (
    "setting",
    "step",
    "role",
    "matrices",
    "batch",
    "λ₁ / threshold at ε = 6.7: median, largest",
    "open at ε = 1, 3, 6.7",
    "largest batch",
    "median, largest",
    "open",
    "n that would open the median, over n",
)


def _groups(seen: Look) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for role in ROLES:
        layers = [layer for layer in seen["layers"] if layer["role"] == role]
        if layers:
            yield role, layers


def _rows(looks: Sequence[Look]) -> list[list[str]]:
    rows = []
    for seen in looks:
        small, large, noise = chosen_batch(seen), largest_batch(seen), full_batch_noise(seen, EPSILONS[-1])
        for role, layers in _groups(seen):
            few, many = (_strengths(seen, layers, EPSILONS[-1], size) for size in (small, large))
            needed = median(samples_to_open(seen, layer, noise) for layer in layers) / seen["samples"]
            opened = (_open(_strengths(seen, layers, epsilon, small)) for epsilon in EPSILONS)
            both = [f"{median(few):.2g}, {max(few):.2g}", ", ".join(map(str, opened))]
            rest = [str(large), f"{median(many):.2g}, {max(many):.2g}", str(_open(many)), f"{needed:.2g}"]
            rows.append([seen["setting"], str(seen["step"]), role, str(len(layers)), str(small), *both, *rest])
    return rows


def _strengths(seen: Look, layers: Sequence[Mapping[str, Any]], epsilon: float, size: int) -> list[float]:
    found = (strength(seen, layer, epsilon, size) for layer in layers)
    return [value for value in found if value is not None]


def _open(values: Sequence[float]) -> int:
    return sum(value >= 1 for value in values)


def sentence(looks: Sequence[Look]) -> str:
    """How many matrices are open, in all and by role."""
    counted: dict[str, list[int]] = {}
    for seen in looks:
        for role, layers in _groups(seen):
            values = _strengths(seen, layers, EPSILONS[-1], chosen_batch(seen))
            entry = counted.setdefault(role, [0, 0])
            entry[0] += _open(values)
            entry[1] += len(values)
    parts = "; ".join(f"{role}: {opened} of {of}" for role, (opened, of) in counted.items())
    return (
        f"At ε = {EPSILONS[-1]:g} and the recipe's batch (or the largest measured one below it) the clean gradient's"
        f" top is above the threshold in, matrices of all looks: {parts}. One model, one seed and one draw a look;"
        " tops are those of clipped sums over C."
    )


def rounding(looks: Sequence[Look], exact: Sequence[Look]) -> str:
    """By how much λ₁ in 16 bits misses that of the same draws in 32."""
    parts = []
    for other in exact:
        (seen,) = (seen for seen in looks if (seen["setting"], seen["step"]) == (other["setting"], other["step"]))
        tops = {layer["layer"]: layer["tops"] for layer in other["layers"]}
        missed = [
            [abs(top / of - 1) for top, of in zip(layer["tops"], tops[layer["layer"]], strict=False)]
            for layer in seen["layers"]
        ]
        last = [row[-1] for row in missed]
        parts.append(
            f"{seen['setting']}, step {seen['step']}: at most {100 * max(map(max, missed)):.1f} % in one matrix at one"
            f" batch of {other['sizes'][0]} to {other['sizes'][-1]}, in the median matrix"
            f" {100 * median(last):.2f} % at {other['sizes'][-1]}"
        )
    return f"Frozen weights of SmolLM2 in 16 bits move λ₁ of the same draws in 32 by, {'; '.join(parts)}."


def leading(seen: Look, layer: Mapping[str, Any], epsilon: float, size: int) -> list[float]:
    """λ₁ … λ₅ of the clean sum over the detection threshold, where they were kept."""
    at = seen["sizes"].index(size)
    noise = seen["noise"][f"{epsilon:g}"][at]
    return [value / (noise * _root(layer)) for value in layer["leading"][at]]


def _several(looks: Sequence[Look]) -> str:
    found = []
    for seen in looks:
        size = largest_batch(seen)
        for role, layers in _groups(seen):
            kept = [leading(seen, layer, EPSILONS[-1], size) for layer in layers if "leading" in layer]
            if kept:
                best = ", ".join(f"{value:.2g}" for value in max(kept))
                counts = [str(sum(len(values) >= k and values[k - 1] >= 1 for values in kept)) for k in (1, 2, 3, 5)]
                found.append([seen["setting"], str(seen["step"]), role, str(len(kept)), str(size), best, *counts])
    if not found:
        return ""
    words = "How many directions stand out, where more than the first was kept: λ₁ … λ₅ over the threshold at ε = 6.7."
    header = ("setting", "step", "role", "matrices", "largest batch", "the strongest matrix")
    return f"{words}\n\n{_table((*header, *(f'λ{k} ≥ 1 in' for k in '₁₂₃₅')), found)}"


def _opening(looks: Sequence[Look]) -> str:
    words = (
        "The papers' own lengths, data and privacy, with the mean gradients of the largest batch measured here in place"
        " of theirs: what would open the gate; median and largest over matrices."
    )
    return f"{words}\n\n{_table(HEADER, rows(looks, ROLES))}"


def coherence(seen: Look, layer: Mapping[str, Any]) -> tuple[float, float]:
    """Share of λ₁² of the largest batch's mean that stays as it grows, and the worst miss of μ² + τ²/B between.

    All of it where λ₁ of one draw is larger than of a part of that draw, as chance may have it.
    """
    sizes, squares = _squares(seen, layer)
    mean, slope = _law(seen, layer)
    misses = [
        abs(((mean + slope / size) / square) ** 0.5 - 1) if mean + slope / size > 0 else 1.0
        for size, square in list(zip(sizes, squares, strict=True))[1:-1]
    ]
    return min(max(mean, 0.0) / squares[-1], 1.0), max(misses, default=0.0)


def predicted(seen: Look, layer: Mapping[str, Any], epsilon: float, size: int) -> float:
    """λ₁ over the threshold by that law, from the smallest and the largest batch; 0 where the law has none."""
    mean, slope = _law(seen, layer)
    noise = seen["noise"][f"{epsilon:g}"][seen["sizes"].index(size)]
    return float(size * max(mean + slope / size, 0.0) ** 0.5 / (noise * _root(layer)))


def _law(seen: Look, layer: Mapping[str, Any]) -> tuple[float, float]:
    # μ² and τ².
    sizes, squares = _squares(seen, layer)
    slope = (squares[0] - squares[-1]) / (1 / sizes[0] - 1 / sizes[-1])
    return squares[-1] - slope / sizes[-1], slope


def _squares(seen: Look, layer: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    sizes = [size for size in seen["sizes"] if size <= seen["samples"]]
    return sizes, [(top / size) ** 2 for top, size in zip(layer["tops"], sizes, strict=False)]


def _growth(looks: Sequence[Look]) -> str:
    rows = []
    for seen in looks:
        for role, layers in _groups(seen):
            found = [coherence(seen, layer) for layer in layers]
            kept, missed = (median(values) for values in zip(*found, strict=True))
            rows.append([seen["setting"], str(seen["step"]), role, f"{100 * kept:.0f} %", f"{100 * missed:.0f} %"])
    words = (
        "μ² + τ²/B through the smallest and the largest batch: the share of λ₁² that is coherent at the largest, and by"
        " how much the curve misses λ₁ at the batches between, the worst of them; medians over matrices."
    )
    return f"{words}\n\n{_table(('setting', 'step', 'role', 'coherent', 'miss'), rows)}"


def draw(looks: Sequence[Look], axes: Any) -> None:
    """λ₁ over the threshold at ε = 6.7 against the batch, a panel a setting, a line a role; dashed before training."""
    names = _settings(looks)
    for ax in list(axes)[len(names) :]:
        ax.set_axis_off()
    for name, ax in zip(names, axes, strict=False):
        for seen in (seen for seen in looks if seen["setting"] == name):
            _lines(ax, seen)
        ax.axhline(1, color="0.5", linewidth=0.8)
        ax.axvline(SETTINGS[name].batch, color="0.5", linewidth=0.8, linestyle=":")
        ax.set_title(name, fontsize="medium")
        ax.set(xscale="log", yscale="log", xlabel="batch", ylabel="λ₁ over the threshold")
        sizes = sorted({size for seen in looks if seen["setting"] == name for size in seen["sizes"]})
        ax.set_xticks(sizes[::2], [str(size) for size in sizes[::2]], minor=False)
        ax.set_xticks([], minor=True)
    _key(list(axes)[len(names)])


def _key(ax: Any) -> None:
    for role, color in zip(ROLES, COLORS, strict=False):
        ax.plot([], [], color=color, label=role)
    ax.plot([], [], color="black", linestyle="none", marker="x", markersize=3, label="μ² + τ²/B through both ends")
    ax.plot([], [], color="0.5", linestyle="--", label="before training")
    ax.plot([], [], color="0.5", label="after training, band from least to largest")
    ax.plot([], [], color="0.5", linestyle=":", label="the recipe's batch")
    ax.legend(frameon=False, loc="center")


def _settings(looks: Sequence[Look]) -> list[str]:
    return [name for name in SETTINGS if any(seen["setting"] == name for seen in looks)]


def _lines(ax: Any, seen: Look) -> None:
    sizes = [size for size in seen["sizes"] if size <= seen["samples"]]
    for role, layers in _groups(seen):
        color, style = COLORS[ROLES.index(role)], "-" if seen["step"] else "--"
        bands = [sorted(_strengths(seen, layers, EPSILONS[-1], size)) for size in sizes]
        ax.plot(sizes, [median(band) for band in bands], color=color, linestyle=style, linewidth=1.2)
        laid_over = [median(predicted(seen, layer, EPSILONS[-1], size) for layer in layers) for size in sizes]
        ax.plot(sizes, laid_over, color="black", linestyle="none", marker="x", markersize=3, markeredgewidth=0.6)
        if seen["step"]:
            ax.fill_between(sizes, [b[0] for b in bands], [b[-1] for b in bands], color=color, alpha=0.12, linewidth=0)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
