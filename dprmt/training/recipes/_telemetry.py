"""Recipe section on telemetry."""

from __future__ import annotations

from dataclasses import dataclass

from dprmt.training.recipes._fields import Section, checked, count, flag, optional


@dataclass(frozen=True)
class TelemetryRecipe(Section):
    """Readings from noisy gradients and weights while a run trains: `dprmt.training.telemetry.Telemetry`.

    Attributes
    ----------
    on : bool
        Whether telemetry is on.
    every : int or None
        Steps between full readings; a fiftieth of the run by default.
    window : int
        Steps covered by a full reading, >= 2.
    displacement : bool
        Whether to read the displacement from the start, with its spectra; it keeps the start in a temporary file.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``telemetry.key``.

    Formal guarantees
    -----------------
    Post-processing of released values for all options, so it costs no privacy.
    """

    section = "telemetry"
    on: bool = checked(flag, True)
    every: int | None = checked(optional(count()), None)
    window: int = checked(count(2), 20)
    displacement: bool = checked(flag, True)
