"""Docstrings as Markdown: Sphinx' roles as code, cited theory as links."""

import re
import sys
from pathlib import Path

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from cross_links import linked_citations, linked_papers

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|exc):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite one."""
        if obj.docstring is not None:
            obj.docstring.value = linked_papers(linked_citations(_ROLE.sub(r"`\1`", obj.docstring.value)))
