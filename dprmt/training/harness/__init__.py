"""The harness: run a recipe, record everything, resume after any stop, and report its privacy cost."""

import dprmt.training._needs_train  # noqa: F401
from dprmt._lazy import public_names as _public_names
from dprmt.training.harness._checkpoint import load_parameters as load_parameters
from dprmt.training.harness._privacy_cost import CARD as CARD
from dprmt.training.harness._privacy_cost import read_card as read_card
from dprmt.training.harness._privacy_cost import read_sweep_card as read_sweep_card
from dprmt.training.harness._recipe import DryRun as DryRun
from dprmt.training.harness._recipe import dry_run as dry_run
from dprmt.training.harness._recipe import recipe_costs as recipe_costs
from dprmt.training.harness._run import Observer as Observer
from dprmt.training.harness._run import Run as Run
from dprmt.training.harness._run import StepRecord as StepRecord
from dprmt.training.harness._run import run_in_memory as run_in_memory
from dprmt.training.harness._run_folder import load_trained as load_trained
from dprmt.training.harness._run_folder import read_metrics as read_metrics
from dprmt.training.harness._run_folder import read_summary as read_summary
from dprmt.training.harness._task import ItemTask as ItemTask
from dprmt.training.harness._task import Task as Task
from dprmt.training.harness._train import TrainingResult as TrainingResult
from dprmt.training.harness._train import train as train
from dprmt.training.harness._train import train_task as train_task

__all__ = _public_names(vars())
