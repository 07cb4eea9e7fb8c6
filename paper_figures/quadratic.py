r"""The quadratic model of appendix I of arXiv:2510.01137v3 on the curvature of a real layer, and one step on it.

With logits z_i of sample i, p_i their softmax and J_i the Jacobian of z_i in the layer's weights, the mean cross
entropy has the gradient ``(1/n) Σ J_iᵀ(p_i - y_i)`` and the Gauss–Newton matrix ``(1/n) Σ J_iᵀ S_i J_i`` with
``S = diag(p) - ppᵀ``. Since ``S = LLᵀ`` for ``L = diag(√p)(I - √p√pᵀ)`` (the bracket is a projection), it is
``H = AᵀA`` with the rows ``L_iᵀJ_i/√n``. So H is positive semidefinite, Hv costs two products with A, and its
largest eigenvalue is exactly that of the smaller of AᵀA and AAᵀ: an iteration would only bound it from below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from dprmt._validation import ParameterError
from dprmt.spectra import adam_improvement_bound, cosine_similarity, denoise, detection_threshold

StepMethod = Literal["adam", "adambc", "denoised"]


@dataclass(frozen=True)
class LayerQuadratic:
    """``f(w) = f₀ + gᵀw + ½wᵀHw`` for a change w of the weights of one layer. Private, where the data are.

    Attributes
    ----------
    gradient : Tensor, shape (p, q)
        g, of the mean loss, float64.
    factor : Tensor, shape (n·c, p·q)
        A with H = AᵀA, float64.
    largest_curvature : float
        λ_max(H).
    """

    gradient: torch.Tensor
    factor: torch.Tensor
    largest_curvature: float

    def curvature(self, v: torch.Tensor) -> torch.Tensor:
        """Hv by two products with A, for a change v of the weights, row after row."""
        return self.factor.T @ (self.factor @ v.to(self.factor))


def layer_quadratic(
    forward: Callable[[], torch.Tensor], layer: torch.nn.Module, labels: torch.Tensor
) -> LayerQuadratic:
    """The quadratic model of a layer's weight, from one forward and c backward passes.

    ``forward`` computes the logits, shape (n, c), with a graph, and calls the linear ``layer`` once, on inputs of shape
    (n, q) or (n, T, q). Samples must not depend on each other.

    Raises
    ------
    ParameterError
        If ``layer`` was not called exactly once.

    References
    ----------
    Appendix I.1 of arXiv:2510.01137v3, with the Gauss–Newton matrix in the role of H.

    Examples
    --------
    >>> layer, x = torch.nn.Linear(3, 2, bias=False), torch.ones(1, 3)
    >>> _ = torch.nn.init.zeros_(layer.weight)
    >>> model = layer_quadratic(lambda: layer(x), layer, torch.tensor([0]))
    >>> model.gradient[0].tolist(), round(model.largest_curvature, 6)  # S has the eigenvalue ½, x the square 3
    ([-0.5, -0.5, -0.5], 1.5)
    """
    seen: list[tuple[Any, Any]] = []
    hook = layer.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0].detach(), output)))
    try:
        logits = forward()
    finally:
        hook.remove()
    if len(seen) != 1:
        raise ParameterError("layer", len(seen), "one that forward() calls once; calls")
    inputs, outputs = seen[0]
    n, c = logits.shape
    inputs = inputs.reshape(n, -1, inputs.shape[-1]).double()
    rows = []
    for k in range(c):
        (signal,) = torch.autograd.grad(logits[:, k].sum(), outputs, retain_graph=True)
        signal = signal.reshape(n, -1, signal.shape[-1]).double()
        rows.append(torch.einsum("ntp,ntq->npq", signal, inputs))
    jacobian = torch.stack(rows, 1).flatten(2)  # (n, c, p·q)
    p = logits.detach().double().softmax(1)
    residual = p - torch.nn.functional.one_hot(labels, c)
    u = p.sqrt()
    factor = (u[..., None] * jacobian) - u[..., None] * (p[:, None] @ jacobian)
    factor = (factor / n**0.5).flatten(0, 1)
    gradient = torch.einsum("nc,ncd->d", residual, jacobian) / n
    gram = factor @ factor.T if len(factor) < factor.shape[1] else factor.T @ factor
    return LayerQuadratic(gradient.reshape(layer.weight.shape), factor, float(torch.linalg.eigvalsh(gram)[-1]))


def digits_layer(*, hidden: int = 32, steps: int = 60, samples: int = 400, seed: int = 0) -> LayerQuadratic:
    """The first layer, (hidden, 64), of a 64–hidden–hidden–10 network with tanh on scikit-learn's digits.

    It is part of the way through its training: ``steps`` full-batch steps of Adam with learning rate 0.01, not private.

    Examples
    --------
    >>> model = digits_layer(hidden=8, steps=10, samples=50)
    >>> model.gradient.shape, model.factor.shape, model.largest_curvature > 0  # 50 samples of 10 classes
    (torch.Size([8, 64]), torch.Size([500, 512]), True)
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(digits.target), generator=generator)[:samples]
    images = torch.from_numpy(digits.data).float()[chosen] / 16
    labels = torch.from_numpy(digits.target).long()[chosen]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = torch.nn.Sequential(
            torch.nn.Linear(64, hidden),
            torch.nn.Tanh(),
            torch.nn.Linear(hidden, hidden),
            torch.nn.Tanh(),
            torch.nn.Linear(hidden, 10),
        )
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
    return layer_quadratic(lambda: network(images), network[0], labels)


class StepRecord(NamedTuple):
    """One step of one method. Improvements are in units of ‖g‖²/(2λ_max), what a clean SGD step guarantees."""

    method: str
    signal: float  # top singular value of g in units of the detection threshold of the noise
    cosine: float  # cos(g, s)
    improvement: float
    bound: float  # valid lower bound
    printed_bound: float  # Proposition I.1 as printed
    printed_bound_applies: bool  # whether its missing premise holds
    weighted_bound: float  # valid lower bound from norms and cosine in the geometry of the preconditioner
    weighted_cosine: float  # cos_P(g, s)


def one_step_improvements(
    quadratic: LayerQuadratic,
    signals: Sequence[float] = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0),
    *,
    methods: Sequence[StepMethod] = ("adam", "adambc", "denoised"),
    draws: int = 10,
    past: int = 100,
    stability: float = 0.1,
    relative_step: float = 0.25,
    kappa: float = 1.02,
    seed: int = 0,
) -> list[StepRecord]:
    """Draw noisy gradients of a layer at several noise levels, and compare what the methods make of them.

    A step is ``-αPs``. The preconditioner P is made of ``past`` earlier noisy gradients at the same point:
    with v̂ their mean square, ``1/(√v̂ + γ)`` for "adam" and "denoised", ``1/√max(v̂ - Φ, γ')`` for "adambc", where Φ
    is the variance of the noise, γ = stability·√Φ and γ' = stability·Φ. The direction s is the noisy gradient, denoised
    with norm correction for "denoised". ``α = τ‖g‖/(λ_max p_max‖s‖)``, so that no step is longer than τ times the SGD
    step ``g/λ_max``.

    Note that Proposition I.1 is not true as printed: its lower bound on gᵀPs holds for one vector in the role of
    both, or under a further premise. `dprmt.spectra.adam_improvement_bound` has a counterexample, the corrected
    sharp bound, the P-weighted one and the printed one; all are recorded here. At equal norms and equal P ("adam" and
    "denoised"), the first and the last increase with the cosine, as Corollary I.2 says.

    Parameters
    ----------
    quadratic : LayerQuadratic
        g, H and λ_max(H).
    signals : sequence of float
        Noise levels, as the top singular value of g in units of the detection threshold; > 0.
    methods : sequence of {"adam", "adambc", "denoised"}
        Which to compare. They see the same noise.
    draws : int
        Noisy gradients per level.
    past : int
        Gradients behind v̂, say 1/(1 - β₂).
    stability, relative_step : float
        See above; τ is the second.
    kappa : float
        Gate of the denoiser, in units of the bulk edge.
    seed : int
        Of the noise.

    Examples
    --------
    >>> records = one_step_improvements(digits_layer(samples=50, steps=10, hidden=16), signals=[4.0], draws=2)
    >>> all(record.improvement >= record.bound for record in records)
    True
    """
    τ, g, λ = relative_step, quadratic.gradient, quadratic.largest_curvature
    top = float(torch.linalg.matrix_norm(g, 2))
    rows, columns = g.shape
    generator = torch.Generator().manual_seed(seed)
    records = []
    for signal in signals:
        σ = top / (signal * detection_threshold((rows, columns), 1.0))
        for _ in range(draws):
            noise = σ * torch.randn((past + 1, rows, columns), generator=generator, dtype=torch.float64)
            noisy, v = g + noise[0], (g + noise[1:]).square().mean(0)
            for method in methods:
                P = 1 / (v.sqrt() + stability * σ)
                if method == "adambc":
                    P = 1 / (v - σ**2).clamp_min(stability * σ**2).sqrt()
                s = denoise(noisy, σ, kappa, method="paper") if method == "denoised" else noisy
                α = τ * float(g.norm()) / (λ * float(P.max()) * float(s.norm()))
                found = adam_improvement_bound(
                    g.flatten(), s.flatten(), P.flatten(), quadratic.curvature, α, largest_curvature=λ * (1 + 1e-9)
                )
                unit = float(g.square().sum()) / (2 * λ)
                values = found.improvement / unit, found.bound / unit, found.printed_bound / unit
                weighted = found.weighted_bound / unit, found.weighted_cosine
                cosine = cosine_similarity(s, g)
                records.append(StepRecord(method, signal, cosine, *values, found.printed_bound_applies, *weighted))
    return records
