"""One file a published figure or table, or a group of the same runs."""

from paper_figures._reproduction import Item
from paper_figures.items import (
    accuracy_low_budget,
    adam_bound,
    efficiency,
    envelope,
    estimator_error,
    generation_counts,
    grape_accuracy,
    heavy_tail,
    noise_multiplier,
    overhead_by_probes,
    random_allocation,
    singular_values,
    spectral_entropy,
    speedup,
)

_ALL = (
    noise_multiplier.ITEM,
    efficiency.ITEM,
    estimator_error.ITEM,
    envelope.ITEM,
    accuracy_low_budget.ITEM,
    overhead_by_probes.ITEM,
    singular_values.ITEM,
    spectral_entropy.ITEM,
    speedup.ITEM,
    generation_counts.ITEM,
    adam_bound.ITEM,
    *heavy_tail.ITEMS,
    grape_accuracy.ITEM,
    random_allocation.ITEM,
)
ITEMS: dict[str, Item] = {item.name: item for item in _ALL}
