"""The torch harness: the theory on real gradients. Its rooms are imported when they are first named.

The one entrance to private training, :func:`dprmt.training.clipping.make_private`, is at hand here too.
"""

from dprmt._lazy import on_demand as _on_demand

_ROOMS = ("clipping", "data", "denoising", "evaluation", "harness", "hugging_face", "models", "norms", "optimizers")
_ROOMS += ("randomness", "recipes", "subspaces", "telemetry")
__getattr__, _rooms = _on_demand(__name__, _ROOMS, make_private="clipping")


def __dir__() -> list[str]:
    return sorted({*globals(), *_rooms()})
