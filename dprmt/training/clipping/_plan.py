"""Decisions before the noise is known: which norms each layer uses, and the record for the accountant."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, SupportsFloat, SupportsIndex

import torch
import torch.utils.benchmark
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dprmt._rounding import round_up
from dprmt._validation import ParameterError, check_count, check_real
from dprmt.accounting import ExactNorms, Hutchinson, Poisson, RandomAllocation, ZeroOut
from dprmt.training.clipping._capture import Capture
from dprmt.training.clipping._formed_layers import Layer, NormPolicy
from dprmt.training.clipping._matrix_layers import NormsWanted, plan_layers, wanted_estimator
from dprmt.training.clipping._modules import (
    Trained,
    check_any_model,
    check_modules,
    check_optimizer,
    is_sharded,
    trainable_modules,
)
from dprmt.training.clipping._optimizer import NoisySumOptimizer
from dprmt.training.clipping._shards import ShardedStep
from dprmt.training.clipping._step import REPLAY, ClippedStep
from dprmt.training.clipping._unit_step import UnitStep
from dprmt.training.clipping._units import Regime, Units, choose_regime
from dprmt.training.norms import LayerRecord, NormRecord, ProbeGenerator
from dprmt.training.norms._clipping import DEFAULT_ROUNDING
from dprmt.training.norms._estimators import HutchinsonEstimator
from dprmt.training.optimizers import DPGrape
from dprmt.training.randomness import SecureRandom, secret_generator
from dprmt.training.subspaces import Subspaces


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
    modules : mapping of str to Trained
        Trainable modules, in which gradients are formed; none where units run alone.
    layers : sequence of Layer
        How each trainable layer is normed and summed; none where units run alone.
    trained : mapping of str to Parameter
        The trainable parameters, which must be the same when the noise is known.

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
    modules: Mapping[str, Trained] = field(default_factory=dict)
    layers: Sequence[Layer] = ()
    trained: Mapping[str, torch.nn.Parameter] = field(default_factory=dict)

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
        noise_multiplier: float,
        sampling: Poisson | RandomAllocation | SupportsFloat,
        steps: int,
        delta: float,
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
            Noise multiplier σ, sampling scheme, number of steps T and δ of the run.

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
        still = torch.optim.SGD([value for value in self.model.parameters() if value.requires_grad], lr=0.0)
        device = next(self.model.parameters()).device

        def plain() -> None:
            still.zero_grad()
            losses().sum().backward()

        ways: list[WayCost] = []
        with undisturbed(self.model):
            seconds, peak = measured(plain, device)
            for way in (*EXACT, *ESTIMATED):
                policy = replace(self.policy, estimator=wanted_estimator(way, None), form=way == "exact")
                layers = plan_layers(self.modules, policy)
                plan = replace(self, policy=policy, layers=layers, record=_record(layers))
                if way in ESTIMATED and not plan.record.estimated:
                    own, most = ways[1].seconds, ways[1].peak  # an exact norm costs less in every layer: the same steps
                else:
                    own, most = plan._measured(losses, still, device)
                epsilon = plan.record.mechanism(noise_multiplier, sampling).epsilon(steps=steps, delta=delta)
                ways.append(WayCost(way, own, own / seconds, most, epsilon.upper))
        return StepCosts(ways, seconds, peak)

    def _measured(
        self, losses: Callable[[], torch.Tensor], still: torch.optim.Optimizer, device: torch.device
    ) -> tuple[float, int]:
        noise = torch.Generator(device)
        private, numbers = self.privatize(still, noise_multiplier=1.0, noise_generator=noise), count()

        def step() -> None:
            found = losses()
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
            Noise multiplier σ >= 0.
        noise_generator : torch.Generator or SecureRandom, optional
            By default a new generator, seeded by the operating system: the noise does not depend on
            ``torch.manual_seed``. Only `dprmt.training.randomness.SecureRandom` is cryptographic. Draw batches with
            ``SecureRandom().poisson_sample(size, rate)``.

        Returns
        -------
        ClippedStep or UnitStep
            A private step with the guarantee of :func:`plan_private`.

        Raises
        ------
        ParameterError
            If an argument is out of its range, or the model has changed since the plan was made.
        """
        noise = check_real("noise_multiplier", noise_multiplier, low=0.0)
        present = trained_parameters(self.model)
        if present.keys() != self.trained.keys() or any(present[name] is not self.trained[name] for name in present):
            found = type(self.model).__name__
            raise ParameterError("model", found, "as it was planned: trainable parameters have changed")
        check_optimizer(self.model, optimizer)
        if self.subspaces is not None and getattr(optimizer, "subspaces", None) is not self.subspaces:
            allowed = "a DPGrape of the plan's subspaces: its rules are SGD, Adam with weight decay, and AdamBC"
            raise ParameterError("optimizer", type(optimizer).__name__, allowed)
        if self.policy.sharded and isinstance(optimizer, DPGrape):
            raise ParameterError("optimizer", "DPGrape", "one that moves whole gradients where parameters are sharded")
        if self.distributed:
            _same_start(self.model, optimizer)
        if noise_generator is None:
            devices = {value.device for value in self.trained.values()}
            if len(devices) > 1:
                raise ParameterError("model", sorted(map(str, devices)), "on one device")
            noise_generator = secret_generator(devices.pop())
        noisy = NoisySumOptimizer(
            optimizer,
            shared=self.distributed,
            projected=self.subspaces is not None,
            noise_multiplier=noise,
            max_grad_norm=self.clipping_norm,
            expected_batch_size=self.expected_batch_size,
            generator=noise_generator,
        )
        noisy.keeps_sums = False
        if self.regime == "alone":
            return UnitStep(self.model, noisy, self.record, projected=self.subspaces, replay=self.replay)
        # Nobody needs DP-GRAPE to be more exact than clip_factors is by default.
        floor = DEFAULT_ROUNDING if isinstance(optimizer, DPGrape) else 0.0
        capture = Capture(self.model, self.layers, self.policy, self.record, floor=floor)
        if self.policy.sharded:
            return ShardedStep(noisy, capture)
        return ClippedStep(noisy, capture, replay=self.replay)


def plan_private(
    model: torch.nn.Module,
    *,
    norms: NormsWanted,
    clipping_norm: float,
    expected_batch_size: float,
    tokens: SupportsIndex | None = None,
    probe_generator: ProbeGenerator | None = None,
    subspaces: Subspaces | None = None,
    whole: Iterable[str] = (),
    replay: float = REPLAY,
    units: Units | None = None,
) -> ClippingPlan:
    """Plan how per-sample norms are computed, before you choose the noise.

    The processes of a process group share each logical batch, with every sample in one process.

    Parameters
    ----------
    model : Module
        Model in training mode, with samples as first axis. Modules that hooks cannot follow run one sample at a time,
        which needs more memory.
    norms : str, Norms or NormEstimator
        Norm method. "exact" forms per-sample gradients; "ghost" computes the same norms by Gram matrices where that is
        cheaper; "hutchinson" and "hutch++" estimate them with 32 *secret* probes. Layers whose exact norm is cheaper
        stay exact, unless the value has a ``rank``.
    clipping_norm : float
        Largest norm C > 0 of a sample's gradient in the sum.
    expected_batch_size : float
        L > 0: sampling rate times the size of the data set, over all processes. Not the size of the drawn batch.
    tokens : int, optional
        Largest possible number of tokens, known without looking at the data; it bounds the rank and the rounding
        margin.
    probe_generator : ProbeGenerator, optional
        Source of probes for ``norms`` given by name or value; a new secret by default.
    subspaces : Subspaces, optional
        The subspaces of a `DPGrape`, in which gradients of its weights are clipped and noised.
    whole : iterable of str
        Names of modules to run sample by sample, "" for the whole model.
    replay : float
        Probability in [0, 1] of an isolation check of a later micro-batch; the first one is always checked.
    units : Units, optional
        Units of privacy with several rows.

    Returns
    -------
    ClippingPlan
        ``.record`` for the accountant, ``.privatize`` for the private step.

    Raises
    ------
    ParameterError
        If an argument is out of its range, or a layer is shared or mixes samples; the model is not changed.
    TrainingStateError
        During training, if a module's output for a batch differs from its outputs for single samples.

    Privacy
    -------
    Holds if: each loss depends on one sample, ``samples`` are identities in the data set, and each sample is in one
    process. Covers: ``record.mechanism(σ, q)`` for steps (Σ_i c_i g_i + σC·N(0, I)) / L with c_i = min(1,
    (1-ρ)C/√n̂_i), rounding of the norms included. Does not cover: rounding of the sum, floating-point noise without a
    ``SecureRandom``, and mixing that no isolation check finds. Proof: ``docs/theory/randomized_clipping.md``; for
    DP-GRAPE ``docs/how_to/dp_grape.md``.

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
    rate = check_real("replay", replay, low=0.0, high=1.0)
    check_any_model(model)
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    distributed = distributed and torch.distributed.get_world_size() > 1
    generator = _shared_generator() if distributed and probe_generator is None else probe_generator
    estimator, taken = wanted_estimator(norms, generator), list(whole)
    if not isinstance(units, Units | None):
        raise ParameterError("units", units, "dprmt.training.clipping's Units(...), or None: every row is a sample")
    is_spread = is_sharded(model)
    if is_spread:
        ranked = norms if isinstance(estimator, HutchinsonEstimator) and estimator.everything else None
        _refuse_where_sharded(units=units, subspaces=subspaces, whole=taken or None, norms=ranked)
    regime, reason = ClippingPlan.regime, ClippingPlan.reason
    if units is not None:
        regime, reason = choose_regime(units, largest)
    trained = trained_parameters(model)
    if regime == "alone":
        modules, layers, policy = {}, [], NormPolicy()
        record = NormRecord([LayerRecord(name) for name in trained])
    else:
        modules = trainable_modules(model, taken)
        check_modules(model, modules)
        if largest is not None and units is not None and units.rows_per_unit is not None:
            largest *= units.rows_per_unit  # a unit's gradient has the rank, and the rounding, of all its rows' tokens
        form = not isinstance(norms, ExactNorms) and getattr(norms, "kind", norms) == "exact"
        policy = NormPolicy(estimator, largest, form, sharded=is_spread)
        layers = plan_layers(modules, policy, subspaces)
        record = _record(layers)
    if isinstance(norms, Hutchinson) and norms.rank is not None:
        least = getattr(record.norms, "rank", None)
        if least is None or least > norms.rank:
            what = "None" if least is None else f"at least {least}, that of all layers' shapes together"
            raise ParameterError("norms.rank", norms.rank, what)
    options = (subspaces, distributed, rate, regime, reason, modules, layers, trained)
    return ClippingPlan(model, record, bound, size, policy, *options)


def trained_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the trainable parameters by name."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _refuse_where_sharded(**options: Any) -> None:
    for argument, value in options.items():
        if value is not None:
            allowed = "without a rank" if argument == "norms" else "left out"
            fix = f"change {argument}, or do not shard the model"
            raise ParameterError(argument, type(value).__name__, f"{allowed} where parameters are sharded", fix)


def _record(layers: Sequence[Layer]) -> NormRecord:
    return NormRecord([record for layer in layers for record in layer.records])


def _shared_generator() -> ProbeGenerator:
    seed = [secrets.token_bytes(32)]
    torch.distributed.broadcast_object_list(seed, src=0)
    return ProbeGenerator(seed[0])


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


# Measured cost of private steps by each norm method: time, memory and ε, on synthetic rows.


class TensorMemory(TorchDispatchMode):  # type: ignore[misc]  # torch is skipped by mypy
    """Count of the bytes of all tensor storages that operations allocate within the context, backward passes included.

    Storages count from the operation that returns them until nothing refers to them; views add nothing. Memory that
    kernels allocate and free inside one operation is not counted, and neither is earlier memory unless it is in
    ``known``.

    Parameters
    ----------
    known : iterable of Tensor
        Tensors to count from the start, such as the parameters.

    Attributes
    ----------
    live, peak : int
        Bytes now, and the most so far.
    largest : int
        Bytes of the largest storage allocated in the context.

    Examples
    --------
    >>> with TensorMemory() as memory:
    ...     x = torch.zeros(1000)
    ...     y = (x + 1)[:10]
    ...     del x
    >>> memory.peak, memory.live
    (8000, 4000)
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = self.largest = 0
        self._sizes: dict[int, int] = {}
        for tensor in known:
            self._count(tensor)
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it returns."""
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and id(leaf.untyped_storage()) not in inputs:
                self._count(leaf)
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._sizes:
            return
        size = storage.nbytes()
        self._sizes[key] = size
        self.live += size
        self.peak, self.largest = max(self.peak, self.live), max(self.largest, size)
        weakref.finalize(storage, self._forget, key).atexit = False

    def _forget(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)


EXACT, ESTIMATED = ("exact", "ghost"), ("hutchinson", "hutch++")


@dataclass(frozen=True)
class WayCost:
    """Cost of a step by one norm method.

    Attributes
    ----------
    way : str
        The norm method, an argument of `plan_private`.
    seconds : float
        The fastest step on one micro-batch.
    time : float
        ``seconds`` divided by the seconds of a step without privacy.
    peak : int
        Peak memory in bytes, beyond the memory before the step.
    epsilon : float
        An upper bound on the run's ε.
    """

    way: str
    seconds: float
    time: float
    peak: int
    epsilon: float


@dataclass(frozen=True)
class StepCosts:
    """Cost of a step by every norm method, and a recommendation; from :meth:`ClippingPlan.costs`.

    Attributes
    ----------
    ways : sequence of WayCost
        Exact methods first.
    plain_seconds : float
        Seconds of a step without privacy.
    plain_peak : int
        Peak memory in bytes of this step.
    neighbours : str
        Neighbouring relation of every ε.
    """

    ways: Sequence[WayCost]
    plain_seconds: float
    plain_peak: int
    neighbours: str = ZeroOut.kind

    @property
    def recommended(self) -> WayCost:
        """The fastest exact one, unless an estimate that costs at most 5 % more ε takes 10 % less time of a step."""
        exact, estimated = self._fastest()
        pays = exact.time > 1.1 * estimated.time and estimated.epsilon <= 1.05 * exact.epsilon
        return estimated if pays else exact

    @property
    def sentence(self) -> str:
        """Recommended method, and how the best one of the other kind compares."""
        taken = self.recommended
        other = next(one for one in self._fastest() if one is not taken)
        share = round(100 * (taken.time / other.time - 1))
        pace = f"{abs(share)} % {'slower' if share > 0 else 'faster'} than" if share else "as fast as"
        ε = f"ε {round_up(taken.epsilon, 3)} against {round_up(other.epsilon, 3)}"
        return f"{taken.way}: {pace} {other.way}, {ε}"

    def _fastest(self) -> tuple[WayCost, WayCost]:
        """Return the fastest exact method, and the fastest estimate, of those with at most 5 % more ε if there are
        any.
        """
        exact = min((one for one in self.ways if one.way in EXACT), key=lambda one: one.time)
        estimates = [one for one in self.ways if one.way in ESTIMATED]
        cheap = [one for one in estimates if one.epsilon <= 1.05 * exact.epsilon]
        return exact, min(cheap or estimates, key=lambda one: one.time)

    def rows(self) -> list[list[str]]:
        """Return rows of a table: method, time over a plain step, seconds, MiB at the peak, ε."""
        return [
            [one.way, f"{one.time:.2f}", f"{one.seconds:.3g}", f"{one.peak / 2**20:.3g}", round_up(one.epsilon, 3)]
            for one in self.ways
        ]


@contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Give the gradients of the model and the states of torch's generators back at the end."""
    kept = [(value, value.grad) for value in model.parameters()]
    devices = sorted({value.device.index for value, _ in kept if value.is_cuda})
    try:
        with torch.random.fork_rng(devices):
            for value, _ in kept:
                value.grad = None
            yield
    finally:
        for value, gradient in kept:
            value.grad = gradient


def measured(step: Callable[[], None], device: torch.device) -> tuple[float, int]:
    """Measure seconds of the fastest step, and peak bytes; the first step, with its checks, does not count."""
    gpu = device.type == "cuda"
    step()
    if gpu:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    with nullcontext() if gpu else TensorMemory() as memory:
        step()
    peak = memory.peak if memory is not None else int(torch.cuda.max_memory_allocated(device) - before)
    timer = torch.utils.benchmark.Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=0.1).times), peak
