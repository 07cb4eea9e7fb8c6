"""The README's examples run as they stand (those with prompts are doctests already)."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_training_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    scripts = [block for block in blocks if ">>>" not in block]
    assert len(scripts) == 1
    names: dict[str, object] = {}
    exec(compile(scripts[0], "README.md", "exec"), names)
    bounds = names["epsilon"]
    assert 0 < bounds.lower <= bounds.upper < 1  # type: ignore[attr-defined]
