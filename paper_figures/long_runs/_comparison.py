"""What the scripts that compare trained runs share: options, the table, the picture."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.plots import save_picture
from dprmt.training.recipes import Recipe, load_recipe
from paper_figures._plots import plot_accuracy_over_steps
from paper_figures.studies import MetricCurve, compare

Variants: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Changes of the recipe by name of the variant."""


def run_comparison(
    arguments: Sequence[str],
    description: str,
    variants: Variants | Callable[[argparse.Namespace], Variants],
    tables: Callable[[dict[str, MetricCurve]], None],
    *,
    recipe: str,
    seeds: int,
    changes: Mapping[str, Any],
    more_options: Mapping[str, Mapping[str, Any]] | None = None,
    noise: Mapping[str, int] | None = None,
) -> None:
    """Train what is not trained yet, print the tables, draw and save on request.

    Variants may be a function of the options, to which ``more_options`` adds some, as argparse takes them.
    ``noise``: see `studies.compare`.
    """
    parser = argparse.ArgumentParser(prog="python -m paper_figures study", description=description)
    parser.add_argument("folder", type=Path, help="where the runs go; finished ones are not repeated")
    parser.add_argument("--recipe", default=recipe)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--metric", help="of those that the recipe's evaluation gives; the first by default")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--plot", metavar="OUT.png")
    parser.add_argument("--results", metavar="OUT.json", type=Path)
    for name, facts in (more_options or {}).items():
        parser.add_argument(name, **facts)
    options = parser.parse_args(arguments)
    steps = {} if options.steps is None else {"training.steps": options.steps}
    try:
        chosen = load_recipe(options.recipe).with_changes({**changes, **steps})
        trained = variants(options) if callable(variants) else variants
        seeds_of, given = range(options.seeds), {"jobs": options.jobs, "noise": noise, "metric": options.metric}
        curves = compare(chosen, trained, seeds_of, options.folder, **given)
    except (ParameterError, TrainingStateError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    describe(chosen, curves)
    tables(curves)
    if options.plot:
        save_picture(options.plot, partial(_draw, curves=curves, title=chosen.name))
    if options.results:
        document = {name: _plain(curve) for name, curve in curves.items()}
        options.results.write_text(json.dumps({"recipe": chosen.to_dict(), "curves": document}, indent=1) + "\n")


def _draw(ax: Any, curves: Mapping[str, MetricCurve], title: str) -> None:
    first = next(iter(curves.values()))
    plot_accuracy_over_steps(first.steps, {name: curve.shown for name, curve in curves.items()}, ax=ax, title=title)
    ax.set_ylabel(first.metric.label)


def _plain(curve: MetricCurve) -> dict[str, Any]:
    arrays = {name: getattr(curve, name).tolist() for name in ("steps", "epsilon", "values")}
    return {**arrays, "metric": curve.metric.name}


def describe(recipe: Recipe, curves: Mapping[str, MetricCurve]) -> None:
    """Print what was run, and each method's score at every evaluation."""
    runs = len(next(iter(curves.values())).values)
    print(f"{recipe.name}: {runs} seeds, {recipe.training.steps} steps, δ = {recipe.privacy.delta:g}")
    for name, curve in curves.items():
        print(f"{name}: ε ≤ {curve.epsilon[-1]:.3f}")
        for step, mean, spread in zip(curve.steps, curve.mean, curve.spread, strict=True):
            print(f"  step {step:4.0f}  {curve.metric.shown(mean, spread)}")
