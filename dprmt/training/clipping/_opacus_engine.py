"""Estimated norms in a training loop of Opacus': by its hooks, or in a few changed lines by its engine."""

from __future__ import annotations

from typing import Any, SupportsIndex

from opacus.data_loader import DPDataLoader
from opacus.grad_sample import GradSampleHooksFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping

from dprmt._validation import ParameterError, TrainingStateError, check_count
from dprmt.accounting import Hutchinson, Norms
from dprmt.accounting.opacus import register
from dprmt.training.clipping._layer_kinds import plan_layers
from dprmt.training.clipping._norms import check_rank, wanted_estimator
from dprmt.training.clipping._policy import NormPolicy
from dprmt.training.clipping._refusals import check_model
from dprmt.training.clipping._samplers import NormSamplers
from dprmt.training.clipping._trainable_modules import is_followed, trainable_modules
from dprmt.training.norms import NormEstimator, NormRecord

_NAME = "randomized_clipping_of_estimate_norms"


def register_norm_samplers(
    hooks: GradSampleHooksFastGradientClipping,
    norms: Norms | NormEstimator,
    *,
    tokens: SupportsIndex | None = None,
    accountant: Any = None,
) -> NormSamplers:
    """Let Opacus' fast gradient clipping estimate norms, for this model only.

    For a training loop of one's own with ``DPLossFastGradientClipping``; :func:`make_private` does the rest too.

    Parameters
    ----------
    hooks : GradSampleModuleFastGradientClipping or GradSampleHooksFastGradientClipping
        Around the model, made with ``use_ghost_clipping=True``. Other models of the process keep Opacus' samplers.
    norms : Hutchinson, HutchPlusPlus or NormEstimator
        A value of `dprmt.accounting`, with probes of a new secret; or an estimator, with its own.
    tokens : int, optional
        The largest possible T, known without looking at the data: bounds the rank and the rounding margin. By
        default the margin is for sums of 65,000 numbers.
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
    >>> from dprmt.accounting import Hutchinson
    >>> model = GradSampleModuleFastGradientClipping(torch.nn.Linear(40, 40), max_grad_norm=1.0)
    >>> samplers = register_norm_samplers(model, Hutchinson(8, secret=False), tokens=5)
    >>> losses = model(torch.ones(2, 5, 40)).sum((1, 2))
    >>> with samplers.at(step=0):
    ...     losses.mean().backward()
    ...     model.get_clipping_coef().shape
    torch.Size([2])
    >>> samplers.record.layers
    (LayerRecord(layer='model', norms=Hutchinson(8, secret=False, rank=5)),)
    >>> samplers.remove()
    """
    if not isinstance(hooks, GradSampleHooksFastGradientClipping):
        raise ParameterError("hooks", type(hooks).__name__, "Opacus' GradSampleModuleFastGradientClipping")
    if not hooks.use_ghost_clipping or "NORM_SAMPLERS" in hooks.__dict__:
        raise ParameterError("hooks", type(hooks).__name__, "with use_ghost_clipping=True and no norm samplers yet")
    estimator = wanted_estimator(norms, None)
    if estimator is None:
        raise ParameterError(
            "norms", norms, "estimated, as by Hutchinson(32, secret=False): Opacus' ghost clipping is exact already"
        )
    largest = None if tokens is None else check_count("tokens", tokens)
    check_model(hooks._module, hooked=True)
    modules = trainable_modules(hooks._module)
    for name, module in modules.items():
        if not is_followed(module):
            allowed = "made of layers that Opacus' hooks can follow: make_private takes others"
            raise ParameterError("model", f"{name}: {type(module).__name__}", allowed)
    policy = NormPolicy(estimator, largest)
    samplers = NormSamplers(hooks, plan_layers(modules, policy), policy)
    try:
        check_rank(norms, samplers.record)
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
    norms: Norms | NormEstimator = Hutchinson(32, secret=False),
    tokens: SupportsIndex | None = None,
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
    norms : Hutchinson, HutchPlusPlus or NormEstimator
        As in `register_norm_samplers`: a value's probes are public unless it says ``secret=True``, which asks for the
        samples' identities in ``samplers.at(step=..., samples=...)``.
    tokens : int, optional
        As in `make_private`.

    Returns
    -------
    NormSamplers
        ``.at(step=, samples=)``, ``.record``, ``.remove()``.

    Raises
    ------
    ParameterError
        As `register_norm_samplers` does; if batches are not Poisson's.
    TrainingStateError
        If steps were counted already.

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
    >>> samplers = estimate_norms(engine, model, optimizer, loader, norms=Hutchinson(16, secret=False))
    >>> samplers.record.norms
    Hutchinson(16, secret=False, rank=40)
    """
    if not isinstance(data_loader, DPDataLoader):
        allowed = "the DPDataLoader of make_private(..., poisson_sampling=True); what shuffles and cuts is FixedOrder()"
        raise ParameterError("data_loader", type(data_loader).__name__, allowed)
    if not isinstance(optimizer, DPOptimizerFastGradientClipping):
        allowed = 'the optimizer of make_private(..., grad_sample_mode="ghost")'
        raise ParameterError("optimizer", type(optimizer).__name__, allowed)
    if len(engine.accountant):
        counted = len(engine.accountant)
        raise TrainingStateError(f"the engine's accountant has counted {counted} steps: it must not have counted any")
    samplers = register_norm_samplers(model, norms, tokens=tokens)
    if samplers.record.estimated:
        engine.accountant = _accountant(samplers.record)
        optimizer.attach_step_hook(engine.accountant.get_optimizer_hook_fn(sample_rate=1 / len(data_loader)))
    samplers.account_with(engine.accountant)
    return samplers


def _accountant(record: NormRecord) -> Any:
    if record.norms is None:
        raise ParameterError("norms", None, "an estimator whose law is known: without it no accountant can answer")
    return register(record.norms, name=_NAME)()
