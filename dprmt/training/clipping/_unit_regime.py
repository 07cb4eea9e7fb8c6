"""How samples of several rows are clipped: side by side in a micro-batch, or one at a time.

Side by side, the plain backward pass is followed by norms and by a second product of every layer, at least 2RTdp
operations for R rows of T tokens. One at a time, there is no second product: the unit's gradient is there, and is
read three times, whatever R and T are, but a batch holds R rows only. So both overheads are as the parameters are, and
what decides is the number of a unit's tokens alone, measured in ``benchmarks/units.py``.
"""

from __future__ import annotations

from typing import Literal

from dprmt._validation import ParameterError, check_choice

Regime = Literal["rows", "together", "alone"]
REGIMES = ("auto", "together", "alone")
TOKENS_ALONE = 256
"""From so many tokens a unit on, one at a time is cheaper."""


def choose_regime(
    wanted: str, rows_per_unit: int | None, micro_batch_size: int | None, tokens: int | None
) -> tuple[Regime, str]:
    """The regime and why, from public sizes alone.

    ``rows_per_unit``: R; None if nobody may know how many rows units have. ``tokens``: T of a row.
    """
    check_choice("unit_regime", wanted, REGIMES)
    if wanted == "alone":
        return "alone", "units are run one at a time, as asked for"
    if rows_per_unit is None:
        if wanted == "together":
            allowed = "given with unit_regime='together': a micro-batch must hold a unit's rows"
            raise ParameterError("rows_per_unit", None, allowed)
        return "alone", "units are run one at a time: how many rows they have is not known"
    if micro_batch_size is not None and rows_per_unit > micro_batch_size:
        if wanted == "together":
            allowed = f"at least rows_per_unit = {rows_per_unit} with unit_regime='together'"
            raise ParameterError("micro_batch_size", micro_batch_size, allowed)
        return "alone", f"units are run one at a time: {rows_per_unit} rows exceed a micro-batch of {micro_batch_size}"
    if wanted == "together":
        return "together", "units are clipped side by side, as asked for"
    if micro_batch_size is not None and 2 * rows_per_unit > micro_batch_size:
        return "alone", f"units are run one at a time: one of {rows_per_unit} rows fills a micro-batch"
    if tokens is not None and rows_per_unit * tokens >= TOKENS_ALONE:
        return "alone", f"units are run one at a time: one of {rows_per_unit * tokens} tokens is dearer side by side"
    return "together", "units are clipped side by side: several small ones fill a micro-batch"
