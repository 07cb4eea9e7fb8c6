"""Private runs: one object for the batches, the clipping, the noise and the ε of a training loop.

:func:`make_private` makes a :class:`PrivateRun` of a model, an optimizer and a data set or loader. A loop uses it so::

    for batch in private:                          # or private.epoch(), once for each epoch
        private.step(losses_of, batch)             # losses_of(rows) -> one loss for each row, shape (B,)

If a framework's loop must not change, call the parts yourself::

    for batch in private:                          # a PrivateBatch; len(private) == private.steps
        for part in private.micro_batches(batch):  # a MicroBatch with collated part.rows
            private.accumulate(losses_of, part)    # clips and adds; raises before anything is released
        private.finish()                           # charges, noises, moves the optimizer that was given

Collation happens for each micro-batch, in the loader's workers. ``private.model`` and ``private.optimizer`` are your
objects; pass ``private.optimizer`` to a scheduler. ``epsilon()``, ``statement()`` and ``records`` report the privacy
cost. ``state_dict()`` and ``load_state_dict()`` continue a run exactly. After an error in
:meth:`PrivateRun.accumulate` you can pass the batch again, and a new iteration repeats an unfinished batch.
"""

import dprmt.training._needs_train  # noqa: F401
from dprmt.training.private_run._batches import MicroBatch as MicroBatch
from dprmt.training.private_run._batches import PrivateBatch as PrivateBatch
from dprmt.training.private_run._make import make_private as make_private
from dprmt.training.private_run._run import Epoch as Epoch
from dprmt.training.private_run._run import PrivateRun as PrivateRun
from dprmt.training.private_run._step_options import AdaptiveClipping as AdaptiveClipping
from dprmt.training.private_run._step_options import BandedNoise as BandedNoise
from dprmt.training.private_run._step_options import PerLayerClipping as PerLayerClipping

__all__ = [
    "AdaptiveClipping",
    "BandedNoise",
    "Epoch",
    "MicroBatch",
    "PerLayerClipping",
    "PrivateBatch",
    "PrivateRun",
    "make_private",
]
