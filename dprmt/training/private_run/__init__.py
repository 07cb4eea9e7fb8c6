"""Private runs: one object for the batches, the clipping, the noise and the ε of a training loop.

:func:`make_private` makes a :class:`PrivateRun` of a model, an optimizer and a data set or loader. A loop uses it so::

    for batch in private:                          # or private.epoch(), once for each epoch
        private.step(losses_of, batch)             # losses_of(rows) -> one loss for each row, shape (B,)

A framework whose loop must stay its own calls the same parts itself::

    for batch in private:                          # a PrivateBatch; len(private) == private.steps
        for part in private.micro_batches(batch):  # a MicroBatch; none for an empty batch; part.rows is collated
            private.accumulate(losses_of, part)    # clips and adds; raises before anything is released
        private.finish()                           # charges, noises, moves the optimizer that was given

Collation happens for each micro-batch, in the loader's workers. ``private.model`` and ``private.optimizer`` are the
objects that were given; a scheduler takes ``private.optimizer``. ``steps_taken`` and ``steps_charged`` count;
``epsilon()``, ``mechanism``, ``noise_multiplier``, ``statement()`` and ``records`` say what it costs;
``state_dict()`` and ``load_state_dict()`` go on exactly. An error in :meth:`PrivateRun.accumulate` leaves the batch to
be given again; a new iteration yields a batch again whose step was not finished.
"""

import dprmt.training._needs_train  # noqa: F401
from dprmt.training.private_run._batches import MicroBatch as MicroBatch
from dprmt.training.private_run._batches import PrivateBatch as PrivateBatch
from dprmt.training.private_run._make import make_private as make_private
from dprmt.training.private_run._run import Epoch as Epoch
from dprmt.training.private_run._run import PrivateRun as PrivateRun

__all__ = ["Epoch", "MicroBatch", "PrivateBatch", "PrivateRun", "make_private"]
