"""Figure 1 and section 2.1 of the paper on DP-AdamBC: cosines of per-sample gradients, and blocks by class frequency.

Usage: ``python paper_figures/heavy_tail_cosines.py OUT.png``

An instance of 640 samples and 31 classes, all of them, at the start and after 30 and 100 steps of DP-AdamBC (σ = 1.25).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from dprmt.plots import plot_class_blocks, plot_class_sizes, plot_gradient_cosines, save_picture
from dprmt.training.harness import load_parameters
from heavy_tail import (
    Trial,
    class_blocks,
    cosine_by_class,
    gradient_cosines,
    heavy_tail_data,
    run_trial,
)

STEPS = (0, 30, 100)
TRIAL = Trial("adambc", 0.01, noise_multiplier=1.25, stability=0.1, groups=5, samples=128)


def main(path: str) -> None:
    """Train, draw the maps and the blocks, print the mean cosines."""
    data = heavy_tail_data(TRIAL.groups, TRIAL.samples, seed=TRIAL.seed)
    weights = []
    with tempfile.TemporaryDirectory() as folder:
        for steps in STEPS:
            run_trial(TRIAL, folder, steps, data=data, device="cpu")
            weights.append(load_parameters(Path(folder) / TRIAL.name)["weight"])
    maps = [gradient_cosines(weight, data.inputs, data.labels) for weight in weights]
    blocks = class_blocks(weights[1], data.inputs, data.labels)

    def draw(axes: np.ndarray) -> None:
        for ax, steps, cosines in zip(axes[0], STEPS, maps, strict=True):
            plot_gradient_cosines(cosines, data.labels, ax=ax).set_title(f"after {steps} steps")
        norms = (blocks.gradient.norm(dim=1), blocks.predicted_gradient.norm(dim=1))
        traces = (blocks.hessian_trace, blocks.predicted_hessian_trace)
        plot_class_blocks(blocks.frequency, *norms, quantity="norm of the gradient block", ax=axes[1, 0])
        plot_class_blocks(blocks.frequency, *traces, quantity="trace of the Hessian block", ax=axes[1, 1])
        plot_class_sizes(data.class_sizes, [2**i for i in range(TRIAL.groups)], ax=axes[1, 2])

    save_picture(path, draw, size=(15.0, 9.0), panels=(2, 3))
    print(f"{'steps':>6}{'within':>9}{'across':>9}   mean cosine of pairs of samples")
    for steps, cosines in zip(STEPS, maps, strict=True):
        within, across = cosine_by_class(cosines, data.labels)
        print(f"{steps:>6}{within:>9.3f}{across:>9.3f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python paper_figures/heavy_tail_cosines.py OUT.png")
    torch.set_num_threads(1)
    main(sys.argv[1])
