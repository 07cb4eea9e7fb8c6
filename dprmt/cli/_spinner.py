"""Something that moves on a terminal while an answer takes longer than a moment."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE = 1.0  # seconds before anything shows


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say, on a terminal's stderr and after a second, what is being waited for; elsewhere nothing."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield
        return
    from rich.console import Console

    status = Console(stderr=True).status(what)
    timer = threading.Timer(_PATIENCE, status.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
