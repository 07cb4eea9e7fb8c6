"""Formulas as MathML; a display of several formulas beside each other has one after the other where that is narrow."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
_STEP = re.compile(r"\\qq?uad\b|\\begin\b|\\end\b|\\left\b|\\right\b|(?<!\\)[{}]")
_DEEPER = {"\\begin": 1, "\\left": 1, "{": 1, "\\end": -1, "\\right": -1, "}": -1}


def drawn(text: str) -> str:
    """A page with every formula as MathML."""
    return _FORMULA.sub(_mathml, text)


def beside_each_other(formula: str) -> list[str]:
    r"""The formulas of a display that ``\qquad`` (or ``\quad``) separates, outside of all brackets and tables.

    Examples
    --------
    >>> beside_each_other(r"a=b,\qquad c=\left(d\qquad e\right)")
    ['a=b,', 'c=\\left(d\\qquad e\\right)']
    """
    parts, depth, start = [], 0, 0
    for step in _STEP.finditer(formula):
        if step[0].endswith("quad") and depth == 0:
            parts.append(formula[start : step.start()])
            start = step.end()
        depth += _DEEPER.get(step[0], 0)
    return [part.strip() for part in (*parts, formula[start:]) if part.strip()]


def _mathml(match: re.Match[str]) -> str:
    text = html.unescape(match[2]).strip()[2:-2]  # without \( \) or \[ \]
    if match[1] == "span":
        return str(convert(text, display="inline"))
    parts = [convert(part, display="block") for part in beside_each_other(text)]
    return f'<div class="formulas">{"".join(parts)}</div>' if len(parts) > 1 else "".join(parts)
