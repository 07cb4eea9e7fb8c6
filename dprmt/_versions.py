"""Package versions for a problem report."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

_CORE = ("numpy", "scipy")
_EXTRAS = ("matplotlib", "rich", "safetensors", "torch", "opacus", "transformers", "peft", "datasets", "tomli-w")
_OTHERS = ("cryptography", "joblib", "prv-accountant", "dp-accounting")


def versions() -> dict[str, str]:
    """Map every package that a result may depend on to its version, or a dash if it is not installed; nothing is
    imported.
    """
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    return {"Python": sys.version.split()[0], "system": system} | {
        name: _version(name) for name in (*_CORE, *_EXTRAS, *_OTHERS)
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "–"
