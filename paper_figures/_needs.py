"""What an item needs that may not be here: weights, files, a GPU. Each answer is looked up, and "" where it is here."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

DATA = "DPRMT_PAPER_DATA"
"""Environment variable: the folder with e2e, sst2, dart, mnist and so on; ``--data`` sets it."""


def data_file(name: str) -> Path:
    """A file under the data folder, or under the current one."""
    return Path(os.environ.get(DATA, ".")) / name


def missing_files(*names: str) -> str:
    """The files that are not there."""
    absent = [name for name in names if not data_file(name).exists()]
    return f"files {', '.join(absent)} (--data names their folder)" if absent else ""


def missing_weights(source: str) -> str:
    """A model of the hub that is neither in the local cache nor a folder."""
    from transformers.utils import cached_file

    try:
        found = cached_file(source, "config.json", local_files_only=True)
    except (OSError, ValueError):
        found = None
    return "" if found else f"weights of {source} (not in the local model cache)"


def missing_package(name: str) -> str:
    """A package, by the name it is imported under, that is not installed."""
    return "" if importlib.util.find_spec(name) else f"the package {name.replace('_', '-')}"


def missing_gpu() -> str:
    """No CUDA device."""
    import torch

    return "" if torch.cuda.is_available() else "a GPU (torch finds none)"


def all_missing(*reasons: str) -> str:
    """One sentence out of several."""
    return " and ".join(reason for reason in reasons if reason)
