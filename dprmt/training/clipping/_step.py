"""One private step of any clipping method: measure, clip, sum, noise, move."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import SupportsIndex, TypeAlias

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping

from dprmt._validation import ParameterError, check_count
from dprmt.training.clipping._first_pass import FirstPass
from dprmt.training.clipping._optimizer import DistributedNoisySumOptimizer, NoisySumOptimizer
from dprmt.training.clipping._sample_wise import checkpointing_by_name
from dprmt.training.clipping._samplers import NormSamplers
from dprmt.training.norms import NormRecord, SampleId, clip_factors
from dprmt.training.subspaces import Subspaces

Identities: TypeAlias = Sequence[SampleId] | torch.Tensor


class ClippedStep:
    """A private step over Opacus' hooks; made by :func:`make_private`.

    A logical step is any number of calls of :meth:`accumulate` (none, if Poisson sampling drew nobody) and one of
    :meth:`step`. Where all norms are exact, Opacus' own loop works as well: a summed loss, its Poisson loader and
    ``BatchMemoryManager`` with :attr:`optimizer`. Nothing then looks for samples that come twice in a logical step.

    Parameters
    ----------
    model : GradSampleModuleFastGradientClipping
        The model with hooks.
    optimizer : NoisySumOptimizer or DistributedNoisySumOptimizer
        It noises the sums.
    samplers : NormSamplers
        Of the model, keeping what norms are computed from.

    Attributes
    ----------
    model : Module
        The model to call, with the hooks that the clipping needs.
    optimizer : Optimizer
        The Opacus optimizer; its ``original_optimizer`` is the one that was given.

    Formal guarantees
    -----------------
    What :meth:`step` gives the wrapped optimizer is the noisy mean that :func:`make_private` describes, with its
    guarantee and its limits. A sample counts once in a logical step, and no step number serves twice: both are
    refused. Losses, norms and clip factors are private.

    Examples
    --------
    Of the gradients 30 and ½ long, the first is cut to C = 1; the sum is divided by the expected batch size:

    >>> from dprmt.training.clipping import make_private
    >>> network = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(network.weight)
    >>> step = make_private(
    ...     network,
    ...     torch.optim.SGD(network.parameters(), lr=1.0),
    ...     clipping="exact",
    ...     clipping_norm=1.0,
    ...     noise_multiplier=0.0,  # to see the sum: not private
    ...     expected_batch_size=2.0,
    ... )
    >>> inputs = torch.tensor([[30.0, 0.0], [0.0, 0.5]])
    >>> step.accumulate(step.model(inputs).flatten(), samples=[17, 4], step=0)
    >>> step.step()
    >>> network.weight.detach()
    tensor([[-0.5000, -0.2500]])
    >>> step.accumulate(step.model(inputs).flatten(), samples=[17, 4], step=0)
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: step must be a number that no earlier step had...
    >>> step.close() is network
    True
    """

    def __init__(
        self,
        model: GradSampleModuleFastGradientClipping,
        optimizer: NoisySumOptimizer | DistributedNoisySumOptimizer,
        samplers: NormSamplers,
    ) -> None:
        self.model: torch.nn.Module = model
        self.optimizer: torch.optim.Optimizer = optimizer
        self._model, self._samplers = model, samplers
        self._first: FirstPass | None = FirstPass(model, samplers.layers)
        self._handles = [value.register_post_accumulate_grad_hook(self._let_go) for value in optimizer.params]
        optimizer.collect = self._collect

    @property
    def record(self) -> NormRecord:
        """How the norm of every trainable parameter is obtained: what the accountant is told."""
        return self._samplers.record

    @property
    def rounding(self) -> float:
        """ρ of ``clip_factors``, the same for all samples whatever the batch."""
        return self._samplers.rounding

    @property
    def subspaces(self) -> Subspaces | None:
        """The projectors of DP-GRAPE; None where nothing is trained in a subspace."""
        return getattr(self.optimizer.original_optimizer, "subspaces", None)

    def accumulate(self, losses: torch.Tensor, *, samples: Identities, step: SupportsIndex) -> None:
        """Add the clipped gradients of a micro-batch to the sum of the logical step.

        Parameters
        ----------
        losses : Tensor, shape (B,)
            Each sample's own loss, with its graph, from :attr:`model` in training mode; never their mean.
        samples : sequence of int or str, or tensor of integers, shape (B,)
            Identities in the data set, all different within a logical step.
        step : int
            Number of the logical step, >= 0, the same for all its micro-batches, never used twice in a run.

        Raises
        ------
        ParameterError
            If an argument is out of its range; if a sample was in this logical step already or the step in an
            earlier one, or another one is not finished; if a layer's first axis is not the sample; if T exceeds
            ``tokens``; in the first micro-batch, if a loss depends on another sample, or a parameter gets a gradient
            that does not come through its own layer. The sum is as before then.
        """
        if not isinstance(losses, torch.Tensor) or losses.ndim != 1:
            shape = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise ParameterError("losses", shape, "a tensor of shape (B,): one loss for each sample, not their mean")
        if not losses.requires_grad:
            raise ParameterError("losses", "no graph", "computed from the model with gradients enabled")
        if len(samples) != len(losses):
            raise ParameterError("samples", len(samples), f"identities of all {len(losses)} samples")
        number, current = check_count("step", step, low=0), self._samplers.log.current
        if current not in (None, number):
            raise ParameterError("step", number, f"{current} until step() has finished it")
        if len(losses) == 0:
            self._samplers.uses.finish()
            return
        with checkpointing_by_name() if self._first is not None else nullcontext():
            if self._first is not None:
                self._first.check_samples(losses)
            with self._samplers.at(step=number, samples=samples):
                losses.sum().backward()
                if not self._add():
                    raise ParameterError("losses", "no trainable layer reached", "a function of trainable parameters")

    def step(self) -> None:
        """Add noise once, divide by the *expected* batch size, let the optimizer move, and clear the sum."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._samplers.log.current = None

    def discard(self) -> None:
        """Forget a forward pass that is not to be trained on, for instance after an error."""
        self._samplers.uses.finish()
        if self._first is not None:
            self._first.forget()

    def close(self) -> torch.nn.Module:
        """Take all hooks away.

        Returns
        -------
        torch.nn.Module
            The model as it was given, with its trained weights.
        """
        self.discard()
        self._samplers.remove()
        self._looked()
        for handle in self._handles:
            handle.remove()
        return self._model.to_standard_module()

    def _let_go(self, parameter: torch.Tensor) -> None:
        if self._first is not None:
            self._first.keep_gradient(parameter)
        parameter.grad = None  # of the plain sum: not private, and nothing else uses it

    def _looked(self) -> None:
        if self._first is not None:
            self._first.remove()
        self._first = None

    def _collect(self) -> None:
        # In Opacus' own loop nobody calls accumulate.
        try:
            if self._samplers.measured()[0] is not None:
                self._samplers.uses.check()
                self._add()
        finally:
            self._samplers.uses.finish()

    def _add(self) -> bool:
        squared, contributions = self._samplers.measured()
        if squared is None:
            return False
        finite = torch.isfinite(squared)
        if self._first is not None and self._first.check_sums(contributions, finite):
            self._looked()
        factors = clip_factors(squared, self.optimizer.max_grad_norm, rounding=self._samplers.rounding)
        kept = slice(None) if bool(finite.all()) else finite
        while contributions:
            contributions.pop().add_to_sums(factors[kept], kept)  # freed one by one
        return True
