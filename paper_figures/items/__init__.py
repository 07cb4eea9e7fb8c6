"""One file a published figure or table; each has an ``ITEM``."""

from paper_figures._reproduction import Item
from paper_figures.items import (
    adam_bound,
    efficiency,
    envelope,
    estimator_error,
    generation_counts,
    heavy_tail,
    noise_multiplier,
    overhead_by_probes,
    singular_values,
    spectral_entropy,
)

_FILES = (
    noise_multiplier,
    efficiency,
    estimator_error,
    envelope,
    overhead_by_probes,
    singular_values,
    spectral_entropy,
    generation_counts,
    adam_bound,
    heavy_tail,
)
ITEMS: dict[str, Item] = {item.name: item for item in (file.ITEM for file in _FILES)}
