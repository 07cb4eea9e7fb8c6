"""Estimated norms in a training loop of Opacus': by its hooks, or in a few changed lines by its engine."""

from __future__ import annotations

from typing import Any, SupportsIndex

from opacus.data_loader import DPDataLoader
from opacus.grad_sample import GradSampleHooksFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping

from dprmt._validation import ParameterError, check_count
from dprmt.accounting.opacus import register
from dprmt.training.clipping._layer_kinds import plan_layers
from dprmt.training.clipping._plan import new_estimator
from dprmt.training.clipping._policy import NormPolicy
from dprmt.training.clipping._refusals import check_model
from dprmt.training.clipping._samplers import NormSamplers
from dprmt.training.clipping._trainable_modules import is_followed, trainable_modules
from dprmt.training.norms import NormEstimator, NormRecord, ProbeSharing

_NAME = "randomized_clipping_of_estimate_norms"


def register_norm_samplers(
    hooks: GradSampleHooksFastGradientClipping,
    norms: NormEstimator,
    *,
    tokens: SupportsIndex | None = None,
    estimate_all: bool = False,
    accountant: Any = None,
) -> NormSamplers:
    """Let Opacus' fast gradient clipping estimate norms, for this model only.

    For a training loop of one's own with ``DPLossFastGradientClipping``; :func:`make_private` does the rest too.

    Parameters
    ----------
    hooks : GradSampleModuleFastGradientClipping or GradSampleHooksFastGradientClipping
        Around the model, made with ``use_ghost_clipping=True``. Other models of the process keep Opacus' samplers.
    norms : NormEstimator
        The estimator, with its probes.
    tokens : int, optional
        The largest possible T, known without looking at the data: bounds the rank and the rounding margin. By
        default the margin is for sums of 65,000 numbers.
    estimate_all : bool
        By default layers with min(d, p) <= k (LoRA's), embeddings, normalizations and lone biases are exact, which
        costs less, and no finite rank is claimed. True estimates everything by Hutchinson.
    accountant : IAccountant or "mine", optional
        The engine's (``PrivacyEngine.accountant``): refused unless it accounts for these very norms, as one of
        ``dprmt.accounting.opacus.register`` with the same probes does. By default it is found when the optimizer
        first steps, and asked then; if none has counted the first step that knows of these norms, as with Opacus' own
        accountants, the second step is refused. "mine" is for a count of one's own, by ``.record``, which nothing is
        compared with.

    Returns
    -------
    NormSamplers
        ``.at(step=, samples=)`` around ``loss.backward()``, ``.record`` for the accountant, ``.remove()``.

    Raises
    ------
    ParameterError
        If the model has a layer that is unsupported, shared or mixes samples; the layer is named. If the accountant
        accounts for other norms.

    Formal guarantees
    -----------------
    The clip factors that Opacus uses become those of ``clip_factors`` with the rounding margin, of norms of the law
    that ``record.mechanism(...)`` states. Opacus' loop forms the sum by a second backward pass in the model's
    dtype, whose rounding is **not** covered, sums micro-batches in that dtype, and cannot leave out a sample whose
    norm is not finite: this is refused with an error. :func:`make_private` covers these.

    Examples
    --------
    >>> import torch
    >>> from opacus.grad_sample import GradSampleModuleFastGradientClipping
    >>> from dprmt.training.norms import Hutchinson
    >>> model = GradSampleModuleFastGradientClipping(torch.nn.Linear(40, 40), max_grad_norm=1.0)
    >>> samplers = register_norm_samplers(model, Hutchinson(probes=8), tokens=5)
    >>> losses = model(torch.ones(2, 5, 40)).sum((1, 2))
    >>> with samplers.at(step=0, samples=[17, 4]):
    ...     losses.mean().backward()
    ...     model.get_clipping_coef().shape
    torch.Size([2])
    >>> samplers.record.layers
    (LayerRecord(layer='model', method='hutchinson', probes=8, rank=5, sketch=None, power_iteration=False),)
    >>> samplers.remove()
    """
    if not isinstance(hooks, GradSampleHooksFastGradientClipping):
        raise ParameterError("hooks", type(hooks).__name__, "Opacus' GradSampleModuleFastGradientClipping")
    if not hooks.use_ghost_clipping or "NORM_SAMPLERS" in hooks.__dict__:
        raise ParameterError("hooks", type(hooks).__name__, "with use_ghost_clipping=True and no norm samplers yet")
    if not isinstance(norms, NormEstimator):
        raise ParameterError("norms", type(norms).__name__, "a NormEstimator, such as Hutchinson(probes=32)")
    largest = None if tokens is None else check_count("tokens", tokens)
    check_model(hooks._module, hooked=True)
    modules = trainable_modules(hooks._module)
    for name, module in modules.items():
        if not is_followed(module):
            allowed = "made of layers that Opacus' hooks can follow: make_private takes others"
            raise ParameterError("model", f"{name}: {type(module).__name__}", allowed)
    policy = NormPolicy(norms, estimate_all, largest)
    layers = plan_layers(modules, policy)
    samplers = NormSamplers(hooks, layers, policy, norms.probe_sharing)
    try:
        samplers.account_with(accountant)
    except ParameterError:
        samplers.remove()
        raise
    return samplers


def estimate_norms(
    engine: Any,
    model: GradSampleHooksFastGradientClipping,
    optimizer: DPOptimizerFastGradientClipping,
    data_loader: DPDataLoader,
    *,
    clipping: str | NormEstimator = "hutchinson",
    probes: SupportsIndex = 32,
    sketch: SupportsIndex | None = None,
    power_iteration: bool = True,
    probe_sharing: ProbeSharing = "batch",
    tokens: SupportsIndex | None = None,
    estimate_all: bool = False,
) -> NormSamplers:
    """Estimate norms in a script that has just called Opacus' ``make_private(..., grad_sample_mode="ghost")``.

    The engine gets an accountant that knows of these norms. In the loop, ``loss.backward()`` goes into
    ``with samplers.at(step=len(engine.accountant)):``, which with `BatchMemoryManager` too is the number of the logical
    step.

    Parameters
    ----------
    engine : PrivacyEngine
        Whose accountant has counted nothing yet.
    model, optimizer, data_loader
        As ``make_private`` gave them, with Poisson sampling.
    clipping : {"hutchinson", "hutch++"} or NormEstimator
        As in `make_private`; an estimator of one's own brings the next four.
    probes, sketch, power_iteration, tokens, estimate_all
        As in `make_private`.
    probe_sharing : {"batch", "sample"}
        "sample" asks for the samples' identities in ``samplers.at(step=..., samples=...)``.

    Returns
    -------
    NormSamplers
        ``.at(step=, samples=)``, ``.record``, ``.remove()``.

    Raises
    ------
    ParameterError
        As `register_norm_samplers` does; if steps were counted already, or batches are not Poisson's.

    Formal guarantees
    -----------------
    Those of `register_norm_samplers`; ``engine.get_epsilon(delta)`` is then the certified upper bound of
    `dprmt.accounting.opacus.register` for the mechanism of ``samplers.record``, at the rate that Opacus records.

    Examples
    --------
    >>> import torch, warnings
    >>> from opacus import PrivacyEngine
    >>> network = torch.nn.Linear(40, 40)
    >>> data = torch.utils.data.TensorDataset(torch.ones(20, 40), torch.arange(20))
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # Opacus says that its random numbers are torch's
    ...     engine = PrivacyEngine()
    ...     model, optimizer, criterion, loader = engine.make_private(
    ...         module=network,
    ...         optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
    ...         criterion=torch.nn.CrossEntropyLoss(),
    ...         data_loader=torch.utils.data.DataLoader(data, batch_size=5),
    ...         noise_multiplier=1.0,
    ...         max_grad_norm=1.0,
    ...         grad_sample_mode="ghost",
    ...     )
    >>> samplers = estimate_norms(engine, model, optimizer, loader, probes=16)
    >>> samplers.record.mechanism(noise_multiplier=1.0, sample_rate=0.25).probes
    16
    """
    if not isinstance(data_loader, DPDataLoader):
        allowed = "the DPDataLoader of make_private(..., poisson_sampling=True)"
        raise ParameterError("data_loader", type(data_loader).__name__, allowed)
    if not isinstance(optimizer, DPOptimizerFastGradientClipping):
        allowed = 'the optimizer of make_private(..., grad_sample_mode="ghost")'
        raise ParameterError("optimizer", type(optimizer).__name__, allowed)
    if len(engine.accountant):
        raise ParameterError("engine", f"{len(engine.accountant)} steps counted", "one that has counted no step yet")
    norms = new_estimator(clipping, probes, sketch, power_iteration, probe_sharing)
    samplers = register_norm_samplers(model, norms, tokens=tokens, estimate_all=estimate_all)
    if samplers.record.probes is not None:
        engine.accountant = _accountant(samplers.record)
        optimizer.attach_step_hook(engine.accountant.get_optimizer_hook_fn(sample_rate=1 / len(data_loader)))
    samplers.account_with(engine.accountant)
    return samplers


def _accountant(record: NormRecord) -> Any:
    stated: Any = {
        "probes": record.probes,
        "rank": record.rank,
        "probe_sharing": record.probe_sharing,
        "sketch": record.sketch,
        "power_iteration": record.power_iteration,
    }
    return register(**stated, name=_NAME)()
