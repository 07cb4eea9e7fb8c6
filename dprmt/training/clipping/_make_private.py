"""The one call that makes a model and an optimizer private, whatever clips the gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex

import torch

from dprmt._validation import check_real
from dprmt.training.clipping._norms import NormsWanted
from dprmt.training.clipping._plan import plan_private
from dprmt.training.clipping._step import REPLAY, ClippedStep
from dprmt.training.clipping._unit_regime import Units
from dprmt.training.clipping._unit_step import UnitStep
from dprmt.training.optimizers import DPGrape
from dprmt.training.randomness import SecureRandom


def make_private(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    norms: NormsWanted,
    clipping_norm: float,
    noise_multiplier: float,
    expected_batch_size: float,
    tokens: SupportsIndex | None = None,
    noise_generator: torch.Generator | SecureRandom | None = None,
    distributed: bool = False,
    whole: Iterable[str] = (),
    replay: float = REPLAY,
    units: Units | None = None,
) -> ClippedStep | UnitStep:
    """Make a model and an optimizer train with DP-SGD, for loops that draw their own batches.

    Call ``accumulate`` for each micro-batch and ``step`` once per logical batch, which you draw by Poisson sampling.
    To choose σ for a target ε first, use :func:`plan_private`.

    Parameters
    ----------
    model : Module
        Model in training mode, with samples as first axis. Modules that hooks cannot follow run one sample at a time,
        which needs more memory.
    optimizer : torch.optim.Optimizer
        Optimizer of exactly the trainable parameters.
    norms : str, Norms or NormEstimator
        Norm method. "exact" forms per-sample gradients; "ghost" computes the same norms by Gram matrices where that is
        cheaper; "hutchinson" and "hutch++" estimate them with 32 *secret* probes. Pass a value such as
        ``Hutchinson(64, secret=True)`` to change the numbers.
    clipping_norm : float
        Largest norm C > 0 of a sample's gradient in the sum.
    noise_multiplier : float
        Noise multiplier σ >= 0. Zero means clipping without privacy.
    expected_batch_size : float
        L > 0: sampling rate times the size of the data set, over all processes. Not the size of the drawn batch.
    tokens : int, optional
        Largest possible number of tokens, known without looking at the data; it bounds the rank and the rounding
        margin.
    noise_generator : torch.Generator or SecureRandom, optional
        By default a new generator, seeded by the operating system. Only `SecureRandom` is cryptographic.
    distributed : bool
        Whether a process group shares each logical batch, with every sample in one process.
    whole : iterable of str
        Names of modules to run sample by sample, "" for the whole model.
    replay : float
        Probability in [0, 1] of an isolation check of a later micro-batch; the first one is always checked.
    units : Units, optional
        Units of privacy with several rows.

    Returns
    -------
    ClippedStep or UnitStep
        A private step.

    Raises
    ------
    ParameterError
        If an argument is out of its range, a layer is shared or mixes samples, or parameters differ from the
        optimizer's.
    TrainingStateError
        Later, if a module gives a batch another output than its samples.

    Privacy
    -------
    Holds if: each loss depends on one sample, ``samples`` are identities in the data set, and each sample is in one
    process. Covers: (Σ_i c_i g_i + σC·N(0, I)) / L with c_i = min(1, (1-ρ)C/√n̂_i). Does not cover: rounding of the
    sum, floating-point noise without a ``SecureRandom``, and mixing that no isolation check finds. Proof:
    ``docs/theory/randomized_clipping.md``; for DP-GRAPE ``docs/how_to/dp_grape.md``.

    Examples
    --------
    >>> network = torch.nn.Linear(40, 40)
    >>> private = make_private(
    ...     network,
    ...     torch.optim.SGD(network.parameters(), lr=0.1),
    ...     norms="hutchinson",
    ...     clipping_norm=1.0,
    ...     noise_multiplier=1.0,
    ...     expected_batch_size=2.5,
    ... )
    >>> losses = private.accumulate(private.model(torch.ones(2, 5, 40)).square().mean((1, 2)), samples=[17, 4], step=0)
    >>> losses = private.accumulate(private.model(torch.ones(1, 5, 40)).square().mean((1, 2)), samples=[8], step=0)
    >>> private.step()
    >>> private.record.mechanism(noise_multiplier=1.0, sampling=0.01)
    DPSGD(1.0, Poisson(0.01), norms=Hutchinson(32, secret=True, rank=40))

    DP-GRAPE:

    >>> from dprmt.training.subspaces import Subspaces
    >>> layer = torch.nn.Linear(300, 40)
    >>> optimizer = DPGrape(layer.parameters(), lr=1e-3, subspaces=Subspaces(layer, rank=8))
    >>> private = make_private(
    ...     layer, optimizer, norms="exact", clipping_norm=1.0, noise_multiplier=1.0, expected_batch_size=16
    ... )
    >>> losses = private.accumulate(private.model(torch.ones(4, 300)).square().sum(1), samples=range(4), step=0)
    >>> private.step()
    """
    check_real("noise_multiplier", noise_multiplier, low=0.0)
    plan = plan_private(
        model,
        norms=norms,
        clipping_norm=clipping_norm,
        expected_batch_size=expected_batch_size,
        tokens=tokens,
        subspaces=optimizer.subspaces if isinstance(optimizer, DPGrape) else None,
        distributed=distributed,
        whole=whole,
        replay=replay,
        units=units,
    )
    return plan.privatize(optimizer, noise_multiplier=noise_multiplier, noise_generator=noise_generator)
