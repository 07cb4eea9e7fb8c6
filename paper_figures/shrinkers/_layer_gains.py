"""What removing the noise from a model's gradients would gain: ρ of every parameter, from a few backward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from dprmt._validation import ParameterError, check_count
from paper_figures.shrinkers._noise_gain import NoiseGain

WHOLE = "*"
_IGNORED = -100  # the label of positions that do not count


def layer_noise_gains(
    forward: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    named_parameters: Mapping[str, torch.Tensor],
    sigma: float,
    *,
    probes: int = 32,
    seed: int = 0,
    failure: float = 0.05,
) -> dict[str, NoiseGain]:
    """Gain of removing all noise in one step, by parameter and for all of them, at a cross-entropy loss.

    The most that *estimating* the gradient gains; no bound on maps that aim elsewhere (`noise_gain`).

    H is the Gauss–Newton matrix ``(1/n) Σ JᵢᵀSᵢJᵢ`` of the mean loss, ``S = diag(p) - ppᵀ = LLᵀ``. A backward pass
    from ``Lε/√n`` with ε ~ N(0, I) gives ``AᵀA = H`` the sample ``‖Aᵀε‖²`` of the traces of all diagonal blocks at
    once; ``gᵀHg`` is exact, from one product per parameter.

    Parameters
    ----------
    forward : callable
        Runs the model on a public or made-up batch: logits of shape (..., c), with a graph, and labels of shape (...),
        int64, -100 where there are none. Called once; the model should be in evaluation mode.
    named_parameters : mapping of str to Tensor
        Those that are trained, by name. The loss is as they are now.
    sigma : float
        Standard deviation of the noise in one entry of the gradient of the mean loss, >= 0. If clipping shrinks the
        gradient to c times itself, that is σ_DP·C/(c·L).
    probes : int
        Backward passes behind the traces, >= 1.
    seed : int
        Of ε.
    failure : float
        Probability in [1e-9, 0.5], of each ``upper`` by itself, that it is too small.

    Returns
    -------
    dict of NoiseGain
        By name, with noise in that parameter alone, and under ``"*"`` with noise in all of them. A parameter on which
        the logits do not depend has no entry.

    Raises
    ------
    ParameterError
        If there are no parameters, no labels, or a number is out of range.

    Formal guarantees
    -----------------
    None: a function of the batch. On private data the answer is private, and no accountant has counted it.

    References
    ----------
    docs/theory/when_denoising_helps.md, Eq. (2) and Theorem 1.

    Examples
    --------
    >>> layer = torch.nn.Linear(3, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(layer.weight)
    >>> forward = lambda: (layer(torch.ones(1, 3)), torch.tensor([0]))
    >>> gain = layer_noise_gains(forward, dict(layer.named_parameters()), sigma=1.0)["weight"]
    >>> round(gain.along_gradient, 6)  # g = (-½, ½) ⊗ (1, 1, 1), S has the eigenvalue ½ along (1, -1)
    2.25
    """
    if not named_parameters:
        raise ParameterError("named_parameters", named_parameters, "at least one parameter")
    count = check_count("probes", probes)
    names, parameters = list(named_parameters), list(named_parameters.values())
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the fused kernels cannot be differentiated twice
        logits, labels = forward()
        model = _GaussNewton(logits, labels, parameters)
        along = model.along_gradient()
        traces = model.trace_samples(count, seed)
    result = {
        name: NoiseGain.from_samples(traces[:, i].numpy(), float(along[i]), sigma, failure)
        for i, name in enumerate([*names, WHOLE])
        if along[i] > 0
    }
    return {name: result[name] for name in [*names, WHOLE] if name in result}


class _GaussNewton:
    """Gradient and curvature of the mean cross-entropy at the labelled positions."""

    def __init__(self, logits: torch.Tensor, labels: torch.Tensor, parameters: list[torch.Tensor]) -> None:
        labelled = labels != _IGNORED
        self.logits, self.parameters = logits[labelled], parameters
        self.count = len(self.logits)
        if self.count == 0:
            raise ParameterError("forward", tuple(labels.shape), "a function that gives labels; their shape")
        self.p = self.logits.detach().softmax(-1)
        self.residual = self.p - torch.nn.functional.one_hot(labels[labelled], self.p.shape[-1])

    def along_gradient(self) -> torch.Tensor:
        """``g_lᵀH_ll g_l`` by parameter, and ``gᵀHg``."""
        gradient = self._transposed(self.residual / self.count)
        cotangent = torch.zeros_like(self.logits, requires_grad=True)
        pulled = torch.autograd.grad(
            self.logits, self.parameters, cotangent, create_graph=True, allow_unused=True
        )  # Jᵀw, linear in w, whose derivative is Jv
        pushed = [self._pushed(image, g, cotangent) for image, g in zip(pulled, gradient, strict=True)]
        squares = [self._squared(image) for image in [*pushed, sum(pushed, start=torch.zeros_like(self.logits))]]
        return torch.tensor(squares, dtype=torch.float64)

    def trace_samples(self, probes: int, seed: int) -> torch.Tensor:
        """``‖A_lᵀε‖²`` by probe and parameter, with the sum over parameters last."""
        generator = torch.Generator().manual_seed(check_count("seed", seed, low=0))
        rows = []
        for _ in range(probes):
            ε = torch.randn(self.p.shape, generator=generator).to(self.p)
            root = self.p.sqrt()
            signal = root * (ε - root * (root * ε).sum(-1, keepdim=True)) / self.count**0.5
            rows.append([float(image.double().square().sum()) for image in self._transposed(signal)])
        samples = torch.tensor(rows, dtype=torch.float64)
        return torch.cat([samples, samples.sum(1, keepdim=True)], 1)

    def _transposed(self, signal: torch.Tensor) -> list[torch.Tensor]:
        # Jᵀ times a signal in the logits.
        images = torch.autograd.grad(self.logits, self.parameters, signal, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(images, self.parameters, strict=True)]

    def _pushed(self, pulled: torch.Tensor | None, v: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
        # J_l v for one parameter.
        if pulled is None:
            return torch.zeros_like(cotangent)
        (image,) = torch.autograd.grad(pulled, cotangent, v, retain_graph=True)
        return image

    def _squared(self, image: torch.Tensor) -> float:
        # ‖Lᵀ u‖²/n for u = Jv: the mean of uᵀSu.
        u = image.double()
        p = self.p.double()
        return float(((p * u * u).sum(-1) - (p * u).sum(-1) ** 2).clamp_min(0).mean())
