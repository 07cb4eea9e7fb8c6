"""Evaluation against the clean gradient: private, and loud about it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.spectra import cosine_similarity, layer_improvements
from dprmt.training.denoising._noise import released_sum_divisor
from dprmt.training.denoising._step import DenoisingStep, Gradients


class PrivateDataWarning(UserWarning):
    """Warning that numbers are computed from private data which no accountant has counted."""


@dataclass(frozen=True)
class PrivateImprovement:
    """Comparison of a denoised gradient with the clean one. Not covered by any (ε, δ): never release it.

    Attributes
    ----------
    private_cosine_noisy, private_cosine_denoised : float
        Cosine in [-1, 1] of the whole gradient with the clean clipped one, before and after denoising.
    private_layer_improvements : dict of float
        Improvement in [-2, 2] of every single layer; 0 for layers that were not denoised.
    """

    private_cosine_noisy: float
    private_cosine_denoised: float
    private_layer_improvements: Mapping[str, float]

    @property
    def private_improvement(self) -> float:
        """Return Improvement(t) in [-2, 2], over all layers together."""
        return self.private_cosine_denoised - self.private_cosine_noisy


def _released(parameter: torch.nn.Parameter) -> torch.Tensor:
    # Tensor with the released gradient's shape: DP-GRAPE's projected gradient for a weight in a subspace.
    projected: torch.Tensor | None = getattr(parameter, "projected_grad", None)
    return parameter if projected is None else projected


class DenoisingEvaluation:
    """Compare, at every step, with the clean clipped gradient that the optimizer still holds.

    **Reads private data.** The first call warns with `PrivateDataWarning`.

    Parameters
    ----------
    step : DenoisingStep
        One that is attached to an Opacus optimizer in a single process.

    Attributes
    ----------
    private_history : list of PrivateImprovement
        One per step since it began.

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
    >>> evaluation.private_history[0].private_improvement > 0
    True
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
        self.private_history: list[PrivateImprovement] = []
        self._step, self._dp_optimizer = step, step.dp_optimizer
        self._dp_optimizer.keeps_sums = True  # private steps free them otherwise
        step.observe(self, self._compare)

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
        sums = {name: getattr(p, "summed_grad", None) for name, p in self._step.parameters.items()}
        missing = [name for name, total in sums.items() if total is None]
        if missing:
            raise TrainingStateError(f"the optimizer holds no clean gradient of {missing}: ask before zero_grad")
        divisor = released_sum_divisor(self._dp_optimizer)
        return {name: sums[name].view_as(_released(p)) / divisor for name, p in self._step.parameters.items()}  # type: ignore[union-attr]

    def stop(self) -> None:
        """Look at no further step."""
        self._step.observe(self, None)

    def _compare(self, noisy: Gradients, denoised: Gradients, sigma: float) -> None:
        gradients = self.private_clean_gradients()
        clean = {name: gradients[name] for name in noisy}
        self.private_history.append(
            PrivateImprovement(
                private_cosine_noisy=cosine_similarity(noisy, clean),
                private_cosine_denoised=cosine_similarity(denoised, clean),
                private_layer_improvements={
                    str(name): value for name, value in layer_improvements(denoised, noisy, clean).items()
                },
            )
        )
