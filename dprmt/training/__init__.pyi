# For type checkers: the names that __getattr__ imports when they are first used.
from dprmt.training import clipping as clipping
from dprmt.training import data as data
from dprmt.training import denoising as denoising
from dprmt.training import evaluation as evaluation
from dprmt.training import harness as harness
from dprmt.training import hugging_face as hugging_face
from dprmt.training import models as models
from dprmt.training import norms as norms
from dprmt.training import optimizers as optimizers
from dprmt.training import private_run as private_run
from dprmt.training import randomness as randomness
from dprmt.training import recipes as recipes
from dprmt.training import subspaces as subspaces
from dprmt.training import telemetry as telemetry
from dprmt.training.private_run import make_private as make_private
