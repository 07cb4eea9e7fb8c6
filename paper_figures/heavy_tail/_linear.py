r"""Per-sample gradients of the linear softmax model in closed form, never materialised.

With ``p = softmax(Wx)`` and y as a unit vector, the gradient of ``-log p_y`` in W is the outer product
``(p - y)xᵀ``. Hence its norm is ``‖p - y‖‖x‖``; two of them have the inner product
``((p - y)·(p' - y'))(x·x')``; and a weighted sum over samples is ``Rᵀ diag(weights) X`` with the rows p - y of R.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from dprmt._validation import ParameterError, check_real
from dprmt.training.norms import clip_factors
from paper_figures.heavy_tail._products import FloatInputs, Inputs


class ClippedSum(NamedTuple):
    """The sum of clipped per-sample gradients, and what the same forward pass tells about the samples."""

    gradient: torch.Tensor
    """Σ_i min(1, C/‖g_i‖) g_i, shape (c, d)."""
    losses: torch.Tensor
    """-log p_y, shape (n,). Private."""
    correct: torch.Tensor
    """Whether the label has the largest logit, bool, shape (n,). Private."""


def residuals(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The gradient of every sample's loss in its logits, p - y.

    Parameters
    ----------
    logits : Tensor, shape (n, c)
        Wx.
    labels : Tensor of int64, shape (n,)
        Classes.

    Returns
    -------
    Tensor, shape (n, c)
        In the dtype of the logits; entries in [-1, 1], rows that add up to 0. Private.

    Examples
    --------
    >>> residuals(torch.zeros(1, 2), torch.tensor([1]))
    tensor([[ 0.5000, -0.5000]])
    """
    result = logits.softmax(1)
    result[torch.arange(len(labels), device=labels.device), labels] -= 1
    return result


def per_sample_gradient_norms(weight: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The norm of every sample's gradient, ‖p - y‖‖x‖.

    Parameters
    ----------
    weight : Tensor, shape (c, d)
        W.
    inputs : Tensor, shape (n, d)
        The samples x.
    labels : Tensor of int64, shape (n,)
        Their classes.

    Returns
    -------
    Tensor, shape (n,)
        float64. Private.

    Formal guarantees
    -----------------
    None: an exact function of the samples, without noise.

    Examples
    --------
    >>> x = torch.tensor([[3.0, 4.0]])
    >>> per_sample_gradient_norms(torch.zeros(2, 2), x, torch.tensor([0]))
    tensor([3.5355], dtype=torch.float64)
    """
    rows = residuals(inputs @ weight.T, labels)
    return (_squares(rows) * _squares(inputs)).sqrt()


def clipped_gradient_sum(
    weight: torch.Tensor,
    inputs: torch.Tensor | Inputs,
    labels: torch.Tensor,
    clipping_norm: float,
    *,
    squared_input_norms: torch.Tensor | None = None,
) -> ClippedSum:
    """Clip every sample's gradient exactly and add them up, with two matrix products in all.

    Parameters
    ----------
    weight : Tensor, shape (c, d)
        W, float32 or float64.
    inputs : Tensor, shape (n, d), or EightBitInputs
        The samples. In bfloat16 both products run in it. This rounds W and the weighted residuals for the product
        alone; W itself stays as it is. For 8-bit inputs see `EightBitInputs`.
    labels : Tensor of int64, shape (n,)
        Their classes.
    clipping_norm : float
        C > 0.
    squared_input_norms : Tensor, shape (n,), optional
        ‖x‖² in float64, if known from an earlier step.

    Returns
    -------
    ClippedSum
        The sum in the dtype of W, the losses and whether each sample was right.

    Raises
    ------
    ParameterError
        If ``clipping_norm`` is out of range or shapes do not match.

    Formal guarantees
    -----------------
    Adding or removing a sample changes the sum by at most C in Frobenius norm, up to the rounding of the sum
    itself; the norm's own rounding is taken off the clip factor (`dprmt.training.norms.clip_factors`), and for
    bfloat16 and 8-bit inputs that of the weighted residuals as well.

    References
    ----------
    Algorithm 1, lines 4 to 7, of the heavy-tail class imbalance paper on DP-AdamBC.

    Examples
    --------
    >>> x, y = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
    >>> clipped_gradient_sum(torch.zeros(2, 2), x, y, 1.0).gradient
    tensor([[-0.4242, -0.5656],
            [ 0.4242,  0.5656]])
    """
    bound = check_real("clipping_norm", clipping_norm, low=0.0, low_open=True)
    samples = FloatInputs(inputs) if isinstance(inputs, torch.Tensor) else inputs
    if weight.ndim != 2 or samples.shape[1] != weight.shape[1]:
        raise ParameterError("inputs", tuple(samples.shape), f"of shape (n, {weight.shape[-1]})")
    if labels.shape != samples.shape[:1]:
        raise ParameterError("labels", tuple(labels.shape), f"of shape ({samples.shape[0]},)")
    logits = samples.logits(weight)
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    correct = logits.argmax(1) == labels
    rows = residuals(logits, labels)
    x_norms = samples.squared_norms() if squared_input_norms is None else squared_input_norms
    factors = clip_factors(_squares(rows) * x_norms, bound, rounding=samples.rounding(len(weight)))
    rows.mul_(factors.to(rows.dtype)[:, None])
    return ClippedSum(samples.weighted_sum(rows, bound), losses, correct)


def gradient_cosines(weight: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cosine similarity of every pair of per-sample gradients.

    Parameters
    ----------
    weight : Tensor, shape (c, d)
        W.
    inputs : Tensor, shape (n, d)
        The samples; sort them by class to see the blocks of Figure 1.
    labels : Tensor of int64, shape (n,)
        Their classes.

    Returns
    -------
    Tensor, shape (n, n)
        float64 in [-1, 1]. A sample whose gradient vanishes has cosine 0 with all. Private.

    Formal guarantees
    -----------------
    None: an exact function of the samples, without noise.

    References
    ----------
    Section 2.3 and Figure 1 of the heavy-tail class imbalance paper on DP-AdamBC.

    Examples
    --------
    >>> x, y = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1])
    >>> gradient_cosines(torch.zeros(2, 2), x, y)[0]
    tensor([ 1.0000, -0.7071], dtype=torch.float64)
    """
    x = inputs.double()
    rows = residuals(x @ weight.double().T, labels)
    return (_cosines(rows) * _cosines(x)).clamp(-1.0, 1.0)


class CosineByClass(NamedTuple):
    """Mean cosine of per-sample gradients, of pairs of different samples."""

    within: float
    """Over pairs of one class."""
    across: float
    """Over pairs of two classes."""


def cosine_by_class(cosines: torch.Tensor, labels: torch.Tensor) -> CosineByClass:
    """Mean of the cosines within classes and across them.

    Parameters
    ----------
    cosines : Tensor, shape (n, n)
        As from `gradient_cosines`.
    labels : Tensor of int64, shape (n,)
        Classes.

    Returns
    -------
    CosineByClass
        In [-1, 1]; NaN where there is no such pair. Private.

    Examples
    --------
    >>> cosines = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.25], [0.0, 0.25, 1.0]])
    >>> cosine_by_class(cosines, torch.tensor([0, 0, 1]))
    CosineByClass(within=0.5, across=0.125)
    """
    same = labels[:, None] == labels[None]
    pairs = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    within, across = (float(cosines[pairs & chosen].double().mean()) for chosen in (same, ~same))
    return CosineByClass(within, across)


def _cosines(vectors: torch.Tensor) -> torch.Tensor:
    norms = vectors.norm(dim=1, keepdim=True)
    unit = torch.where(norms > 0, vectors / norms, 0.0)
    return unit @ unit.T


def _squares(vectors: torch.Tensor) -> torch.Tensor:
    return vectors.double().square().sum(1)
