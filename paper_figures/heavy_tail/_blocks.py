r"""Section 2.1: gradient and Hessian of the linear softmax model, one class's weights at a time.

For the mean loss over n samples and the row w_k of W,

- ``∇_{w_k} L = (1/n) Σ_i (p_ik - 1[y_i = k]) x_i``,
- ``∇²_{w_k} L = (1/n) Σ_i p_ik(1 - p_ik) x_i x_iᵀ``.

Samples of class k contribute ``-(1 - p)π_k x̄^k`` and ``p(1 - p)π_k H̄^k``, if all of them give it the same
probability p; those of other classes the rest, which is small once these give class k about 1/c. Hence both blocks
are in proportion to the frequency π_k = n_k/n. (The paper's gradient has the opposite sign.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dprmt._validation import ParameterError
from paper_figures.heavy_tail._linear import residuals


@dataclass(frozen=True)
class ClassBlocks:
    """Size of gradient and Hessian blocks by class. Private.

    Attributes
    ----------
    frequency : Tensor, shape (c,)
        π_k.
    probability : Tensor, shape (c,)
        Mean probability that the samples of a class give to it, p; NaN for a class without samples.
    gradient : Tensor, shape (c, d)
        ∇L, the rows in order.
    predicted_gradient : Tensor, shape (c, d)
        ``-(1 - p)π_k x̄^k``.
    hessian_trace : Tensor, shape (c,)
        Trace of ∇²_{w_k} L.
    predicted_hessian_trace : Tensor, shape (c,)
        ``p(1 - p)π_k tr H̄^k``.
    """

    frequency: torch.Tensor
    probability: torch.Tensor
    gradient: torch.Tensor
    predicted_gradient: torch.Tensor
    hessian_trace: torch.Tensor
    predicted_hessian_trace: torch.Tensor


def class_blocks(weight: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> ClassBlocks:
    """Gradient and Hessian blocks against class frequency.

    Parameters
    ----------
    weight : Tensor, shape (c, d)
        W.
    inputs : Tensor, shape (n, d)
        The samples x.
    labels : Tensor of int64, shape (n,)
        Their classes, in 0 … c - 1.

    Returns
    -------
    ClassBlocks
        In float64. Predictions of a class without samples are 0.

    Raises
    ------
    ParameterError
        If shapes do not match or a label is out of range.

    References
    ----------
    Section 2.1 of the heavy-tail class imbalance paper on DP-AdamBC, after Kunstner et al., arXiv:2402.19449.

    Examples
    --------
    >>> x, y = torch.ones(4, 2), torch.tensor([0, 0, 0, 1])
    >>> blocks = class_blocks(torch.zeros(2, 2), x, y)
    >>> blocks.frequency.tolist(), blocks.hessian_trace.tolist(), blocks.predicted_hessian_trace.tolist()
    ([0.75, 0.25], [0.5, 0.5], [0.375, 0.125])
    """
    if weight.ndim != 2 or inputs.ndim != 2 or inputs.shape[1] != weight.shape[1] or labels.shape != inputs.shape[:1]:
        shapes = tuple(weight.shape), tuple(inputs.shape), tuple(labels.shape)
        raise ParameterError("weight, inputs, labels", shapes, "of shapes (c, d), (n, d), (n,)")
    n, c = len(labels), len(weight)
    if n == 0 or not 0 <= int(labels.min()) <= int(labels.max()) < c:
        raise ParameterError("labels", labels.unique().tolist(), f"classes in [0, {c - 1}], at least one")
    x = inputs.double()
    rows = residuals(x @ weight.double().T, labels)
    own = torch.nn.functional.one_hot(labels, c).double()
    p = rows + own
    squares, counts = x.square().sum(1), own.sum(0)
    probability = (p * own).sum(0) / counts
    known = torch.where(counts > 0, probability, 0.0)
    return ClassBlocks(
        frequency=counts / n,
        probability=probability,
        gradient=rows.T @ x / n,
        predicted_gradient=-(1 - known)[:, None] * (own.T @ x) / n,
        hessian_trace=(p * (1 - p)).T @ squares / n,
        predicted_hessian_trace=known * (1 - known) * (own.T @ squares) / n,
    )
