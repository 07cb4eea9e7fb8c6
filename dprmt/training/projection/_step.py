"""A private step in the projected space, driven like any other clipping."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from dprmt._validation import ParameterError, check_count
from dprmt.training.norms import NormRecord
from dprmt.training.norms._probes import SampleId, sample_names
from dprmt.training.projection._dp_optimizer import ProjectedDPOptimizer
from dprmt.training.projection._module import ProjectedGradSampleModule
from dprmt.training.projection._subspaces import Subspaces


class ProjectedStep:
    """What ``make_private_projected`` returns; a ``PrivateStep``.

    Parameters
    ----------
    model : ProjectedGradSampleModule
        To be called.
    optimizer : ProjectedDPOptimizer
        Around a `DPGrape`.
    record : NormRecord
        All exact.

    Formal guarantees
    -----------------
    Those of :func:`make_private_projected` for every :meth:`step`, if the samples of a logical step were drawn by
    Poisson sampling. An identity that comes twice within one is refused.

    Examples
    --------
    >>> from dprmt.training.projection import make_private_projected
    >>> network = torch.nn.Linear(300, 40)
    >>> step = make_private_projected(
    ...     network, rank=8, clipping_norm=1.0, noise_multiplier=1.0, expected_batch_size=2.0, lr=1e-3
    ... )
    >>> step.accumulate(step.model(torch.ones(2, 300)).square().mean(1), samples=[17, 4], step=0)
    >>> network.weight.summed_grad.shape  # of the (40, 300) weight: 8 for the 300 inputs
    torch.Size([8, 40])
    >>> step.step()
    >>> step.subspaces.step, step.record.mechanism(noise_multiplier=1.0, sample_rate=0.01)
    (1, DPSGD(noise_multiplier=1.0, sample_rate=0.01))
    >>> step.close() is network
    True
    """

    def __init__(self, model: ProjectedGradSampleModule, optimizer: ProjectedDPOptimizer, record: NormRecord) -> None:
        self.model = model
        self.optimizer = optimizer
        self.record = record
        self._seen: set[bytes] = set()
        self._number: int | None = None
        self._last = -1

    @property
    def subspaces(self) -> Subspaces:
        """The projectors, and how many steps have been taken with them."""
        return self.model.subspaces

    def accumulate(self, losses: torch.Tensor, *, samples: Sequence[SampleId] | torch.Tensor, step: int) -> None:
        """Add the clipped gradients of a micro-batch to the sum of the logical step.

        Parameters
        ----------
        losses : Tensor, shape (B,)
            Each sample's own loss, with its graph, from :attr:`model` in training mode. A sample whose gradient is
            not finite is left out.
        samples : sequence of int or str, or tensor of integers, shape (B,)
            Identities in the data set, all different within a logical step.
        step : int
            Number of the logical step, the same for all its micro-batches, and growing.

        Raises
        ------
        ParameterError
            If an argument is not that, an identity comes twice, a weight has changed its shape, a trainable parameter
            gets no gradient, or a layer's first axis is not the batch. The sum is as before then.
        """
        number = check_count("step", step, low=0)
        if number <= self._last or self._number not in (None, number):
            allowed = f"{self._number}, as before" if self._number is not None else f"larger than {self._last}"
            raise ParameterError("step", number, allowed)
        if not isinstance(losses, torch.Tensor) or losses.ndim != 1 or not losses.requires_grad:
            raise ParameterError("losses", getattr(losses, "shape", losses), "one loss per sample, with its graph")
        names = sample_names(samples)
        if len(names) != len(losses):
            raise ParameterError("samples", len(names), f"{len(losses)} identities, one per loss")
        if not self._seen.isdisjoint(names):
            raise ParameterError("samples", "an identity of an earlier micro-batch", "all different within a step")
        self.optimizer.original_optimizer.check()
        try:
            with warnings.catch_warnings():  # layers whose input needs no gradient: what the hooks get is right
                warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
                losses.sum().backward()
            self.optimizer.accumulate(len(losses))
        finally:
            self.model.clear()
        self._number = number
        self._seen.update(names)

    def step(self) -> None:
        """Add noise once, divide by the expected batch size, let the optimizer move, and clear the sum.

        Without a preceding :meth:`accumulate` the step is noise alone: what Poisson sampling asks for if it drew
        nobody.
        """
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._seen.clear()
        self._last = self._last if self._number is None else self._number
        self._number = None

    def close(self) -> torch.nn.Module:
        """Take the hooks off.

        Returns
        -------
        torch.nn.Module
            The model as it was given, with its trained weights.
        """
        return self.model.to_standard_module()
