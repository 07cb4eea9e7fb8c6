"""What the accountants of other packages cannot be told."""

from __future__ import annotations


class NoRenyiDivergenceError(NotImplementedError):
    """Rényi accounting was asked for a mechanism that has no finite Rényi divergence."""
