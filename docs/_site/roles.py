"""Sphinx' roles in docstrings, as Markdown's code."""

import re

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|exc):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite one."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
