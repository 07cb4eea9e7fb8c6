"""Models for private training: pretrained or random weights, LoRA through PEFT, and frozen parameters as in the
recipe.
"""

import dprmt.training._needs_train  # noqa: F401
from dprmt._lazy import public_names as _public_names
from dprmt.training.models._load import LoadedModel as LoadedModel
from dprmt.training.models._load import byte_tokenizer as byte_tokenizer
from dprmt.training.models._load import load_model as load_model
from dprmt.training.models._load import load_tokenizer as load_tokenizer
from dprmt.training.models._trainable import whole_modules as whole_modules

__all__ = _public_names(vars())
