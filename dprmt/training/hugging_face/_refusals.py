"""What of a Trainer would make its steps other than private, or other than they look."""

from __future__ import annotations

from typing import Any

import transformers

from dprmt._validation import ParameterError

_LOOP = (
    "compute_loss",
    "get_train_dataloader",
    "training_step",
    "create_optimizer",
    "get_batch_samples",
    "_inner_training_loop",
    "_run_epoch",
)
"""Methods that are replaced, or that the replaced ones rely on."""

_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "max_grad_norm": ((0, None), "0: clipping_norm bounds every sample's gradient, and nothing the noisy sum"),
    "gradient_accumulation_steps": ((1,), "1: expected_batch_size is the logical batch, cut into micro-batches here"),
    "fp16": ((False,), "False: losses are not scaled here"),
    "bf16": ((False,), "False: mixed precision was not tried here; a model may be in bfloat16"),
    "label_smoothing_factor": ((0, 0.0), "0: its loss is a mean over the batch. Smooth in losses="),
    "neftune_noise_alpha": ((None, 0), "None: noise of the batch's shape in the embedding was not tried here"),
    "torch_compile": ((False,), "False: hooks do not reach compiled layers"),
    "auto_find_batch_size": ((False,), "False: a step that failed is not tried again"),
    "world_size": ((1,), "1: one process"),
    "n_gpu": ((0, 1), "1 at most: one device"),
    "resume_from_checkpoint": ((None, False), "None: `dprmt train --resume` resumes a run"),
}


def check_trainer(trainer: Any) -> None:
    """Raise by name where a private step would be bypassed, or would not be what the arguments say."""
    if not isinstance(trainer, transformers.Trainer):
        raise ParameterError("trainer", type(trainer).__name__, "a transformers.Trainer")
    own = [
        name for name in _LOOP if getattr(type(trainer), name, None) is not getattr(transformers.Trainer, name, None)
    ]
    if own:
        what = f"{type(trainer).__name__}, with its own {', '.join(own)}"
        raise ParameterError(
            "trainer", what, "one whose loop is transformers.Trainer's; give the loss of each sample as losses="
        )
    for name, (fine, allowed) in _ARGUMENTS.items():
        value = getattr(trainer.args, name, fine[0])
        if value not in fine:
            raise ParameterError(f"args.{name}", value, allowed)
    for what in ("is_deepspeed_enabled", "is_fsdp_enabled"):
        if getattr(trainer, what, False):
            raise ParameterError(f"trainer.{what}", True, "False: parameters are whole, in one process")
    if trainer.compute_loss_func is not None:
        raise ParameterError(
            "compute_loss_func", trainer.compute_loss_func, "None: give the loss of each sample as losses="
        )
    if not hasattr(trainer.train_dataset, "__len__") or not hasattr(trainer.train_dataset, "__getitem__"):
        what = type(trainer.train_dataset).__name__
        raise ParameterError("train_dataset", what, "a data set with a length and positions, for coins of every sample")
