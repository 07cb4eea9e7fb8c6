"""Recipes: all that determines a private training run, as checked dataclasses and TOML files.

`load_recipe` reads a file or one of the `builtin_recipes`; torch is not needed for it.
"""

from dprmt._lazy import public_names as _public_names
from dprmt.training.recipes._choices import DENOISERS as DENOISERS
from dprmt.training.recipes._choices import NORMS as NORMS
from dprmt.training.recipes._choices import OPTIMIZERS as OPTIMIZERS
from dprmt.training.recipes._recipe import Recipe as Recipe
from dprmt.training.recipes._recipe import Settings as Settings
from dprmt.training.recipes._recipe import builtin_recipes as builtin_recipes
from dprmt.training.recipes._recipe import load_recipe as load_recipe
from dprmt.training.recipes._recipe import recipe_from_dict as recipe_from_dict
from dprmt.training.recipes._sections import DataRecipe as DataRecipe
from dprmt.training.recipes._sections import DenoisingRecipe as DenoisingRecipe
from dprmt.training.recipes._sections import DistributedRecipe as DistributedRecipe
from dprmt.training.recipes._sections import EvaluationRecipe as EvaluationRecipe
from dprmt.training.recipes._sections import LoraRecipe as LoraRecipe
from dprmt.training.recipes._sections import ModelRecipe as ModelRecipe
from dprmt.training.recipes._sections import NormsRecipe as NormsRecipe
from dprmt.training.recipes._sections import OptimizerRecipe as OptimizerRecipe
from dprmt.training.recipes._sections import PrivacyRecipe as PrivacyRecipe
from dprmt.training.recipes._sections import TelemetryRecipe as TelemetryRecipe
from dprmt.training.recipes._sections import TrainingRecipe as TrainingRecipe

__all__ = _public_names(vars())
