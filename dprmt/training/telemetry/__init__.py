"""Telemetry: statistics of a private run from released values, at no privacy cost.

`Telemetry` hooks into an optimizer and estimates signal, slopes, best rate, change of the objective and spikes of the
displacement, with intervals. `dprmt.spectra` has the formulas, and ``docs/theory/telemetry.md`` the proofs.
"""

import dprmt.training._needs_train  # noqa: F401
from dprmt.training.telemetry._telemetry import Telemetry as Telemetry

__all__ = ["Telemetry"]
