r"""The quadratic model of one linear layer of a real classifier: gradient and Gauss–Newton curvature.

With logits z_i of sample i, p_i their softmax and J_i the Jacobian of z_i in the layer's weights, the mean cross
entropy has the gradient ``(1/n) Σ J_iᵀ(p_i - y_i)`` and the Gauss–Newton matrix ``(1/n) Σ J_iᵀ S_i J_i`` with
``S = diag(p) - ppᵀ``. Since ``S = LLᵀ`` for ``L = diag(√p)(I - √p√pᵀ)`` (the bracket is a projection), it is
``H = AᵀA`` with the rows ``L_iᵀJ_i/√n``. So H is positive semidefinite, Hv costs two products with A, and its
largest eigenvalue is exactly that of the smaller of AᵀA and AAᵀ: an iteration would only bound it from below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dprmt._validation import ParameterError


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
        """Hv by two products with A.

        Parameters
        ----------
        v : Tensor, shape (p·q,)
            A change of the weights, row after row.

        Returns
        -------
        Tensor, shape (p·q,)
            float64.
        """
        return self.factor.T @ (self.factor @ v.to(self.factor))


def layer_quadratic(
    forward: Callable[[], torch.Tensor], layer: torch.nn.Module, labels: torch.Tensor
) -> LayerQuadratic:
    """The quadratic model of a layer, from one forward and c backward passes.

    Parameters
    ----------
    forward : callable
        Computes the logits, shape (n, c), with a graph; it calls ``layer`` once. Samples must not depend on each
        other (no batch normalisation).
    layer : Linear
        Applied to inputs of shape (n, q) or (n, T, q).
    labels : Tensor of int64, shape (n,)
        Classes.

    Returns
    -------
    LayerQuadratic
        Of the layer's weight, of shape (p, q).

    Raises
    ------
    ParameterError
        If ``layer`` is not linear or was not called exactly once.

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
    if not isinstance(layer, torch.nn.Linear):
        raise ParameterError("layer", type(layer).__name__, "a Linear layer")
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
    """The first layer of a small network on scikit-learn's digits, part of the way through its training.

    Parameters
    ----------
    hidden : int
        Width; the layer has shape (hidden, 64).
    steps : int
        Full-batch Adam steps before, with learning rate 0.01, not private.
    samples : int
        Images that make the model.
    seed : int
        Of weights and choice of images.

    Returns
    -------
    LayerQuadratic
        Of a 64–hidden–hidden–10 network with tanh.

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
