"""The clean gradient, for studies of denoising: private, and loud about it."""

from __future__ import annotations

import warnings

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.denoising._noise import released_sum_divisor
from dprmt.training.denoising._options import Gradients
from dprmt.training.denoising._step import DenoisingStep
from dprmt.training.optimizers import released_gradient


class PrivateDataWarning(UserWarning):
    """Warning that numbers are computed from private data which no accountant has counted."""


class DenoisingEvaluation:
    """Read the clean clipped gradient of every step, which the optimizer still holds, to compare with it.

    **Reads private data.** The first call warns with `PrivateDataWarning`.

    Parameters
    ----------
    step : DenoisingStep
        One that is attached to an Opacus optimizer in a single process.

    Raises
    ------
    ParameterError
        If the step is not attached or denoises momenta, or the optimizer is a distributed one (no process then holds
        the clean sum).

    Formal guarantees
    -----------------
    None: the results are functions of the clean gradient. Publishing them, or choosing anything by them, voids the
    (ε, δ) of the run. The run itself, its gradients and its parameters, is not changed.

    References
    ----------
    Section 3.1 and appendix E.1 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import torch
    >>> from opacus.optimizers import DPOptimizer
    >>> weights = torch.nn.Parameter(torch.zeros(16, 64))
    >>> inner = torch.optim.SGD([weights], lr=0.1)
    >>> generator = torch.Generator().manual_seed(0)
    >>> options = dict(noise_multiplier=1.0, max_grad_norm=100.0, expected_batch_size=10, generator=generator)
    >>> private = DPOptimizer(inner, **options)
    >>> private.noise_multiplier = 0.05
    >>> step = DenoisingStep.attach(private, {"weights": weights})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     evaluation = DenoisingEvaluation(step)
    >>> caught[0].category.__name__
    'PrivateDataWarning'
    >>> weights.grad_sample = 3 * torch.ones(10, 16, 64)
    >>> private.step()
    >>> clean = evaluation.private_clean_gradients()["weights"]  # each of norm 96; the sum is over 10 samples
    >>> round(clean.norm().item(), 3)
    96.0
    """

    def __init__(self, step: DenoisingStep) -> None:
        if step.dp_optimizer is None:
            raise TrainingStateError("the step is not attached to an Opacus optimizer")
        if getattr(step.dp_optimizer, "is_shared", False):
            raise ParameterError("step", type(step.dp_optimizer).__name__, "attached to an optimizer of one process")
        if step.options.on == "momentum":
            raise ParameterError("step.options.on", step.options.on, "'gradient', with which the clean one compares")
        message = "DenoisingEvaluation reads the clean gradients: its results are private and no ε covers them"
        warnings.warn(message, PrivateDataWarning, stacklevel=2)
        self._step, self._dp_optimizer = step, step.dp_optimizer
        self._dp_optimizer.keeps_sums = True  # private steps free them otherwise

    def private_clean_gradients(self) -> Gradients:
        """Return the clean clipped gradients by parameter, divided as the noisy ones were.

        Returns
        -------
        dict of Tensor
            **Private.** Gradients of the last step, until ``zero_grad`` of the optimizer; for DP-GRAPE's weights in
            their subspaces.

        Raises
        ------
        TrainingStateError
            If the optimizer holds none.
        """
        divisor, clean = released_sum_divisor(self._dp_optimizer), {}
        for name, p in self._step.parameters.items():
            released, total = released_gradient(p), getattr(p, "summed_grad", None)
            if total is None:
                raise TrainingStateError(f"the optimizer holds no clean gradient of {name}: ask before zero_grad")
            clean[name] = total.view_as(p if released is None else released) / divisor
        return clean
