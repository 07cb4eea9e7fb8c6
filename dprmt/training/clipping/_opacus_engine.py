"""From a working script on Opacus' engine to estimated norms, in a few changed lines."""

from __future__ import annotations

from typing import Any, SupportsIndex

from opacus.data_loader import DPDataLoader
from opacus.grad_sample import GradSampleHooksFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping

from dprmt._validation import ParameterError
from dprmt.accounting.opacus import register
from dprmt.training.clipping._plan import new_estimator
from dprmt.training.clipping._samplers import NormSamplers, register_norm_samplers
from dprmt.training.norms import NormEstimator, NormRecord, ProbeSharing

_NAME = "randomized_clipping_of_estimate_norms"


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
