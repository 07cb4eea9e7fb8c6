"""``layer-gains train | page``: what maps of a noisy gradient gain on real last layers, predicted and measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from paper_figures._needs import DATA
from paper_figures._pieces import Pieces
from paper_figures.long_runs._stored import Options, StoredStudy, store

NAME = "layer-gains"


def _train(options: Options) -> None:
    from paper_figures.denoising import _gain_decoder, _gain_encoder

    os.environ[DATA] = options.data
    pieces = Pieces(Path(options.folder), NAME, "study")
    models = {"MiniLM": _gain_encoder.curvatures, "SmolLM2": _gain_decoder.curvatures}
    found = {
        model: {name: _matrix(pieces, _key(model, name), curvature) for name, curvature in curvatures()}
        for model, curvatures in models.items()
    }
    store(STUDY.file, {"models": found}, pieces)


def _key(model: str, matrix: str) -> str:
    return matrix if model == "MiniLM" else f"{model} {matrix}"


def _matrix(pieces: Pieces, name: str, curvature: Any) -> dict[str, Any]:
    from paper_figures.denoising._gains import STRENGTHS, around, expected, measured

    tasks = {f"{name} at {strength:g}": partial(measured, curvature, strength) for strength in STRENGTHS}
    theory = {f"{name} expected at {strength:g}": partial(expected, curvature, strength) for strength in STRENGTHS}
    values = pieces.measure({**tasks, f"{name} around": partial(around, curvature), **theory})
    return {
        f"{strength:g}": {
            **values[f"{name} at {strength:g}"],
            **values[f"{name} around"],
            "expected": values[f"{name} expected at {strength:g}"],
        }
        for strength in STRENGTHS
    }


def _page(page: str, stored: Mapping[str, Any]) -> str:
    from paper_figures.denoising._gains_page import with_table

    return with_table(page, stored["models"])


STUDY = StoredStudy(NAME, __doc__, {"train": ("draw and measure", _train)}, _page, data="e2e/")
main = STUDY.main
