"""What the accountants of other packages cannot be told, and what is said where such a package is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class NoRenyiDivergenceError(NotImplementedError):
    """Rényi accounting was asked for a mechanism that has no finite Rényi divergence."""


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Name the extra in the error of an import that fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"{error.name} is not installed: pip install 'dprmt[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from None
