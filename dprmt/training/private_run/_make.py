"""The entrance to private training: from what a plain script has to a private run."""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Never, SupportsIndex

import torch
from torch.utils.data import DataLoader

from dprmt._validation import ParameterError, check_choice, check_count, check_real
from dprmt.accounting import DPSGD, CyclicPoisson, ExactNorms, Poisson, RandomAllocation
from dprmt.training.clipping import ClippingPlan, Units, plan_private
from dprmt.training.clipping._matrix_layers import NormsWanted
from dprmt.training.clipping._step import REPLAY
from dprmt.training.denoising import Denoising
from dprmt.training.norms import ProbeGenerator
from dprmt.training.optimizers import DPGrape
from dprmt.training.private_run._batches import RESOLUTION, Source, checked_data, read_owners, scheme
from dprmt.training.private_run._ledger import calibrated
from dprmt.training.private_run._randomness import Randomness, from_first, rank
from dprmt.training.private_run._run import PrivateRun, check_free
from dprmt.training.private_run._step_options import (
    AdaptiveClipping,
    BandedNoise,
    ClippingNorm,
    PerLayerClipping,
    first_norm,
)

_OPACUS = {
    "max_grad_norm": "clipping_norm=...",
    "target_delta": "delta=...",
    "data_loader": "the third argument",
    "module": "the first argument",
    "expected_batch_size": "batch_size=...",
    "poisson_sampling": "sampling='poisson' or sampling='allocation'",
    "grad_sample_mode": "norms=...",
    "clipping": "clipping_norm=C, one for the whole gradient of a sample, or clipping_norm=PerLayerClipping(C)",
    "noise_generator": "secure=True, or left out: the generator is secret anyway",
    "secure_mode": "secure=True",
    "distributed": "nothing: the process group is found",
}
"""Options of Opacus' engine, and of earlier versions, with the names to use here."""


def make_private(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset_or_loader: Any,
    *,
    norms: NormsWanted,
    clipping_norm: ClippingNorm,
    batch_size: float | None = None,
    steps: SupportsIndex | None = None,
    epochs: float | None = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    noise: BandedNoise | None = None,
    micro_batch_size: SupportsIndex | None = None,
    sampling: str = "poisson",
    owners: str | Sequence[int | str] | torch.Tensor | None = None,
    units: Units | None = None,
    tokens: SupportsIndex | None = None,
    whole: Iterable[str] = (),
    isolation_checks: float = REPLAY,
    denoising: Denoising | None = None,
    telemetry: bool | Mapping[str, Any] = False,
    secure: bool = False,
    ledger: str | Path | None = None,
    progress: bool = False,
    **others: Never,
) -> PrivateRun:
    """Make a training run private: batches, gradients, optimizer and ε in one object.

    Iterate over the result instead of over your data loader. Pass each batch to :meth:`PrivateRun.step`.

    Parameters
    ----------
    model : Module
        Model to train, on its device.
    optimizer : torch.optim.Optimizer
        Any optimizer of all trainable parameters whose ``step()`` needs no closure.
    dataset_or_loader : Dataset or DataLoader
        Data with a length. The sampler of a loader is replaced; its ``collate_fn`` makes each row from one row.
    norms : str, Norms or NormEstimator
        Norm method. Start with ``"exact"``; ``"ghost"`` needs less memory. ``Hutchinson(probes, secret=...)`` and
        ``HutchPlusPlus(...)`` estimate norms.
    clipping_norm : float, AdaptiveClipping, PerLayerClipping or "automatic"
        Largest norm C > 0 of a sample's gradient in the sum (Opacus' ``max_grad_norm``). :class:`AdaptiveClipping` lets
        it follow a quantile of norms, :class:`PerLayerClipping` clips every layer alone. ``"automatic"`` divides each
        gradient g by |g| + 0.01 instead, so that C = 1.
    batch_size : float, optional
        *Expected* logical batch size over all processes; by default the loader's.
    steps, epochs : int, float
        Exactly one of them: the length of the run.
    target_epsilon, noise_multiplier : float, optional
        Exactly one of them: the ε > 0 that the planned steps may cost, or σ in [0.001, 1e6].
    delta : float, optional
        δ in (0, 1). Required with a target and with ``ledger``.
    noise : BandedNoise, optional
        Noise that is correlated between steps; batches then come from groups of samples in turn.
    micro_batch_size : int, optional
        Rows clipped together, >= 1; by default all.
    sampling : {"poisson", "allocation"}
        Independent sampling, or one random batch of each epoch.
    owners : str, or sequence of int or str, optional
        Owner of each row, or its column; all rows of one owner are one sample.
    units : Units, optional
        How samples of several rows are clipped.
    tokens : int, optional
        Largest number of tokens in a row, known without looking at the data.
    whole : iterable of str
        Names of modules to run sample by sample.
    isolation_checks : float
        Probability in [0, 1] that a later micro-batch is checked; the first one always is.
    denoising : Denoising, optional
        Denoiser of released gradients.
    telemetry : bool or mapping
        Whether to estimate signal and progress, or options for it.
    secure : bool
        Whether a cipher draws sampling and noise.
    ledger : path, optional
        Folder that records every step before its gradient is used.
    progress : bool
        Whether to show a bar with ε; it needs tqdm.
    **others
        Not accepted. Names of Opacus' arguments raise an error with the name to use.

    Returns
    -------
    PrivateRun
        Iterable of length ``steps``.

    Raises
    ------
    ParameterError
        If an argument is invalid, two conflict, or model or optimizer cannot be made private.

    Privacy
    -------
    Holds if: see :class:`PrivateRun`. Covers: the trained parameters after every step. Does not cover: losses,
    evaluation on training rows, several runs on the same rows. Proof: ``docs/theory/randomized_clipping.md``.

    See Also
    --------
    PrivateRun : for its methods and its guarantee.

    Examples
    --------
    >>> import torch
    >>> rows = torch.utils.data.TensorDataset(torch.randn(100, 8), torch.arange(100) % 2)
    >>> loader = torch.utils.data.DataLoader(rows, batch_size=20, shuffle=True)
    >>> model = torch.nn.Linear(8, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> private = make_private(
    ...     model, optimizer, loader, norms="exact", clipping_norm=1.0, epochs=2, target_epsilon=3.0, delta=1e-5
    ... )
    >>> len(private), private.mechanism.sampling
    (10, Poisson(0.2...))
    """
    _check_names(others)
    check_free(model)
    data = checked_data(dataset_or_loader)
    dataset, groups = data, None
    if isinstance(data, DataLoader):
        dataset, batch_size = data.dataset, data.batch_size if batch_size is None else batch_size
    if owners is not None or units is not None:
        each = range(len(dataset)) if owners is None else owners
        groups = read_owners(dataset, each, None if units is None else units.rows_per_unit)
    if not isinstance(denoising, Denoising | None):
        raise ParameterError("denoising", denoising, "dprmt.training.denoising's Denoising(...), or left out")
    known = isinstance(telemetry, Mapping) and telemetry.keys() <= {"every", "window"}
    if not known and not isinstance(telemetry, bool):
        raise ParameterError("telemetry", telemetry, "True, or a mapping such as {'every': 20}")
    micro = None if micro_batch_size is None else check_count("micro_batch_size", micro_batch_size)
    n = len(dataset) if groups is None else len(groups.names)
    size = check_real("batch_size", batch_size, low=0.0, low_open=True, high=float(n))
    if noise is not None:
        _check_noise(noise, clipping_norm, optimizer, sampling, denoising, telemetry)
        batches: Poisson | RandomAllocation | CyclicPoisson = noise.sampling(size, n, RESOLUTION)
    else:
        batches = scheme(check_choice("sampling", sampling, ("poisson", "allocation")), size, n)
    total = _steps(steps, epochs, batches, n / size)
    σ, target, δ = _privacy(noise_multiplier, target_epsilon, delta, ledger)
    randomness = Randomness(from_first(secrets.token_bytes(32)), True, bool(secure))
    probes = ProbeGenerator(randomness.derive("probes"))
    plan = plan_private(
        model,
        norms=norms,
        clipping_norm=first_norm(clipping_norm),
        expected_batch_size=size,
        tokens=tokens,
        probe_generator=probes,
        subspaces=optimizer.subspaces if isinstance(optimizer, DPGrape) else None,
        whole=whole,
        replay=check_real("isolation_checks", isolation_checks, low=0.0, high=1.0),
        units=units,
    )
    if plan.distributed and noise is not None:
        raise ParameterError("noise", noise, "left out with several processes", "remove noise, or use one process")
    if groups is not None:
        groups = replace(groups, alone=plan.regime == "alone")
    mechanism = plan.record.mechanism(1.0 if σ is None else σ, batches)
    if isinstance(clipping_norm, AdaptiveClipping):
        if not isinstance(mechanism.norms, ExactNorms):
            allowed = "'exact' or 'ghost' with AdaptiveClipping: a count of estimated norms has no bound"
            raise ParameterError("norms", mechanism.norms, allowed, "pass norms='ghost', or a number as clipping_norm")
        mechanism = replace(mechanism, beside=(clipping_norm.release,))
    if isinstance(clipping_norm, PerLayerClipping):
        _check_layers(clipping_norm, plan, mechanism)
    if target is not None and δ is not None:
        try:
            mechanism = calibrated(mechanism, total, target, δ)
        except ParameterError as error:
            if not isinstance(clipping_norm, AdaptiveClipping):
                raise
            fix = "give AdaptiveClipping a larger noise_multiplier: its counts cost ε, too"
            raise ParameterError(error.name, error.value, error.allowed, fix) from error
    if isinstance(norms, str) and not isinstance(mechanism.norms, ExactNorms) and not rank():
        print(f"dprmt: norms={norms!r} stands for {mechanism.norms!r}", file=sys.stderr)
    folder = None if ledger is None else Path(ledger)
    if folder is not None:
        if folder.exists() and not folder.is_dir():
            raise ParameterError("ledger", str(ledger), "a folder, which is made if it is not there")
        folder.mkdir(parents=True, exist_ok=True)
    return PrivateRun(
        plan,
        probes,
        optimizer,
        Source(data, groups, micro),
        mechanism=mechanism,
        steps=total,
        delta=δ,
        has_target=target is not None,
        randomness=randomness,
        clipping=clipping_norm,
        noise=noise,
        ledger=folder,
        denoising=denoising,
        telemetry={} if telemetry is True else telemetry or None,
        progress=progress,
    )


def _check_noise(
    noise: Any, clipping_norm: Any, optimizer: torch.optim.Optimizer, sampling: str, denoising: Any, telemetry: Any
) -> None:
    if not isinstance(noise, BandedNoise):
        raise ParameterError("noise", noise, "BandedNoise(bands), or left out")
    if sampling != "poisson":
        allowed = "left out with BandedNoise, whose batches come from groups in turn"
        raise ParameterError("sampling", sampling, allowed, "remove sampling, or noise")
    others = {
        "clipping_norm": clipping_norm if isinstance(clipping_norm, AdaptiveClipping) else None,
        "optimizer": type(optimizer).__name__ if "noise_variance" in optimizer.param_groups[0] else None,
        "denoising": denoising,
        "telemetry": telemetry or None,
    }
    for name, found in others.items():
        if found is not None:
            allowed = "one that does not assume independent noise of one size, with BandedNoise"
            raise ParameterError(name, found, allowed, f"remove noise, or change {name}")


def _check_layers(clipping: PerLayerClipping, plan: ClippingPlan, mechanism: DPSGD) -> None:
    named = plan.model.named_parameters(remove_duplicate=False)
    uses = Counter(value for _, value in named if value.requires_grad)
    reasons = {
        "norms are estimated: errors of layers add up to a sensitivity that has no proof": not isinstance(
            mechanism.norms, ExactNorms
        ),
        "rows of a unit run alone: only the whole gradient is formed": plan.regime == "alone",
        "the model is sharded: processes clip by the whole norm": plan.policy.sharded,
        "layers share a parameter: it belongs to no layer alone": any(count > 1 for count in uses.values()),
        "DPGrape projects gradients: it clips them as a whole": plan.subspaces is not None,
    }
    for reason, applies in reasons.items():
        if applies:
            raise ParameterError("clipping_norm", clipping, f"a number where {reason}", "pass clipping_norm=C")


def _check_names(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name in _OPACUS:
            raise ParameterError(name, value, f"written as {_OPACUS[name]}")
        raise TypeError(f"make_private() got an unexpected keyword argument {name!r}")


def _steps(steps: SupportsIndex | None, epochs: float | None, scheme: Any, per_epoch: float) -> int:
    if (steps is None) == (epochs is None):
        raise ParameterError("steps, epochs", (steps, epochs), "one number", "pass exactly one of steps and epochs")
    if steps is not None:
        return check_count("steps", steps)
    length = scheme.steps_per_epoch if isinstance(scheme, RandomAllocation) else per_epoch
    return max(1, round(check_real("epochs", epochs, low=0.0, low_open=True) * length))


def _privacy(
    noise_multiplier: float | None, target: float | None, delta: float | None, ledger: Any
) -> tuple[float | None, float | None, float | None]:
    if (noise_multiplier is None) == (target is None):
        both = (noise_multiplier, target)
        fix = "pass exactly one of them, for example target_epsilon=3.0"
        raise ParameterError("noise_multiplier, target_epsilon", both, "one noise level", fix)
    if delta is not None:
        delta = check_real("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True)
    elif target is not None or ledger is not None:
        raise ParameterError("delta", None, "given with target_epsilon and with ledger", "pass delta")
    if noise_multiplier is not None:
        noise_multiplier = check_real("noise_multiplier", noise_multiplier, low=0.0, low_open=True)
    if target is not None:
        target = check_real("target_epsilon", target, low=0.0, low_open=True)
    return noise_multiplier, target, delta
