"""Noise gains of a model's parameters against the Gauss–Newton matrix written out."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paper_figures.shrinkers import layer_noise_gains  # noqa: E402


@pytest.fixture(scope="module")
def problem():
    """A network with attention, its logits for some labelled positions, and the Gauss–Newton blocks."""
    torch.manual_seed(0)
    width = 4

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.head = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, 3)
            self.unused = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            q, k, v = self.mix(x).chunk(3, -1)
            return self.head(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))

    network = Network().double()
    x, labels = torch.randn(3, 2, 5, width).double().flatten(0, 1)[:4], torch.tensor([[0, 1, 2, -100, 1]] * 4)
    return network, x, labels


def literal(network, x, labels):
    """G and H of the mean cross-entropy, by jacrev."""
    names = ["mix.weight", "mix.bias", "head.weight", "head.bias"]
    shapes = {name: dict(network.named_parameters())[name].shape for name in names}

    def logits(flat):
        parts, start = dict(network.named_parameters()), 0
        for name, shape in shapes.items():
            parts[name] = flat[start : start + shape.numel()].view(shape)
            start += shape.numel()
        return torch.func.functional_call(network, parts, (x,))[labels != -100]

    flat = torch.cat([dict(network.named_parameters())[name].detach().flatten() for name in names])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        J = torch.func.jacrev(logits)(flat).detach()
        p = logits(flat).detach().softmax(-1)
    y = torch.nn.functional.one_hot(labels[labels != -100], 3)
    g = torch.einsum("nc,ncd->d", p - y, J) / len(p)
    S = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    ends = np.cumsum([0, *(shape.numel() for shape in shapes.values())])
    H = torch.einsum("ncd,nce,nef->df", J, S, J) / len(p)
    return g, H, {name: slice(a, b) for name, a, b in zip(names, ends[:-1], ends[1:], strict=True)}


def test_equals_the_matrix_written_out(problem):
    """G and curvature to rounding; traces within four standard errors, and not those of half the noise."""
    network, x, labels = problem
    g, H, blocks = literal(network, x, labels)
    sigma, probes = 0.3, 2000
    found = layer_noise_gains(lambda: (network(x), labels), dict(network.named_parameters()), sigma, probes=probes)
    assert list(found) == [*blocks, "*"]
    for name, block in [*blocks.items(), ("*", slice(None))]:
        part = H[block, block]
        along, trace = float(g[block] @ part @ g[block]), float(part.trace())
        error = float(2 * (part**2).sum() / probes) ** 0.5
        assert found[name].along_gradient == pytest.approx(along, rel=1e-9)
        assert abs(found[name].trace - trace) < 4 * error
        assert abs(found[name].trace - trace / 2) > 4 * error
        assert found[name].rho == pytest.approx(sigma**2 * found[name].trace / along)
        assert found[name].upper > sigma**2 * trace / along
