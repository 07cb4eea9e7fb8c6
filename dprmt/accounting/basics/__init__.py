"""What the other folders share: values, intervals, errors, grids of losses, numbers and notebooks as text."""

from __future__ import annotations

from dprmt.accounting.basics._bounds import Direction, PrivacyBounds, Side, worst_of
from dprmt.accounting.basics._errors import NoRenyiDivergenceError, UnsoundLawError
from dprmt.accounting.basics._isotonic import isotonic_regression
from dprmt.accounting.basics._loss_grid import LARGEST_EPSILON, LARGEST_LOSS, graded_indices, resolvable
from dprmt.accounting.basics._notebook import band_html, band_text, curve_html, curve_text, phases_html
from dprmt.accounting.basics._types import Array
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
