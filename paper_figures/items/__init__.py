"""One file a published figure or table, or a group of the same runs; each is named once, here."""

from collections.abc import Sequence
from importlib import import_module

from paper_figures._reproduction import Item

_FILES = (
    "noise_multiplier",
    "efficiency",
    "latency",
    "estimator_error",
    "envelope",
    "supremum_2003",
    "accuracy_low_budget",
    "accuracy_llama",
    "overhead_by_probes",
    "hutchpp_price",
    "clip_only",
    "improvement",
    "singular_values",
    "denoisers",
    "spectral_entropy",
    "speedup",
    "generation",
    "adam_bound",
    "adam_bound_steps",
    "heavy_tail",
    "barcode",
    "next_token",
    "grape_memory",
    "grape_accuracy",
    "grape_order",
    "grape_rank",
    "grape_flattening",
    "grape_vit",
    "random_allocation",
)


def items_in(file: str) -> Sequence[Item]:
    """The items of one of these files: its ``ITEMS``, or its ``ITEM``."""
    module = import_module(f"{__name__}.{file}")
    found: Sequence[Item] = getattr(module, "ITEMS", None) or (module.ITEM,)
    return found


ITEMS: dict[str, Item] = {item.name: item for file in _FILES for item in items_in(file)}
