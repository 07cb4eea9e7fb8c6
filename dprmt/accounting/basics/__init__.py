"""Shared basics of accounting: values, intervals, errors, grids of losses, numbers and notebook text."""

from __future__ import annotations

from dprmt.accounting.basics._bounds import (
    Direction,
    PrivacyBounds,
    Side,
    band_html,
    band_text,
    curve_html,
    curve_text,
    phases_html,
    worst_of,
)
from dprmt.accounting.basics._numbers import (
    LARGEST_EPSILON,
    LARGEST_LOSS,
    Array,
    NoRenyiDivergenceError,
    UnsoundLawError,
    graded_indices,
    isotonic_regression,
    resolvable,
)
from dprmt.accounting.basics._value import Value, value_from_dict

__all__ = [
    "LARGEST_EPSILON",
    "LARGEST_LOSS",
    "Array",
    "Direction",
    "NoRenyiDivergenceError",
    "PrivacyBounds",
    "Side",
    "UnsoundLawError",
    "Value",
    "band_html",
    "band_text",
    "curve_html",
    "curve_text",
    "graded_indices",
    "isotonic_regression",
    "phases_html",
    "resolvable",
    "value_from_dict",
    "worst_of",
]
