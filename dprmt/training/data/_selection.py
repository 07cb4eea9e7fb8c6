"""Which rows of a table are kept, by the rows themselves.

A rule that keeps a fixed number of rows cannot judge every row on its own: where a kept row leaves, another must
enter. Conversely a rule under which removing a row changes nothing else has to judge every row on its own, and then
the number kept follows from the table. So there are two rules, with two units of privacy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from math import ceil

from dprmt.training.data._rows import Row

# Public: it only makes the choice unrelated to whatever order or hash the table itself was made with.
_KEY = b"dprmt rows v1"
_BYTES = 16


def kept_rows(rows: Sequence[Row], *, fraction: float | None = None, limit: int | None = None) -> list[int]:
    """Return numbers of the rows that stay, in their order.

    ``fraction``: in (0, 1]: a row stays if its digest, as a number in [0, 1), is below it.

    Formal guarantees
    -----------------
    ``fraction`` alone: the rows kept of a table without one of its rows are those kept of the table, without that
    row. ``limit``: they are those without that row and, if it was kept, with at most one other, so that a row removed
    from the table is a row *replaced* among the kept ones. Both as multisets: rows with the same inputs and target
    have the same digest, so under ``fraction`` all of them stay or none.
    """
    digests = [_digest(row) for row in rows]
    numbers = list(range(len(rows)))
    if fraction is not None:
        below = ceil(fraction * 2 ** (8 * _BYTES))
        numbers = [number for number in numbers if digests[number] < below]
    if limit is not None:
        numbers = sorted(sorted(numbers, key=lambda number: digests[number])[:limit])
    return numbers


def _digest(row: Row) -> int:
    # The part, a file's name, is left out: a table that is split over other files keeps the same rows.
    content = json.dumps([row.inputs, row.target], default=str).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=_BYTES, key=_KEY).digest(), "big")
