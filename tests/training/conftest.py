"""Fixtures of several files: a data set of colours, and a process group of this process alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

TRAINING = ("torch", "opacus", "transformers", "peft", "datasets")
collect_ignore_glob = ["*.py"] if None in map(importlib.util.find_spec, TRAINING) else []


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the tables of ``tiny_recipe``, which nobody changes."""
    from tests.training.tiny_recipe import write_data

    path = tmp_path_factory.mktemp("colours")
    write_data(path)
    return path


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """A gloo group."""
    import torch

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
