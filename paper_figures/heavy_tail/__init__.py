"""Heavy-tail class imbalance: a linear softmax model under DP-GD, DP-GDM, DP-Adam and DP-AdamBC.

`heavy_tail_data` draws the set, `run_trial` and `run_trials` train on it and can be killed at any point;
`gradient_cosines` is Figure 1 and `class_blocks` section 2.1.
"""

from paper_figures.heavy_tail._blocks import ClassBlocks as ClassBlocks
from paper_figures.heavy_tail._blocks import class_blocks as class_blocks
from paper_figures.heavy_tail._data import HeavyTailData as HeavyTailData
from paper_figures.heavy_tail._data import heavy_tail_data as heavy_tail_data
from paper_figures.heavy_tail._linear import ClippedSum as ClippedSum
from paper_figures.heavy_tail._linear import CosineByClass as CosineByClass
from paper_figures.heavy_tail._linear import clipped_gradient_sum as clipped_gradient_sum
from paper_figures.heavy_tail._linear import cosine_by_class as cosine_by_class
from paper_figures.heavy_tail._linear import gradient_cosines as gradient_cosines
from paper_figures.heavy_tail._linear import per_sample_gradient_norms as per_sample_gradient_norms
from paper_figures.heavy_tail._linear import residuals as residuals
from paper_figures.heavy_tail._products import EightBitInputs as EightBitInputs
from paper_figures.heavy_tail._results import load_results as load_results
from paper_figures.heavy_tail._results import read_folder as read_folder
from paper_figures.heavy_tail._results import save_results as save_results
from paper_figures.heavy_tail._run import read_trial as read_trial
from paper_figures.heavy_tail._run import run_trial as run_trial
from paper_figures.heavy_tail._trial import Curve as Curve
from paper_figures.heavy_tail._trial import Trial as Trial
from paper_figures.heavy_tail._trial import epsilon_after as epsilon_after
from paper_figures.heavy_tail._trials import run_trials as run_trials

__all__ = [
    "ClassBlocks",
    "ClippedSum",
    "CosineByClass",
    "Curve",
    "EightBitInputs",
    "HeavyTailData",
    "Trial",
    "class_blocks",
    "clipped_gradient_sum",
    "cosine_by_class",
    "epsilon_after",
    "gradient_cosines",
    "heavy_tail_data",
    "load_results",
    "per_sample_gradient_norms",
    "read_folder",
    "read_trial",
    "residuals",
    "run_trial",
    "run_trials",
    "save_results",
]
