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
    """Hooks for per-sample norms, and an optimizer that noises the clipped sum.

    Parameters
    ----------
    model : Module
        In training mode. Hooks follow Linear (LoRA's too), HF's Conv1D, Embedding, convolutions, normalizations over
        single samples and Opacus' recurrent layers; their inputs and outputs have the sample as first axis. Any other
        module with parameters of its own (torch's attention and recurrent layers, DoRA, a class token) runs sample
        by sample: its forward pass takes one at a time, each with a view of the parameters, and per-sample gradients of
        all parameters in it are formed, B times their memory. Its norms are exact unless everything is estimated.
    optimizer : torch.optim.Optimizer
        Of all the trainable parameters. A `dprmt.training.optimizers.DPGrape` brings its subspaces: per-sample
        gradients of their weights are projected in the backward pass, and clipped and noised there.
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
    noise_multiplier : float
        σ >= 0.
    expected_batch_size : float
        L > 0: the sampling rate times the size of the data set, over all processes.
    tokens : int, optional
        The largest possible T, known without looking at the data: bounds the rank that is claimed, and the
        rounding margin. By default the margin is for sums of 65,000 numbers.
    noise_generator : torch.Generator or SecureRandom, optional
        On the parameters' device. By default a new one with a state from the operating system: the noise does not
        depend on ``torch.manual_seed``. Torch's generators are not cryptographic: with a
        `dprmt.training.randomness.SecureRandom` noise is from a cipher, as sums of normals. The coins of the batches
        are for the caller: ``SecureRandom().poisson_sample(size, rate)``. Probes stay as they are.
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

    Returns
    -------
    ClippedStep or UnitStep
        A ``PrivateStep``: ``.model``, ``.optimizer``, ``.record``, ``.accumulate(losses, samples=, step=)``,
        ``.step()``; also ``.discard()`` and ``.close()``.

    Raises
    ------
    ParameterError
        If an argument is out of its range, or the model has a layer that is shared or mixes samples, or the optimizer
        has not exactly its trainable parameters.
    TrainingStateError
        Later, of a second forward pass before the first is summed, and of a module run sample by sample whose output
        for a batch is not that of its samples one by one (its state changes, an output has no sample axis, a packed
        sequence).

    Formal guarantees
    -----------------
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
