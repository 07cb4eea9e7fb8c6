"""Import check for all subpackages that train: an error names the extra with the missing package."""

from dprmt._validation import require

require("train", "torch", "opacus", "transformers", "peft", "datasets")
