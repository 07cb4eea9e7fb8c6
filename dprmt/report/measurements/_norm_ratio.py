"""Randomized per-sample norms on real gradients, against their exact law and the envelope of all laws."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dprmt._validation import ParameterError, check_count
from dprmt.accounting import chi2_mixture_cdf, envelope_cdf
from dprmt.training.harness import ItemTask
from dprmt.training.norms import ProbeGenerator, cheaper_side, hutchinson_squared_norms

Floats = NDArray[np.float64]
ERROR = 0.01  # probability that the band is too narrow


@dataclass(frozen=True)
class NormRatios:
    """Ratio of estimated to true squared norms of per-sample gradients, with the predicted law. It is **private**.

    Attributes
    ----------
    probes, rank : int
        k, and the largest total number of nonzero singular values of a sample's layers.
    samples, draws : int
        Number of gradients, and of draws of the probes for each.
    ratios : array, shape (samples·draws,)
        X = n̂/n in increasing order.
    points : array, shape (p,)
        Where the curves below are evaluated.
    empirical : array, shape (p,)
        Share of the ratios at or below each point.
    predicted : array, shape (p,)
        Mean over the samples of the exact law, a mixture of χ² with the squared singular values as weights.
    envelope : array, shape (p,)
        The largest probability that any spectrum of this rank can give.
    over_envelope : float
        Largest excess of the empirical curve over the envelope, over all ratios; negative if there is none.
    band : float
        Bound on the distance of the empirical from the predicted curve, with probability 99 %.
    """

    probes: int
    rank: int
    samples: int
    draws: int
    ratios: Floats
    points: Floats
    empirical: Floats
    predicted: Floats
    envelope: Floats
    over_envelope: float
    band: float

    @property
    def distance(self) -> float:
        """Largest distance between the empirical and the predicted curve at the points."""
        return float(np.max(np.abs(self.empirical - self.predicted)))


def measure_norm_ratios(
    model: torch.nn.Module,
    task: ItemTask,
    *,
    samples: int = 32,
    draws: int = 128,
    probes: int = 32,
    seed: int = 0,
) -> NormRatios:
    """Estimate the norms of real per-sample gradients many times over, with independent probes each time.

    All trainable linear layers count. Their norms are estimated layer by layer, as in training, with a separate probe
    matrix for every sample, layer and draw.

    Parameters
    ----------
    model : Module
        Model whose trainable linear layers count.
    task : ItemTask
        Data; the samples are taken at equal distances.
    samples, draws : int
        Number of samples, and of draws for each, >= 1.
    probes : int
        Number of probes k >= 2.
    seed : int
        Seed of the probes.

    Returns
    -------
    NormRatios
        **Private.**

    Raises
    ------
    ParameterError
        If a number is out of range, the model has no trainable linear layer, or a sample no gradient.

    Formal guarantees
    -----------------
    None: it reads the gradients of single samples, and its probes come from a known seed.

    Notes
    -----
    The ratios are independent but not identically distributed. The band is ``√(ln(2e/0.01)/(2N))``, e times as likely
    to be left as for equal laws (Bretagnolle 1980).

    References
    ----------
    arXiv:2605.24879; ``docs/theory/randomized_clipping.md`` for the envelope.

    Examples
    --------
    >>> model = torch.nn.Linear(4, 3)
    >>> def losses(model, labels):
    ...     return torch.nn.functional.cross_entropy(model(torch.eye(4)[labels]), labels, reduction="none")
    >>> from dprmt.training.harness import ItemTask
    >>> norms = measure_norm_ratios(model, ItemTask([0, 1, 2], torch.tensor, losses), samples=3, draws=50, probes=8)
    >>> norms.rank, norms.distance <= norms.band
    (1, True)
    """
    count = check_count("samples", samples, high=task.size)
    check_count("draws", draws)
    check_count("probes", probes, low=2)
    items = [task.items[i * task.size // count] for i in range(count)]
    gradients = _gradients(model, task, items)
    values = [torch.linalg.svdvals(layer.double()).square().numpy() for layer in gradients.values()]
    spectra = np.concatenate(values, axis=1)
    totals = spectra.sum(1)
    if not (totals > 0).all():
        raise ParameterError("norms of gradients", float(totals.min()), "> 0 for every sample")
    generator = ProbeGenerator(seed)
    ratios = np.sort(np.concatenate([_estimates(gradients, probes, generator, draw) / totals for draw in range(draws)]))
    grid = np.linspace(ratios[0], ratios[-1], 60), np.quantile(ratios, np.linspace(0.002, 0.998, 60)), [1.0]
    points = np.unique(np.concatenate(grid))
    positive = [squares[squares > 1e-12 * squares.max()] for squares in spectra]  # the others are rounding
    rank = max(map(len, positive))
    everywhere = np.arange(1, len(ratios) + 1) / len(ratios) - envelope_cdf(ratios, probes, rank)
    laws = [
        chi2_mixture_cdf(points, weights / weights.sum() / probes, np.full(len(weights), float(probes)))
        for weights in positive
    ]
    return NormRatios(
        probes=probes,
        rank=rank,
        samples=count,
        draws=draws,
        ratios=ratios,
        points=points,
        empirical=np.searchsorted(ratios, points, side="right") / len(ratios),
        predicted=np.mean(laws, axis=0),
        envelope=np.asarray(envelope_cdf(points, probes, rank)),
        over_envelope=float(np.max(everywhere)),
        band=math.sqrt(math.log(2 * math.e / ERROR) / (2 * len(ratios))),
    )


def _gradients(model: torch.nn.Module, task: ItemTask, items: list[Any]) -> dict[str, torch.Tensor]:
    # Of every sample, by layer: shape (samples, outputs, inputs), the bias' gradient as one more input.
    layers = {name or "model": layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    trained = {name: [p for p in layer.parameters() if p.requires_grad] for name, layer in layers.items()}
    trained = {name: ps for name, ps in trained.items() if any(p.ndim == 2 for p in ps)}
    if not trained:
        raise ParameterError("model", type(model).__name__, "with trainable linear layers")
    found: dict[str, list[torch.Tensor]] = {name: [] for name in trained}
    for item in items:
        loss = task.losses(model, task.collate([item])).sum()
        grads = iter(torch.autograd.grad(loss, [p for ps in trained.values() for p in ps]))
        for name, ps in trained.items():
            own = [g if g.ndim == 2 else g[:, None] for g in itertools.islice(grads, len(ps))]
            found[name].append(torch.cat(own, 1))
    return {name: torch.stack(rows) for name, rows in found.items()}


def _estimates(gradients: dict[str, torch.Tensor], probes: int, generator: ProbeGenerator, draw: int) -> Floats:
    # A gradient is that of as many tokens as it has outputs, whose output gradients are the unit vectors.
    total: Any = 0.0
    for name, layer in gradients.items():
        samples, rows, columns = layer.shape
        side = cheaper_side(columns, rows, bias=False)
        sides = {"gradients": rows, "activations": columns}
        matrices = generator.per_sample(range(samples), step=draw, layer=name, rows=sides[side], probes=probes)
        units = torch.eye(rows, dtype=layer.dtype).expand(samples, -1, -1)
        total = total + hutchinson_squared_norms(layer, units, matrices, side=side, bias=False).numpy()
    return np.asarray(total)
