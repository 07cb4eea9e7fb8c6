"""Theory against measurement on real gradients: what `dprmt report` computes. It **reads clean gradients**.

`private_gradients` trains with DP-SGD and yields, at every step, the clean and the noisy gradient of each layer. The
results of the measurements are private if the data are: for data that are public anyway, such as the docstrings of the
standard library.
"""

from dprmt._lazy import public_names as _public_names
from dprmt.report.measurements._alignment import kappa_sweep as kappa_sweep
from dprmt.report.measurements._alignment import measure_alignment as measure_alignment
from dprmt.report.measurements._run import private_gradients as private_gradients
from dprmt.report.measurements._run import recipe_experiment as recipe_experiment

__all__ = _public_names(vars())
