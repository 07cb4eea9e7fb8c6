"""Imported first by every room that trains, so that a missing package comes with the name of the extra."""

from dprmt._validation import require

require("train", "torch", "opacus", "transformers", "peft", "datasets")
