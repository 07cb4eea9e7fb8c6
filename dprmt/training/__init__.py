"""The torch harness: the theory on real gradients. Its subpackages are imported when they are first used.

The entrance to private training, :func:`dprmt.training.private_run.make_private`, is available here too.
"""

from dprmt._lazy import on_demand as _on_demand

_SUBPACKAGES = (
    "clipping",
    "data",
    "denoising",
    "evaluation",
    "harness",
    "hugging_face",
    "models",
    "norms",
    "optimizers",
)
_SUBPACKAGES += ("private_run", "randomness", "recipes", "subspaces", "telemetry")
__getattr__, _listed = _on_demand(__name__, _SUBPACKAGES, make_private="private_run")


def __dir__() -> list[str]:
    return sorted({*globals(), *_listed()})
