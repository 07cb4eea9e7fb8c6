"""What the accountants of other packages cannot be told."""


class NoRenyiDivergenceError(NotImplementedError):
    """Rényi accounting was asked for a mechanism that has no finite Rényi divergence."""
