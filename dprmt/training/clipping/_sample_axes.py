"""Along which axis the inputs and outputs of a module run sample by sample hold the samples."""

from __future__ import annotations

from torch import Tensor, nn

from dprmt.training.clipping._trainable_modules import is_sequence_first

_MASKS = ("attn_mask", "src_mask", "tgt_mask", "memory_mask")
_PADDING = "key_padding_mask"


def follows_convention(module: nn.Module) -> bool:
    """Return whether the module's documentation, rather than the batch size, defines the axis of the samples."""
    return isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) or is_sequence_first(module)


def input_axis(module: nn.Module, argument: str, value: Tensor) -> int | None:
    """Find the sample axis of an input of torch's attention or recurrent layers; None if all samples share it.

    A mask of three axes has (sample, head) in its first one.
    """
    if argument in _MASKS:
        return 0 if value.ndim == 3 else None
    if argument.endswith(_PADDING):
        return 0
    return 1 if argument == "hx" else _main_axis(module)


def output_axis(module: nn.Module, place: int) -> int:
    """Find the sample axis of an output tensor: the sequence first, then attention weights or last states."""
    if not follows_convention(module):
        return 0
    if place == 0:
        return _main_axis(module)
    return 1 if isinstance(module, nn.RNNBase) else 0


def _main_axis(module: nn.Module) -> int:
    return 0 if getattr(module, "batch_first", False) else 1
