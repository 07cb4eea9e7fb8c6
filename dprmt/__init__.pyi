# For type checkers: the names that __getattr__ imports when they are first used.
from dprmt import accounting as accounting
from dprmt import cli as cli
from dprmt import plots as plots
from dprmt import report as report
from dprmt import spectra as spectra
from dprmt import statements as statements
from dprmt import testing as testing
from dprmt import training as training
from dprmt._validation import ParameterError as ParameterError
from dprmt._validation import TrainingStateError as TrainingStateError
from dprmt.accounting import DPSGD as DPSGD
from dprmt.accounting import AddRemove as AddRemove
from dprmt.accounting import ExactNorms as ExactNorms
from dprmt.accounting import FixedOrder as FixedOrder
from dprmt.accounting import GaussianRelease as GaussianRelease
from dprmt.accounting import Group as Group
from dprmt.accounting import Hutchinson as Hutchinson
from dprmt.accounting import HutchPlusPlus as HutchPlusPlus
from dprmt.accounting import LaplaceRelease as LaplaceRelease
from dprmt.accounting import Poisson as Poisson
from dprmt.accounting import PrivacyBounds as PrivacyBounds
from dprmt.accounting import RandomAllocation as RandomAllocation
from dprmt.accounting import ReplaceOne as ReplaceOne
from dprmt.accounting import ZeroOut as ZeroOut
from dprmt.accounting import calibrate as calibrate
from dprmt.accounting import choose_probes as choose_probes
from dprmt.accounting import compose as compose
from dprmt.spectra import MarchenkoPastur as MarchenkoPastur
from dprmt.spectra import bulk_edge as bulk_edge
from dprmt.spectra import denoise as denoise
from dprmt.spectra import denoise_layers as denoise_layers
from dprmt.spectra import detection_threshold as detection_threshold
from dprmt.spectra import estimate_sigma as estimate_sigma
from dprmt.spectra import shrink as shrink
from dprmt.spectra import spike_map as spike_map
from dprmt.spectra import vector_overlaps as vector_overlaps
from dprmt.training.data import per_sample_losses as per_sample_losses
from dprmt.training.private_run import AdaptiveClipping as AdaptiveClipping
from dprmt.training.private_run import BandedNoise as BandedNoise
from dprmt.training.private_run import PerLayerClipping as PerLayerClipping
from dprmt.training.private_run import PrivateRun as PrivateRun
from dprmt.training.private_run import make_private as make_private

__version__: str

def show_versions() -> None: ...
