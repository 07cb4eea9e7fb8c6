"""The network of the barcode study."""

from __future__ import annotations

import torch

from dprmt._validation import check_count


def barcode_network(classes: int, *, seed: int = 0) -> torch.nn.Module:
    """Two convolutions with pooling and a linear layer, for images of shape (1, 28, 28).

    conv 5×5 (32) – ReLU – max pool 2 – conv 5×5 (100) – ReLU – max pool 2 – linear.

    Parameters
    ----------
    classes : int
        Number of outputs.
    seed : int
        Of the initial weights, which are torch's default ones.

    Returns
    -------
    Module
        With all layers known to Opacus; from images of shape (B, 1, 28, 28) to logits of shape (B, classes).

    Raises
    ------
    ParameterError
        If ``classes`` is not an integer >= 1.

    References
    ----------
    Appendix B of the heavy-tail class imbalance paper on DP-AdamBC ("2-convolution-layer CNN"); sizes after
    arXiv:2402.19449.

    Examples
    --------
    >>> barcode_network(330)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 330])
    """
    classes = check_count("classes", classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 5),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(32, 100, 5),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(1600, classes),
        )
