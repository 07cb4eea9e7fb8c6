"""Norm samplers for Opacus' fast gradient clipping hooks, of one model only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, SupportsIndex

import torch
from opacus.grad_sample import GradSampleHooksFastGradientClipping
from torch import nn

from dprmt._validation import ParameterError, TrainingStateError, check_count
from dprmt.training.clipping._accountant_link import MINE, AccountantLink
from dprmt.training.clipping._formed_layers import WholeModule
from dprmt.training.clipping._layer_uses import LayerUses, without_hook_warning
from dprmt.training.clipping._policy import Contribution, Layer, NormPolicy, Samples, joined
from dprmt.training.clipping._sample_wise import SampleWiseForward
from dprmt.training.clipping._tied_weights import add_inner_products, tied_tables
from dprmt.training.clipping._unit_rows import UnitRows
from dprmt.training.norms import UNIT_ROUNDOFF, NormRecord, clip_factors, rounding_margin, sample_names

UNKNOWN_TOKENS = 65_000  # additions per entry that the default margin, 2⁻¹³ in float32, is for


class NormSamplers:
    """Norms of one model's layers, computed inside Opacus' hooks; made by :func:`register_norm_samplers`.

    Parameters
    ----------
    hooks : GradSampleHooksFastGradientClipping
        Opacus' hooks (``GradSampleModuleFastGradientClipping`` is one).
    layers : sequence of Layer
        The model's trainable ones.
    policy : NormPolicy
        By which they were chosen.
    floor : float
        The least rounding margin.
    keep : bool
        Whether what norms are computed from is kept for the sum.

    Formal guarantees
    -----------------
    Those of :func:`register_norm_samplers`, in a loop that uses Opacus' loss and optimizer as below. Outside of
    :meth:`at` the backward pass fails. Norms and clip factors are private.

    Examples
    --------
    In a loop of one's own, on Opacus' loss and optimizer:

    >>> from opacus.grad_sample import GradSampleModuleFastGradientClipping
    >>> from opacus.optimizers import DPOptimizerFastGradientClipping
    >>> from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    >>> from dprmt.training.clipping import register_norm_samplers
    >>> from dprmt.training.norms import HutchinsonEstimator
    >>> network = torch.nn.Linear(40, 40)
    >>> model = GradSampleModuleFastGradientClipping(network, max_grad_norm=1.0)
    >>> optimizer = DPOptimizerFastGradientClipping(
    ...     torch.optim.SGD(network.parameters(), lr=0.1),
    ...     noise_multiplier=1.0,
    ...     max_grad_norm=1.0,
    ...     expected_batch_size=2,
    ... )
    >>> loss = DPLossFastGradientClipping(model, optimizer, torch.nn.CrossEntropyLoss())
    >>> samplers = register_norm_samplers(model, HutchinsonEstimator(probes=8))
    >>> logits = model(torch.ones(2, 40))
    >>> with samplers.at(step=0, samples=["anna", "ben"]):
    ...     loss(logits, torch.tensor([3, 4])).backward()
    >>> optimizer.step()
    >>> samplers.record.mechanism(noise_multiplier=1.0, sampling=0.01)
    DPSGD(1.0, Poisson(0.01), norms=Hutchinson(8, secret=True, rank=40))
    >>> samplers.remove()
    """

    def __init__(
        self,
        hooks: GradSampleHooksFastGradientClipping,
        layers: Sequence[Layer],
        policy: NormPolicy,
        *,
        floor: float = 0.0,
        keep: bool = False,
    ) -> None:
        self._policy, self._keep, self._hooks = policy, keep, hooks
        self._layers = list(layers)
        self._by_module = {layer.module: layer for layer in self._layers}
        self._tied = tied_tables(self._by_module)
        records = [record for layer in self._layers for record in layer.records()]
        self._record = NormRecord(records)
        self._needs_names = bool(getattr(self._record.norms, "secret", False))
        double = all(p.dtype == torch.float64 for p in hooks._module.parameters() if p.requires_grad)
        self._dtype = torch.float64 if double else torch.float32
        self._terms = self._longest_chain(policy)
        self._most_tokens = dict.fromkeys(self._layers, 0)
        self._margins = {
            products: max(rounding_margin(self._terms, dtype=self._dtype, precision=products), floor)
            for products in UNIT_ROUNDOFF
        }
        self._at: tuple[int, Samples] | None = None
        self._units: UnitRows | None = None
        self.log = StepLog()
        self._link = AccountantLink(self._record, [p for p in hooks._module.parameters() if p.requires_grad])
        if keep:  # by ClippedStep: no engine counts, the caller does, by the record
            self._link.trust()
        estimated = bool(self._record.estimated)
        self.uses = LayerUses(hooks._module, self._layers, needs_step=estimated or not keep)
        self._apart = [self._sample_wise(layer) for layer in self._layers if isinstance(layer, WholeModule)]
        hooks.NORM_SAMPLERS = {type(layer.module): self._sample for layer in self._layers}
        hooks.get_clipping_coef = self._clipping_factors

    @property
    def record(self) -> NormRecord:
        """Record of how each group of trainable parameters was treated: what the accountant is told."""
        return self._record

    @property
    def layers(self) -> Sequence[Layer]:
        """The trainable ones."""
        return self._layers

    @property
    def rounding(self) -> float:
        """ρ of ``clip_factors``: of the largest possible sums, the same for all samples whatever the batch."""
        return self._margins[torch.get_float32_matmul_precision()]

    @contextmanager
    def at(self, *, step: SupportsIndex, samples: Samples = None, units: UnitRows | None = None) -> Iterator[None]:
        """Say which logical step, and whose samples, the backward pass inside the ``with`` block is for.

        Parameters
        ----------
        step : int
            Number of the logical step, the same for all its micro-batches.
        samples : sequence of int or str, or tensor of integers, shape (B,)
            Identities in the data set; needed for secret probes.
        units : UnitRows, optional
            Which rows are one sample, of :meth:`ClippedStep.accumulate`: then these have the norms, and the identities.

        Yields
        ------
        None
            To call ``backward`` once. The forward pass belongs before the block.

        Raises
        ------
        ParameterError
            If the step was finished before, or an identity comes twice within it.
        TrainingStateError
            If a forward pass is missing, or an earlier backward pass was not summed; if nobody who knows of these norms
            has counted an earlier step.
        """
        number, rows = check_count("step", step, low=0), None
        size = None if samples is None else len(samples)
        if units is not None:
            rows, samples = samples, list(units.names)
        if samples is None and self._needs_names:
            raise ParameterError("samples", None, "the identities of all samples of the micro-batch")
        self.uses.check()
        if self.uses.waiting or self.uses.squared is not None:
            raise TrainingStateError("a second backward pass before what an earlier one left is summed")
        if not self._keep:
            self._link.starts(number)
        self.log.enter(number, samples, rows)
        self._at, self.uses.expected = (number, samples), True
        self.uses.size, self._units = size, units
        try:
            with without_hook_warning():
                yield
        except BaseException:
            if self._keep and not self.uses.summing:
                self.log.undo()
            raise
        finally:
            self._at = self._units = None
            self.uses.finish()

    @contextmanager
    def as_they_are(self) -> Iterator[None]:
        """Context in which modules that run sample by sample run on the batch, as they were given."""
        try:
            for forward in self._apart:
                forward.is_apart = False
            yield
        finally:
            for forward in self._apart:
                forward.is_apart = True

    def forget(self) -> None:
        """Discard a backward pass, or a forward pass that is not followed by one."""
        self.uses.finish()

    def measured(self) -> tuple[torch.Tensor | None, list[Contribution]]:
        """Squared norms over all layers after the backward pass, and what they are of.

        Returns
        -------
        tuple of Tensor, shape (B,), and list of Contribution
            (None, []) if no layer was reached. Norms by secret probes are secret.
        """
        for layer in list(self.uses.waiting):  # a use whose output the losses do not depend on has no gradient
            self._measure(layer)
        if self._tied and self.uses.squared is not None:
            rounding = self.rounding
            squared = add_inner_products(self.uses.squared, self.uses.contributions, self._tied, rounding=rounding)
            return squared, self.uses.contributions
        return self.uses.squared, self.uses.contributions

    def account_with(self, accountant: Any) -> None:
        """See :func:`register_norm_samplers`.

        Parameters
        ----------
        accountant : IAccountant, "mine" or None
            Who counts the steps.

        Raises
        ------
        ParameterError
            If it accounts for other norms.
        """
        if accountant == MINE:
            self._link.trust()
        elif accountant is not None:
            self._link.check(accountant)

    def remove(self) -> None:
        """Give the hooks Opacus' own samplers and clip factors back."""
        for name in ("NORM_SAMPLERS", "get_clipping_coef"):
            self._hooks.__dict__.pop(name, None)
        self._link.remove()
        self.uses.remove()
        while self._apart:
            self._apart.pop().remove()

    def _longest_chain(self, policy: NormPolicy) -> int:
        if policy.tokens is None and any(layer.terms(1) != layer.terms(2) for layer in self._layers):
            return UNKNOWN_TOKENS
        return max(layer.terms(policy.tokens or 1) for layer in self._layers)

    def _sample(
        self, module: nn.Module, activations: Sequence[torch.Tensor], gradients: torch.Tensor
    ) -> dict[nn.Parameter, torch.Tensor]:
        """What Opacus calls for each use of a layer; the norm of all its parameters is given for the first."""
        layer = self._by_module[module]
        if self._keep and len(gradients) == 0:
            return {}
        if self.uses.add(layer, activations, gradients, activations[0]):
            squared = self._measure(layer)
        else:
            squared = torch.zeros(len(gradients), device=gradients.device)
        if self._keep:
            return {}
        parameters = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        norms = {parameter: torch.zeros_like(squared) for parameter in parameters}
        norms[parameters[0]] = squared.sqrt()
        return norms

    def _sample_wise(self, layer: WholeModule) -> SampleWiseForward:
        def take(parameter: nn.Parameter, gradients: torch.Tensor) -> None:
            if self._hooks.hooks_enabled:
                self.uses.add(layer, [parameter], gradients, gradients)

        return SampleWiseForward(layer.name, layer.module, lambda: self.uses.batch_size, take)

    def _measure(self, layer: Layer) -> torch.Tensor:
        uses, units = self.uses.waiting.pop(layer), self._units
        tokens = sum(max(math.prod(g.shape[1:-1]), 1) if layer.per_token else 1 for _, g in uses)
        if units is not None and layer.per_token:
            tokens *= units.most
        if tokens > self._most_tokens[layer]:
            self._check_tokens(layer, tokens)
            self._most_tokens[layer] = tokens
        if layer.per_token and len(uses) > 1:
            uses = [joined(uses)]
        if units is not None and layer.per_token:
            uses, units = [units.joined(uses[0])], None
        squared, contributions = layer.measure(uses, *(self._at or (0, None)), units)
        total = self.uses.squared
        self.uses.squared = squared if total is None else total + squared.to(total.device)
        if self._keep:
            self.uses.contributions += contributions
            self.uses.sources += [layer] * len(contributions)
        return squared

    def _check_tokens(self, layer: Layer, tokens: int) -> None:
        if self._policy.tokens is not None and tokens > self._policy.tokens:
            raise ParameterError("tokens", self._policy.tokens, f"the largest number of tokens, at least {tokens}")
        if layer.terms(tokens) > self._terms:
            allowed = f"given, as {layer.name} adds more than {UNKNOWN_TOKENS} numbers"
            raise ParameterError("tokens", self._policy.tokens, allowed)

    def _clipping_factors(self) -> torch.Tensor:
        """In place of Opacus' C/(norm + 1e-6): with the rounding margin, and over this backward pass only."""
        if self.uses.waiting:  # inputs and output gradients may not belong together, and some norms are not known
            layer = next(iter(self.uses.waiting)).name
            raise TrainingStateError(f"the losses do not depend on all uses of {layer} in the forward pass")
        squared = self.uses.squared
        if squared is None:
            raise TrainingStateError("the losses reach no trainable layer")
        if not bool(torch.isfinite(squared).all()):
            raise TrainingStateError("a sample's gradient is not finite: 0·NaN would enter the sum as NaN")
        return clip_factors(squared, self._hooks.max_grad_norm, rounding=self.rounding)


class StepLog:
    """Which logical steps and samples were used, so that no probe and no sample is used twice; nor a row of units.

    ``current``: the step that is not finished yet.
    """

    def __init__(self) -> None:
        self.current: int | None = None
        self._begun: set[int] = set()
        self._names: set[bytes] = set()
        self._before: tuple[int | None, set[bytes]] | None = None

    def check_ranks(self) -> None:
        """Raise in all processes unless they are at one step, and no sample of it was in two of them."""
        seen: list[tuple[int | None, set[bytes]]] = [(None, set())] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(seen, (self.current, self._names if self.current is not None else set()))
        steps = sorted({step for step, _ in seen if step is not None})
        if len(steps) > 1:
            raise ParameterError("step", steps, "the same number in all processes: they share its probes")
        repeated = sum(len(names) for _, names in seen) - len(set().union(*(names for _, names in seen)))
        if repeated:
            raise ParameterError("samples", repeated, "in one process only: each would be clipped and added twice")

    def enter(self, step: int, samples: Samples, rows: Samples = None) -> None:
        """Note a micro-batch; the first one of another step finishes the present one.

        ``rows``: of which the samples, units then, are made.
        """
        names = set() if samples is None else set(sample_names(samples))
        if step != self.current and step in self._begun:
            raise ParameterError("step", step, "a number that no earlier step had: its probes would come again")
        known = self._names if step == self.current else set()
        if known & names:
            kind, allowed = "samples", "samples that are not in this logical step yet"
            if rows is not None:
                kind, allowed = "units", allowed.replace("samples", "units")
                allowed += ": all rows of one in one micro-batch, or plan to run units alone"
            raise ParameterError(kind, len(known & names), allowed)
        if rows is not None:
            names |= _new_rows(rows, known)
        self._before = (self.current, self._names if step != self.current else names)
        known |= names
        self._begun.add(step)
        self.current, self._names = step, known

    def extend(self, rows: Samples) -> None:
        """Note more rows of the unit that was entered last."""
        names = _new_rows(rows, self._names)
        assert self._before is not None
        if self._before[0] == self.current:
            self._before[1].update(names)
        self._names |= names

    def undo(self) -> None:
        """Forget the last micro-batch, of which nothing is in the sum: it may be tried again."""
        assert self._before is not None
        (current, names), step = self._before, self.current
        if current == step:
            self._names -= names
        else:
            self._begun -= {step}
            self.current, self._names = current, names


def _new_rows(rows: Samples, known: set[bytes]) -> set[bytes]:
    """By names that no unit has."""
    names = {b"row" + name for name in sample_names([] if rows is None else rows)}
    if twice := known & names:
        raise ParameterError("samples that come twice", len(twice), "0: rows are of one unit, once in a logical step")
    return names
