"""The torch harness: the theory on real gradients. Its rooms are imported when they are first named."""

from dprmt._lazy import on_demand as _on_demand

_ROOMS = ("clipping", "data", "denoising", "evaluation", "harness", "hugging_face", "models", "norms", "optimizers")
__getattr__, _rooms = _on_demand(__name__, (*_ROOMS, "randomness", "recipes", "subspaces", "telemetry"))


def __dir__() -> list[str]:
    return sorted({*globals(), *_rooms()})
