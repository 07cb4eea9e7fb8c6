"""What is said where a package of an extra is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Name the extra in the error of an import that fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise _missing((error.name or "").partition(".")[0], extra) from None


def require(extra: str, *packages: str) -> None:
    """Raise if one of the packages is not installed, without importing any."""
    for package in packages:
        if find_spec(package) is None:
            raise _missing(package, extra)


def _missing(package: str, extra: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"{package} is not installed: pip install 'dprmt[{extra}]'", name=package)
