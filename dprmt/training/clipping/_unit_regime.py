"""How samples of several rows are clipped: side by side in a micro-batch, or one at a time.

Side by side, the plain backward pass is followed by norms and by a second product of every layer, at least 2RTdp
operations for R rows of T tokens. One at a time, there is no second product: the unit's gradient is there, and is
read three times, whatever R and T are, but a batch holds R rows only. So both overheads are as the parameters are, and
what decides is the number of a unit's tokens alone, measured in ``benchmarks/units.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dprmt._validation import ParameterError, check_choice, check_count

Regime = Literal["rows", "together", "alone"]
REGIMES = ("auto", "together", "alone")
TOKENS_ALONE = 256
"""Tokens per unit from which one unit at a time is cheaper."""


@dataclass(frozen=True)
class Units:
    """Samples of several rows, such as all texts of a person, for :func:`plan_private`.

    Parameters
    ----------
    rows_per_unit : int, optional
        Largest number of rows of a unit in a logical step, >= 1, known without looking at the data.
    micro_batch_size : int, optional
        Number of rows of a micro-batch, >= 1, on which the choice of the regime depends.
    regime : {"auto", "together", "alone"}
        "alone" runs units one at a time and computes the exact norm of each accumulated gradient. It works with any
        module and ignores ``norms``, and a unit may continue in the next micro-batch. "together" runs units side by
        side, all rows of a unit in one micro-batch, with norms of their concatenated tokens by ``norms``. The default
        is the cheaper one by the numbers above and ``tokens``; ``plan_private(…).reason`` names it with the reason.

    Raises
    ------
    ParameterError
        If a number is out of its range, or units cannot be run side by side.

    Examples
    --------
    >>> Units(8, micro_batch_size=4, regime="together")
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: micro_batch_size must be at least rows_per_unit = 8 with regime='together', got 4
    """

    rows_per_unit: int | None = None
    micro_batch_size: int | None = None
    regime: str = "auto"

    def __post_init__(self) -> None:
        rows, size = (
            None if value is None else check_count(name, value)
            for name, value in (("rows_per_unit", self.rows_per_unit), ("micro_batch_size", self.micro_batch_size))
        )
        object.__setattr__(self, "rows_per_unit", rows)
        object.__setattr__(self, "micro_batch_size", size)
        if check_choice("regime", self.regime, REGIMES) != "together":
            return
        if rows is None:
            raise ParameterError("rows_per_unit", None, "given with regime='together'", "pass rows_per_unit")
        if size is not None and rows > size:
            raise ParameterError("micro_batch_size", size, f"at least rows_per_unit = {rows} with regime='together'")


def check_units(units: object) -> Units:
    """Check the argument ``units``."""
    if not isinstance(units, Units):
        raise ParameterError("units", units, "dprmt.training.clipping's Units(...), or None: every row is a sample")
    return units


def choose_regime(units: Units, tokens: int | None) -> tuple[Regime, str]:
    """Return the regime and why, from public sizes alone; ``tokens``: T of a row."""
    wanted, rows, size = units.regime, units.rows_per_unit, units.micro_batch_size
    if wanted == "alone":
        return "alone", "units are run one at a time, as asked for"
    if wanted == "together":
        return "together", "units are clipped side by side, as asked for"
    if rows is None:
        return "alone", "units are run one at a time: how many rows they have is not known"
    if size is not None and rows > size:
        return "alone", f"units are run one at a time: {rows} rows exceed a micro-batch of {size}"
    if size is not None and 2 * rows > size:
        return "alone", f"units are run one at a time: one of {rows} rows fills a micro-batch"
    if tokens is not None and rows * tokens >= TOKENS_ALONE:
        return "alone", f"units are run one at a time: one of {rows * tokens} tokens is more expensive side by side"
    return "together", "units are clipped side by side: several small ones fill a micro-batch"
