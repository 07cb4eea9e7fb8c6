"""Docstrings as Markdown: Sphinx' roles as code, cited theory as links, limits that are no quotations."""

import re
import sys
from pathlib import Path

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from cross_links import linked_citations, linked_papers

# A limit, "> 0" or ">= 0", at the start of a line, which Markdown takes for a quotation; three are an example's prompt.
_LIMIT = re.compile(r"^( +)>(?!>>)", re.MULTILINE)
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|exc):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite one."""
        if obj.docstring is not None:
            text = _LIMIT.sub(r"\1&gt;", _ROLE.sub(r"`\1`", obj.docstring.value))
            obj.docstring.value = linked_papers(linked_citations(text))
