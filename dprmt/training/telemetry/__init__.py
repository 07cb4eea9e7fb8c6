"""What a private run says of itself while it trains, from what it releases anyway: no privacy is spent on it.

`Telemetry` hooks into an optimizer and reads signal, slopes, best rate, change of the objective and what was learnt,
with intervals. The mathematics is in `dprmt.spectra`, the proofs in ``docs/theory/telemetry.md``.
"""

import dprmt.training._needs_train  # noqa: F401
from dprmt.training.telemetry._telemetry import Telemetry as Telemetry

__all__ = ["Telemetry"]
