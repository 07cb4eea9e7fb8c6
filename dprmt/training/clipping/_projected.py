"""From a model to a private step in the projected space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, SupportsIndex, get_args

import torch
from torch import nn

from dprmt._validation import check_choice
from dprmt.training.clipping._norms import NormsWanted
from dprmt.training.clipping._optimizer import Denoiser
from dprmt.training.clipping._plan import plan_private
from dprmt.training.clipping._refusals import check_model
from dprmt.training.clipping._step import ClippedStep
from dprmt.training.norms import ProbeGenerator
from dprmt.training.optimizers import AtRefresh, DPGrape, Rule
from dprmt.training.subspaces import Projector, RankRule, Subspaces

Order = Literal["project-then-privatize", "privatize-then-project"]


def make_private_projected(
    model: nn.Module,
    *,
    rank: int | Mapping[str, int] | RankRule,
    clipping_norm: float,
    noise_multiplier: float,
    expected_batch_size: float,
    lr: float,
    refresh_every: int = 100,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    optimizer: Rule = "adam",
    floor: float = 1e-12,
    projector: Projector = "gaussian",
    order: Order = "project-then-privatize",
    norms: NormsWanted = "exact",
    probe_generator: ProbeGenerator | None = None,
    tokens: SupportsIndex | None = None,
    at_refresh: AtRefresh = "reset-first",
    denoise: Denoiser | None = None,
    seed: int | None = None,
    keep_projectors: bool = False,
    noise_generator: torch.Generator | None = None,
    secure_mode: bool = False,
    distributed: bool = False,
    whole: Iterable[str] = (),
) -> ClippedStep:
    """DP-GRAPE: per-sample gradients projected in the backward pass, then clipped, noised, and given to Adam.

    For the weights of Linear (LoRA's too) and Conv1D layers, with P the projector of the layer and the period:

    1. backward pass: ``R_i = PᵀG_i`` (r × n) for every sample i, from the layer's factors, without G_i (m × n);
    2. ``R̄ = (Σ_i R_i min(1, C/‖(R_i, all layers; g_i, other parameters)‖) + N(0, σ²C²))/L``;
    3. Adam's moments of R̄, in r × n; the step is lifted by P. See `DPGrape`.

    All other trainable parameters (biases, LayerNorm, embeddings) are treated as in DP-Adam, under the same norm.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode, batch first. Frozen parameters stay frozen.
    rank : int, mapping of str to int, or rule
        r of every layer, at most its longer side; by weight, the rest being left unprojected; or a rule such as
        :func:`share_of_dimension`.
    clipping_norm : float
        C > 0, in the projected space.
    noise_multiplier : float
        σ >= 0; 0 is not private.
    expected_batch_size : float
        L > 0, the *expected* size of a logical batch.
    lr, betas, eps, weight_decay, floor, at_refresh
        As in `DPGrape`.
    refresh_every : int
        F >= 1, steps that share a subspace.
    optimizer : {"adam", "adambc", "sgd"}
        The rule in the projected space.
    projector : {"gaussian", "stiefel", "svd"}
        See :class:`Subspaces`. For "svd" the first step of every F steps forms, clips and releases whole gradients,
        from which the subspace is taken: its memory is that of DP-Adam if ``norms`` are "exact".
    order : {"project-then-privatize", "privatize-then-project"}
        The second is the naive DP-GaLore, an ablation: whole gradients are clipped and noised, and PᵀG̃ is left to
        Adam. Its signal is the same, its noise has m/r times the variance (Gaussian and Stiefel).
    norms, probe_generator, tokens, distributed, whole
        As in :func:`make_private` and :func:`plan_private`, of the projected gradients. "exact" forms them, r·n numbers
        for every sample and weight; the others keep factors, T·(r + n) numbers, where these are fewer.
    denoise : callable, optional
        ``dprmt.spectra.denoise_layers`` or a ``functools.partial`` of it: applied to the noisy R̄, whose noise is
        independent N(0, (σC/L)²), before the moments.
    seed : int, optional
        Of the random projectors, see :class:`Subspaces`. Not of the noise.
    keep_projectors : bool
        Keep Σ m·r numbers instead of drawing them again for every use.
    noise_generator : torch.Generator, optional
        Of the noise, on the parameters' device. By default a new one with a state from the operating system; one with a
        known seed is for reproducible studies only.
    secure_mode : bool
        As in Opacus.

    Returns
    -------
    ClippedStep
        As from :func:`make_private`; its ``optimizer`` is around a `DPGrape`, ``subspaces`` has the projectors.

    Raises
    ------
    ParameterError
        Before any work: if r is larger than a layer, F < 1, a layer is not supported, parameters are tied, or an
        argument is out of its range.

    Formal guarantees
    -----------------
    With exact norms and under Poisson sampling with rate q, step t is a subsampled Gaussian mechanism with noise
    multiplier σ: the accountant composes ``DPSGD(noise_multiplier=σ, sampling=q)``. *Proof.*
    Fix everything that was released before step t and the seed. Then P is fixed, in every layer: random projectors are
    a function of (seed, layer, period), singular vectors one of a released gradient. So is the map f that takes a
    sample x to its projected and unprojected gradients, since the weights are a function of what was released. What is
    summed is c(f(x)) with c(v) = v min(1, C/‖v‖) over all coordinates at once, or 0 if f(x) is not finite: adding or
    removing a sample moves the sum by at most C, for *every* P, of any norm. Adding N(0, σ²C²) to every coordinate of
    the sum is a Gaussian mechanism with sensitivity C, on a Poisson sample. The division by L, denoising, Adam's step,
    the lift by P and the choice of the next subspace use only its output and public numbers: post-processing. Steps
    compose adaptively. ∎

    In the first step of a period of "svd", and in all steps of "privatize-then-project", the same holds with f the
    whole gradient. Nothing in the proof asks for the projector to be secret, or of unit norm; that E‖Pᵀx‖² = ‖x‖² is
    for utility, so that C means what it means in DP-Adam. With estimated norms the matrices whose norms are estimated
    are the projected ones, for fixed P as above, and the probes are independent of P: the mechanism is that of
    ``record``, as for :func:`make_private`, with that function's limits. The rounding margin is at least 2⁻¹³.

    References
    ----------
    arXiv:2506.15588, algorithm and section 3.2; naive DP-GaLore: its section 5.1.

    Examples
    --------
    >>> layer = torch.nn.Linear(300, 40)
    >>> private = make_private_projected(
    ...     layer, rank=8, clipping_norm=1.0, noise_multiplier=1.0, expected_batch_size=16, lr=1e-3, seed=0
    ... )
    >>> losses = private.accumulate(private.model(torch.ones(4, 300)).square().sum(1), samples=range(4), step=0)
    >>> private.step()
    >>> private.record.mechanism(noise_multiplier=1.0, sampling=0.01)
    DPSGD(1.0, Poisson(0.01))
    """
    check_choice("order", order, get_args(Order))
    names = frozenset(whole)
    check_model(model, whole=names)
    subspaces = Subspaces(
        model, rank=rank, refresh_every=refresh_every, projector=projector, seed=seed, keep=keep_projectors
    )
    plan = plan_private(
        model,
        norms=norms,
        clipping_norm=clipping_norm,
        expected_batch_size=expected_batch_size,
        tokens=tokens,
        probe_generator=probe_generator,
        subspaces=subspaces if order == "project-then-privatize" else None,
        distributed=distributed,
        whole=names,
    )
    inner = DPGrape(
        [value for value in model.parameters() if value.requires_grad],
        lr,
        subspaces=subspaces,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        rule=optimizer,
        noise_variance=plan.noise_variance(noise_multiplier),
        floor=floor,
        at_refresh=at_refresh,
    )
    step = plan.privatize(
        inner,
        noise_multiplier=noise_multiplier,
        noise_generator=noise_generator,
        secure_mode=secure_mode,
        denoise=denoise,
    )
    assert isinstance(step, ClippedStep)  # rows are samples
    return step
