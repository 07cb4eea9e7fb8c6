"""Private training in Transformers: `PrivateTrainer`, a `transformers.Trainer` whose steps are private."""

import dprmt.training._needs_train  # noqa: F401
from dprmt._lazy import public_names as _public_names
from dprmt.training.hugging_face._trainer import PrivacyArguments as PrivacyArguments
from dprmt.training.hugging_face._trainer import PrivateTrainer as PrivateTrainer

__all__ = _public_names(vars())
