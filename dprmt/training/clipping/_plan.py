"""Decisions before the noise is known: which norms each layer uses, and the record for the accountant."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, SupportsFloat, SupportsIndex

import torch

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.accounting import Poisson, RandomAllocation
from dprmt.training.clipping._capture import Capture
from dprmt.training.clipping._costs import (
    ESTIMATED,
    EXACT,
    StepCosts,
    StillOptimizer,
    WayCost,
    checked_losses,
    measured,
    undisturbed,
)
from dprmt.training.clipping._layer_kinds import plan_layers
from dprmt.training.clipping._norms import NormsWanted, check_rank, forms_gradients, wanted_estimator
from dprmt.training.clipping._optimizer import (
    DistributedNoisySumOptimizer,
    DistributedProjectedSumOptimizer,
    NoisySumOptimizer,
    ProjectedSumOptimizer,
)
from dprmt.training.clipping._policy import Layer, NormPolicy
from dprmt.training.clipping._refusals import check_any_model, check_model, check_optimizer
from dprmt.training.clipping._sharded_step import ShardedNoisySumOptimizer, ShardedStep
from dprmt.training.clipping._shards import is_sharded
from dprmt.training.clipping._step import REPLAY, ClippedStep
from dprmt.training.clipping._trainable_modules import trainable_modules
from dprmt.training.clipping._unit_regime import Regime, Units, check_units, choose_regime
from dprmt.training.clipping._unit_step import UnitStep
from dprmt.training.norms import (
    DEFAULT_ROUNDING,
    MEMORY_BUDGET,
    EmbeddingNormEstimator,
    LayerRecord,
    NormRecord,
    ProbeGenerator,
)
from dprmt.training.optimizers import DPGrape
from dprmt.training.randomness import SecureRandom, secret_generator
from dprmt.training.subspaces import Subspaces

SEED_BYTES = 32


@dataclass(frozen=True)
class ClippingPlan:
    """Decisions on how a model's gradients will be clipped, made before the noise is known; from :func:`plan_private`.

    Parameters
    ----------
    model : Module
        The model, without hooks.
    record : NormRecord
        The record for the accountant.
    clipping_norm, expected_batch_size : float
        Clipping norm C and expected batch size L.
    policy : NormPolicy
        How norms are obtained.
    subspaces : Subspaces or None
        Subspaces in which gradients are clipped and noised.
    distributed : bool
        Whether a process group shares each logical batch.
    replay : float
        Probability that samples of a later micro-batch run alone.
    regime : {"rows", "together", "alone"}
        "rows" for samples, "together" for units of several rows that are clipped side by side, and "alone" for units
        that run one at a time.
    reason : str
        The reason for the regime, in a sentence.
    rows_per_unit : int or None
        Largest number of rows of a unit in a logical step.

    Examples
    --------
    Plan, mechanism, σ, private model:

    >>> from dprmt.accounting import calibrate
    >>> from dprmt.training.clipping import plan_private
    >>> network = torch.nn.Linear(40, 40)
    >>> plan = plan_private(network, norms="ghost", clipping_norm=1.0, expected_batch_size=20.0)
    >>> run = plan.record.mechanism(noise_multiplier=1.0, sampling=0.01)
    >>> run
    DPSGD(1.0, Poisson(0.01))
    >>> sigma = calibrate(run, steps=100, target_epsilon=2.0, delta=1e-5).noise_multiplier
    >>> private = plan.privatize(torch.optim.SGD(network.parameters(), lr=0.1), noise_multiplier=sigma)
    >>> private.close() is network
    True
    """

    model: torch.nn.Module
    record: NormRecord
    clipping_norm: float
    expected_batch_size: float
    policy: NormPolicy
    subspaces: Subspaces | None
    distributed: bool
    replay: float = REPLAY
    regime: Regime = "rows"
    reason: str = "every row is a sample"
    rows_per_unit: int | None = None

    def noise_variance(self, noise_multiplier: float) -> float:
        """Compute (σC/L)², the variance of the noise in one entry of the gradient, for `DPAdamBC` and `DPGrape`.

        Parameters
        ----------
        noise_multiplier : float
            Noise multiplier σ >= 0.

        Returns
        -------
        float
            The variance in the units of the squared gradient.

        Raises
        ------
        ParameterError
            If σ is negative or not finite.
        """
        noise = check_real("noise_multiplier", noise_multiplier, low=0.0)
        return (noise * self.clipping_norm / self.expected_batch_size) ** 2

    def costs(
        self,
        losses: Callable[[], torch.Tensor],
        *,
        noise_multiplier: float | None = None,
        sampling: Poisson | RandomAllocation | SupportsFloat | None = None,
        steps: SupportsIndex | None = None,
        delta: float | None = None,
    ) -> StepCosts:
        """Measure time, memory and ε of a step by every norm method, this plan's or not.

        Each method takes a few private steps on synthetic rows; the first one does not count. Nothing is trained:
        parameters, gradients and the states of torch's generators are restored.

        Parameters
        ----------
        losses : callable
            The losses, shape (B,), of one micro-batch of synthetic samples, by the plan's model in training mode. It is
            called for every step.
        noise_multiplier, sampling, steps, delta : float, Poisson or RandomAllocation or float, int, float
            Noise multiplier σ, sampling scheme, number of steps T and δ of the run. Pass all of them, or none: then
            there is no ε.

        Returns
        -------
        StepCosts
            ``.ways``, ``.recommended`` and a ``.sentence``. Times exclude the optimizer's update. Estimates use 32
            secret probes, and Hutch++'s default sketch.

        Raises
        ------
        ParameterError
            If an argument is out of its range, or the plan is for units, subspaces, or several processes.
        TrainingStateError
            As :meth:`ClippedStep.accumulate` raises it for this model.

        Formal guarantees
        -----------------
        Measuring costs no privacy if the samples are synthetic: nothing else is read. ``epsilon`` is the accountant's
        upper bound for each method's record.

        Examples
        --------
        >>> network = torch.nn.Linear(40, 40)
        >>> plan = plan_private(network, norms="ghost", clipping_norm=1.0, expected_batch_size=20.0)
        >>> synthetic = torch.randn(4, 5, 40)
        >>> run = {"noise_multiplier": 1.0, "sampling": 0.01, "steps": 100, "delta": 1e-5}
        >>> found = plan.costs(lambda: network(synthetic).square().mean((1, 2)), **run)
        >>> [one.way for one in found.ways], found.ways[0].epsilon < found.ways[2].epsilon
        (['exact', 'ghost', 'hutchinson', 'hutch++'], True)
        """
        if self.regime != "rows" or self.subspaces is not None or self.distributed or self.policy.sharded:
            allowed = "of rows that are samples, whole weights and one process: other steps are not measured"
            kind = self.regime if self.regime != "rows" else "processes" if self.subspaces is None else "subspaces"
            raise ParameterError("plan", kind, allowed)
        given = {"noise_multiplier": noise_multiplier, "sampling": sampling, "steps": steps, "delta": delta}
        missing = [name for name, value in given.items() if value is None]
        if 0 < len(missing) < len(given):
            raise ParameterError(missing[0], None, "given with the others", f"pass all or none of {', '.join(given)}")
        plans = {way: self._with_norms(way) for way in (*EXACT, *ESTIMATED)}
        epsilons = {way: None if missing else _epsilon(plan.record, **given) for way, plan in plans.items()}
        device, still = next(self.model.parameters()).device, StillOptimizer(self.model)

        def plain() -> None:
            still.zero_grad()
            checked_losses(losses).sum().backward()

        found: dict[str, tuple[float, int]] = {}
        with undisturbed(self.model):
            seconds, peak = measured(plain, device)
            for way, plan in plans.items():
                if way in ESTIMATED and not plan.record.estimated:
                    found[way] = found["ghost"]  # an exact norm costs less in every layer: the same steps
                else:
                    found[way] = plan._measured(losses, device)
        ways = [WayCost(way, own, own / seconds, most, epsilons[way]) for way, (own, most) in found.items()]
        return StepCosts(ways, seconds, peak)

    def _with_norms(self, way: str) -> ClippingPlan:
        policy = replace(self.policy, estimator=wanted_estimator(way, None), form=forms_gradients(way))
        layers = _layers(self.model, policy, None)
        record = NormRecord([record for layer in layers for record in layer.records()])
        return replace(self, policy=policy, record=record)

    def _measured(self, losses: Callable[[], torch.Tensor], device: torch.device) -> tuple[float, int]:
        still, noise = StillOptimizer(self.model), torch.Generator(device)
        private, numbers = self.privatize(still, noise_multiplier=1.0, noise_generator=noise), count()

        def step() -> None:
            found = checked_losses(losses)
            private.accumulate(found, samples=range(len(found)), step=next(numbers))
            private.step()

        try:
            return measured(step, device)
        finally:
            private.close()

    def privatize(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        noise_multiplier: float,
        noise_generator: torch.Generator | SecureRandom | None = None,
    ) -> ClippedStep | UnitStep:
        """Put hooks on the model, unless units are run one at a time, and noise before the optimizer.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer
            Optimizer of all the model's trainable parameters; a `DPGrape` of the plan's subspaces, if it has any.
        noise_multiplier : float
            σ >= 0.
        noise_generator : torch.Generator or SecureRandom, optional
            On the parameters' device. By default a new one with a state from the operating system: the noise does not
            depend on ``torch.manual_seed``. Torch's generators are not cryptographic: with a
            `dprmt.training.randomness.SecureRandom` noise is from a cipher, as sums of normals. Sampling is
            for the caller: ``SecureRandom().poisson_sample(size, rate)``. Probes stay as they are.

        Returns
        -------
        ClippedStep or UnitStep
            With ``.accumulate(losses, samples=, step=)``, ``.step()``, ``.record`` and the guarantee of
            :func:`plan_private`.

        Raises
        ------
        ParameterError
            If an argument is out of its range, or the model has changed since the plan was made.
        """
        noise = check_real("noise_multiplier", noise_multiplier, low=0.0)
        if self.regime != "alone":
            check_model(self.model, whole=self.policy.whole)
        check_optimizer(self.model, optimizer)
        self._check_subspaces(optimizer)
        if is_sharded(self.model) and isinstance(optimizer, DPGrape):
            raise ParameterError("optimizer", "DPGrape", "one that moves whole gradients where parameters are sharded")
        if self.regime == "alone":
            return self._alone(optimizer, noise, noise_generator)
        layers = _layers(self.model, self.policy, self.subspaces)
        if [record for layer in layers for record in layer.records()] != list(self.record.layers):
            raise ParameterError("model", type(self.model).__name__, "as it was planned: trainable layers have changed")
        if self.distributed:
            _same_start(self.model, optimizer)
        generator = _noise_generator(optimizer) if noise_generator is None else noise_generator
        noisy = self._noisy(optimizer, noise_multiplier=noise, generator=generator)
        # Nobody needs DP-GRAPE to be more exact than clip_factors is by default.
        floor = DEFAULT_ROUNDING if isinstance(optimizer, DPGrape) else 0.0
        capture = Capture(self.model, layers, self.policy, floor=floor)
        if isinstance(noisy, ShardedNoisySumOptimizer):
            return ShardedStep(noisy, capture)
        most = self.rows_per_unit if self.regime == "together" else None
        return ClippedStep(noisy, capture, replay=self.replay, most_rows=most)

    def _alone(
        self,
        optimizer: torch.optim.Optimizer,
        noise: float,
        noise_generator: torch.Generator | SecureRandom | None,
    ) -> UnitStep:
        if [record.layer for record in self.record.layers] != _trained_names(self.model):
            raise ParameterError("model", type(self.model).__name__, "as it was planned: trainable layers have changed")
        if self.distributed:
            _same_start(self.model, optimizer)
        generator = _noise_generator(optimizer) if noise_generator is None else noise_generator
        noisy = self._noisy(optimizer, noise_multiplier=noise, generator=generator)
        return UnitStep(
            self.model, noisy, self.record, most_rows=self.rows_per_unit, projected=self.subspaces, replay=self.replay
        )

    def _check_subspaces(self, optimizer: torch.optim.Optimizer) -> None:
        if self.subspaces is not None and getattr(optimizer, "subspaces", None) is not self.subspaces:
            allowed = "a DPGrape of the plan's subspaces: its rules are SGD, Adam with weight decay, and AdamBC"
            raise ParameterError("optimizer", type(optimizer).__name__, allowed)

    def _noisy(
        self, optimizer: torch.optim.Optimizer, **options: Any
    ) -> NoisySumOptimizer | DistributedNoisySumOptimizer | ShardedNoisySumOptimizer:
        options |= {"max_grad_norm": self.clipping_norm, "expected_batch_size": self.expected_batch_size}
        if is_sharded(self.model):
            noisy = ShardedNoisySumOptimizer(optimizer, **options)
        elif not isinstance(optimizer, DPGrape):
            noisy = (DistributedNoisySumOptimizer if self.distributed else NoisySumOptimizer)(optimizer, **options)
        else:
            kind = DistributedProjectedSumOptimizer if self.distributed else ProjectedSumOptimizer
            noisy = kind(optimizer, projected=self.subspaces is not None, **options)
        noisy.keeps_sums = False
        return noisy


def plan_private(
    model: torch.nn.Module,
    *,
    norms: NormsWanted,
    clipping_norm: float,
    expected_batch_size: float,
    tokens: SupportsIndex | None = None,
    probe_generator: ProbeGenerator | None = None,
    subspaces: Subspaces | None = None,
    distributed: bool = False,
    whole: Iterable[str] = (),
    replay: float = REPLAY,
    units: Units | None = None,
    memory_budget: SupportsIndex = MEMORY_BUDGET,
) -> ClippingPlan:
    """Decide how norms will be computed, so that you can ask the accountant for σ before you make anything private.

    Parameters
    ----------
    model : Module
        In training mode. Hooks follow Linear (LoRA's too), HF's Conv1D, Embedding, convolutions, normalizations over
        single samples and Opacus' recurrent layers; their inputs and outputs have the sample as first axis. Any other
        module with parameters of its own (torch's attention and recurrent layers, DoRA, a class token) runs sample
        by sample: its forward pass takes one at a time, each with a view of the parameters, and per-sample gradients of
        all parameters in it are formed, B times their memory. Its norms are exact unless everything is estimated.
    norms : str, Norms or NormEstimator
        How per-sample norms are taken. A word: "exact" forms per-sample gradients, those that are larger than a layer's
        inputs and output gradients in blocks of at most 64 MiB (`plan_private` takes another ``memory_budget``);
        "ghost", for which ``ExactNorms()`` stands too, obtains the same norms by the cheaper of this and tokens' Gram
        matrices, T(d + p) against d·p operations for a token of a d × p layer; "hutchinson" and "hutch++" estimate them
        with 32 *secret* probes in O(k(T + d + p)) memory per sample. A value of the accountant's, such as
        ``Hutchinson(64, secret=True)`` or ``HutchPlusPlus(16, 8, secret=False)``; with a ``rank`` everything is
        estimated. Or an estimator, your own or one of `dprmt.training.norms`, with its probes. Layers whose exact norm
        costs less have exact ones, see :attr:`ClippedStep.record`, and so have embeddings, normalizations and lone
        biases.
    clipping_norm : float
        C > 0.
    expected_batch_size : float
        L > 0: the sampling rate times the size of the data set, over all processes.
    tokens : int, optional
        The largest possible T, known without looking at the data: bounds the rank that is claimed, and the
        rounding margin. By default the margin is for sums of 65,000 numbers.
    probe_generator : ProbeGenerator, optional
        Of a word's or a value's probes; a new secret by default. An estimator of one's own has its own.
    subspaces : Subspaces, optional
        Of weights whose gradients are clipped and noised in projected coordinates: those of a `DPGrape`. Without, whole
        gradients are, and a `DPGrape` projects what was released.
    distributed : bool
        Whether a process group shares each logical batch, every sample in one process. Parameters, buffers and
        the probes' secret are then rank 0's.
    whole : iterable of str
        Names of modules to run sample by sample although hooks could follow their layers, "" being the model itself:
        those around layers that see samples and tokens in one axis, or a parameter that is used in several places.
    replay : float
        Probability with which a sample of a later micro-batch is run alone, where losses are given as a function of
        the batch; some of the first micro-batch always are. Each costs one more forward pass of the batch.
    units : Units, optional
        Says that samples are units of several rows, such as all texts of a person: `Units` has what is known of them,
        and how they are clipped. ``tokens`` are a row's.
    memory_budget : int
        Bytes, >= 1: the most that is formed of a layer at once for exact norms, beside what is kept until the sum.
        Gradients that take no more than the layer's inputs and output gradients are kept in their place. Norms are the
        same. Modules that run sample by sample form all of theirs, whatever the budget.

    Returns
    -------
    ClippingPlan
        ``.record`` for the accountant, ``.privatize(optimizer, noise_multiplier=...)`` for the private step.

    Raises
    ------
    ParameterError
        If an argument is out of its range, or the model has a layer that is shared or mixes samples, or the optimizer
        has not exactly its trainable parameters; the model is as it was.
    TrainingStateError
        Later, by the private step, of a second forward pass before the first is summed, and of a module run sample by
        sample whose output for a batch is not that of its samples one by one (its state changes, an output has no
        sample axis, a packed sequence).

    Formal guarantees
    -----------------
    ``record.mechanism(σ, q)`` is the mechanism of every step of ``privatize(optimizer, noise_multiplier=σ)`` under
    Poisson sampling with rate q, as follows.

    Let g_i be the gradient of sample i's loss over the factors that the backward pass delivers: Σ_t of products of
    a layer's inputs and output gradients as they are stored, whatever the model's dtype. ``.step()`` gives the
    optimizer

        (Σ_i c_i g_i + σC·N(0, I)) / L,    c_i = min(1, (1-ρ)C/√n̂_i),

    the sum over all micro-batches since the last step, noise drawn once, L the *expected* batch size, and c_i = 0
    with g_i left out of the sum altogether where n̂_i is not finite. n̂_i is ‖g_i‖² for exact norms, and else has
    the law that ``record.mechanism(...)`` states. ρ is ``rounding_margin`` of the longest sum that the model and
    ``tokens`` allow, never of the present batch, so that a sample's factor does not depend on others. Hence
    ‖c_i g_i‖ <= C·Z_i with Z_i the accountant's sensitivity (1 for exact norms) up to what follows.

    Covered: rounding of the norms (in float32 or float64, sums of squares in float64) under the "statistical" model
    of :func:`rounding_margin`. Ghost norms also have the errors of differences of squares added. The sum is formed
    in float32 or better from the very factors whose norms were taken; there is no second backward pass, so that
    rounding in the forward and backward passes, bfloat16 included, changes g_i but not the claim about it.

    Not covered: rounding of the additions in the sum itself, relative 2⁻²⁴ (float32) of partial sums, which hold other
    samples too; without a ``SecureRandom`` the floating-point noise (Mironov 2012) and torch's generator; what the
    model does between samples beyond what is looked at (`ClippedStep.accumulate`): gradients of the first micro-batch
    of two or more, and samples run alone where losses are given as a function of the batch; identities that name the
    data set's samples wrongly, such as positions in a batch; a sample in two processes.
    Rounding in a sample's forward pass may depend on the batch it is in (padding, the shapes of products); it is taken
    to be the sample's own.
    Without ``tokens`` the present T also decides by which formula an exact norm is taken.

    DP-GRAPE (arXiv:2506.15588, section 3.2). Let P be the projector of a weight and a period, m × r, and read PᵀG_i
    (r × n) for G_i in all of the above. *Proof.* Fix everything that was released before step t and the seed of the
    subspaces. Then P is fixed in every weight: random projectors are a function of (seed, weight, period), singular
    vectors one of a released gradient. So is the map that takes a sample to its projected and unprojected gradients,
    since the weights are a function of what was released; its value is clipped over all coordinates at once, so a
    sample moves the sum by at most C·Z_i for *every* P, of any norm. The division by L, denoising, the moments, the
    lift by P and the choice of the next subspace use released values and public numbers alone: post-processing. Steps
    compose adaptively. ∎ In the first step of a period of "svd" the same holds with whole gradients. The rounding
    margin is then at least 2⁻¹³. Probes are independent of P, and the matrices whose norms are estimated are the
    projected ones.

    Examples
    --------
    >>> from dprmt.accounting import Hutchinson
    >>> plan = plan_private(
    ...     torch.nn.Linear(40, 40), norms=Hutchinson(8, secret=False), clipping_norm=1.0, expected_batch_size=20.0
    ... )
    >>> plan.record.norms, plan.noise_variance(5.0)
    (Hutchinson(8, secret=False, rank=40), 0.0625)
    """
    bound = check_real("clipping_norm", clipping_norm, low=0.0, low_open=True)
    size = check_real("expected_batch_size", expected_batch_size, low=0.0, low_open=True)
    largest = None if tokens is None else check_count("tokens", tokens)
    rate, budget = check_real("replay", replay, low=0.0, high=1.0), check_count("memory_budget", memory_budget)
    _check_process_group(distributed)
    generator = _shared_generator() if distributed and probe_generator is None else probe_generator
    names, estimator = frozenset(whole), wanted_estimator(norms, generator)
    rows = None if units is None else check_units(units).rows_per_unit
    regime: tuple[Regime, str, int | None] = ("rows", ClippingPlan.reason, None)
    if is_sharded(model):
        check_any_model(model)
        for argument, value in (("units", units), ("subspaces", subspaces), ("whole", names or None)):
            if value is not None:
                fix = f"remove {argument}, or do not shard the model"
                raise ParameterError(argument, type(value).__name__, "left out where parameters are sharded", fix)
        if isinstance(estimator, EmbeddingNormEstimator) and estimator.everything:
            raise ParameterError("norms", norms, "without a rank where parameters are sharded")
    if units is not None:
        regime = (*choose_regime(units, largest), rows)
    if regime[0] == "alone":
        check_any_model(model)
        policy = NormPolicy(None, None)
        record = NormRecord([LayerRecord(name) for name in _trained_names(model)])
        return ClippingPlan(model, record, bound, size, policy, subspaces, bool(distributed), rate, *regime)
    check_model(model, whole=names)
    if largest is not None and rows is not None:
        largest *= rows  # a unit's gradient has the rank, and the rounding, of all its rows' tokens
    policy = NormPolicy(estimator, largest, forms_gradients(norms), names, budget, sharded=is_sharded(model))
    record = NormRecord([record for layer in _layers(model, policy, subspaces) for record in layer.records()])
    check_rank(norms, record)
    return ClippingPlan(model, record, bound, size, policy, subspaces, bool(distributed), rate, *regime)


def _epsilon(record: NormRecord, noise_multiplier: Any, sampling: Any, steps: Any, delta: Any) -> float:
    return float(record.mechanism(noise_multiplier, sampling).epsilon(steps=steps, delta=delta).upper)


def _trained_names(model: torch.nn.Module) -> list[str]:
    return [name for name, value in model.named_parameters() if value.requires_grad]


def _layers(model: torch.nn.Module, policy: NormPolicy, subspaces: Subspaces | None) -> list[Layer]:
    return plan_layers(trainable_modules(model, policy.whole), policy, subspaces)


def _shared_generator() -> ProbeGenerator:
    seed = [secrets.token_bytes(SEED_BYTES)]
    torch.distributed.broadcast_object_list(seed, src=0)
    return ProbeGenerator(seed[0])


def _check_process_group(distributed: bool) -> None:
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and not several:
        raise ParameterError("distributed", True, "False without torch.distributed.init_process_group")
    if several and not distributed and (size := torch.distributed.get_world_size()) > 1:
        raise ParameterError("distributed", False, f"True in a process group of {size}, each of which would add noise")


def _same_start(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            if hasattr(value, "device_mesh"):
                continue  # a shard is where it is
            torch.distributed.broadcast(value, src=0)
    if isinstance(optimizer, DPGrape):
        state = [optimizer.subspaces.state_dict()]
        torch.distributed.broadcast_object_list(state, src=0)
        optimizer.subspaces.load_state_dict(state[0])


def _noise_generator(optimizer: torch.optim.Optimizer) -> torch.Generator:
    devices = {value.device for group in optimizer.param_groups for value in group["params"] if value.requires_grad}
    if len(devices) > 1:
        raise ParameterError("model", sorted(map(str, devices)), "on one device")
    return secret_generator(devices.pop())
