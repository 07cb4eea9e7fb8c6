# For type checkers: the rooms that __getattr__ imports when they are first named.
from dprmt import accounting as accounting
from dprmt import cli as cli
from dprmt import plots as plots
from dprmt import report as report
from dprmt import spectra as spectra
from dprmt import statements as statements
from dprmt import training as training
from dprmt._validation import ParameterError as ParameterError
from dprmt._validation import TrainingStateError as TrainingStateError

__version__: str

def show_versions() -> None: ...
