"""The section of a recipe on what a run says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from dprmt.training.recipes._fields import Section, checked, count, flag, optional


@dataclass(frozen=True)
class TelemetryRecipe(Section):
    """Readings from noisy gradients and weights while a run trains: `dprmt.training.telemetry.Telemetry`.

    Attributes
    ----------
    on : bool
        Whether anything is.
    every : int or None
        Steps between full readings; a fiftieth of the run if absent.
    window : int
        Steps that a full reading looks back, >= 2.
    displacement : bool
        Whether the distance from the start is looked at, with its spectra; it keeps the start in a temporary file.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``telemetry.key``.

    Formal guarantees
    -----------------
    Post-processing of released values, whatever the options: it costs no privacy.
    """

    section = "telemetry"
    on: bool = checked(flag, True)
    every: int | None = checked(optional(count()), None)
    window: int = checked(count(2), 20)
    displacement: bool = checked(flag, True)
