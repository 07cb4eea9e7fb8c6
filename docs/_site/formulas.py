"""Formulas as MathML; a display of several formulas beside each other has one after the other where that is narrow."""

from __future__ import annotations

import html
import re
from itertools import accumulate, pairwise
from xml.etree import ElementTree

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
_STEP = re.compile(r"\\qq?uad\b|\\begin\b|\\end\b|\\left\b|\\right\b|(?<!\\)[{}]")
_LINE = re.compile("<math([^>]*)>(.*?)</math>", re.DOTALL)
_LONG = 24  # letters
_RELATIONS = frozenset("=<>≤≥≈∼→⇒⇔≪≫∝≔")
_OPENS = {"(": 1, "[": 1, "{": 1, "⌈": 1, "⌊": 1, ")": -1, "]": -1, "}": -1, "⌉": -1, "⌋": -1}
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


def breakable(formula: str) -> str:
    """A formula of a line as several, each but the last up to a relation: a line may end there, within a formula not.

    Examples
    --------
    >>> breakable("<math><mrow><mi>a</mi><mo>=</mo><mi>b</mi></mrow></math>")
    '<math><mrow><mi>a</mi><mo form="infix">=</mo></mrow></math><wbr><math><mrow><mi>b</mi></mrow></math>'
    """
    root = ElementTree.fromstring(formula)
    row = root[0]
    ends = [place + 1 for place, part in enumerate(row) if _is_relation(part)]
    depths = list(accumulate(_OPENS.get(part.text or "", 0) if _is(part, "mo") else 0 for part in row))
    ends = [end for end in ends if depths[end - 1] == 0 and 1 < end < len(row)]
    if not ends:
        return formula
    parts = []
    for start, end in pairwise([0, *ends, len(row)]):
        part = ElementTree.Element(root.tag, root.attrib)
        inner = ElementTree.SubElement(part, row.tag, row.attrib)
        inner.extend(row[start:end])
        if end < len(row):
            inner[-1].set("form", "infix")
        parts.append(ElementTree.tostring(part, encoding="unicode"))
    return "<wbr>".join(parts).replace("ns0:", "").replace("xmlns:ns0", "xmlns")


def _said_long(match: re.Match[str]) -> str:
    # What may be longer than a telephone is wide scrolls there, at the price of its place on the line.
    letters = len(html.unescape(re.sub("<[^>]*>", "", match[2])))
    return f'<math class="long"{match[1]}>{match[2]}</math>' if letters > _LONG else match[0]


def _is(part: ElementTree.Element, name: str) -> bool:
    return part.tag.rpartition("}")[2] == name


def _is_relation(part: ElementTree.Element) -> bool:
    return _is(part, "mo") and part.text in _RELATIONS


def _mathml(match: re.Match[str]) -> str:
    text = html.unescape(match[2]).strip()[2:-2]  # without \( \) or \[ \]
    if match[1] == "span":
        return _LINE.sub(_said_long, breakable(convert(text, display="inline")))
    parts = [convert(part, display="block") for part in beside_each_other(text)]
    return f'<div class="formulas">{"".join(parts)}</div>' if len(parts) > 1 else "".join(parts)
