"""One step on a real layer's curvature: the curvature against autograd, the records against the definition."""

from __future__ import annotations

import numpy as np
import pytest

from dprmt.spectra import cosine_similarity

torch = pytest.importorskip("torch")

from paper_figures.quadratic import (  # noqa: E402
    LayerQuadratic,
    digits_layer,
    layer_quadratic,
    one_step_improvements,
)


def small_network():
    torch.manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).double()
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return network, x, torch.tensor([0, 1, 2, 0, 1, 1])


def test_gradient_and_curvature_are_those_of_autograd() -> None:
    network, x, labels = small_network()
    model = layer_quadratic(lambda: network(x), network[0], labels)

    def logits(weight):
        parameters = dict(network.named_parameters()) | {"0.weight": weight}
        return torch.func.functional_call(network, parameters, (x,))

    weight = network[0].weight.detach()
    loss = torch.func.grad(lambda w: torch.nn.functional.cross_entropy(logits(w), labels))
    torch.testing.assert_close(model.gradient, loss(weight), rtol=1e-10, atol=1e-14)
    J = torch.func.jacrev(logits)(weight).flatten(2)
    H = torch.zeros(20, 20, dtype=torch.float64)
    for i in range(6):
        p = logits(weight)[i].softmax(0)
        H += J[i].T @ (torch.diag(p) - torch.outer(p, p)) @ J[i] / 6
    H = H.detach()
    torch.testing.assert_close(model.factor.T @ model.factor, H, rtol=1e-10, atol=1e-14)
    v = torch.arange(20.0, dtype=torch.float64)
    torch.testing.assert_close(model.curvature(v), H @ v, rtol=1e-10, atol=1e-12)
    assert model.largest_curvature == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-10)


@pytest.fixture(scope="module")
def layer() -> LayerQuadratic:
    return digits_layer(samples=80, hidden=16, steps=30)


def test_records_are_the_definition(layer: LayerQuadratic) -> None:
    """Repeats the draws and evaluates f(x) - f(x - αPs) literally."""
    from dprmt.spectra import denoise, detection_threshold

    records = one_step_improvements(layer, signals=[3.0], draws=2, past=5, stability=0.2, relative_step=0.5, seed=9)
    g, λ = layer.gradient, layer.largest_curvature
    σ = float(torch.linalg.svdvals(g)[0]) / (3.0 * detection_threshold(tuple(g.shape), 1.0))
    generator = torch.Generator().manual_seed(9)
    for draw in range(2):
        z = σ * torch.randn((6, *g.shape), generator=generator, dtype=torch.float64)
        v = ((g + z[1:]) ** 2).mean(0)
        for record in records[3 * draw : 3 * draw + 3]:
            P = 1 / (v.sqrt() + 0.2 * σ)
            if record.method == "adambc":
                P = 1 / torch.sqrt(torch.clamp(v - σ**2, min=0.2 * σ**2))
            s = denoise(g + z[0], σ, 1.02, method="paper") if record.method == "denoised" else g + z[0]
            step = 0.5 * g.norm() / (λ * P.max() * s.norm()) * (P * s).flatten()
            decrease = g.flatten() @ step - (layer.factor @ step).square().sum() / 2
            assert record.improvement == pytest.approx(float(decrease / (g.square().sum() / (2 * λ))), rel=1e-9)
            assert record.cosine == pytest.approx(cosine_similarity(s, g), rel=1e-12)
            assert float(step.norm()) <= 0.5 * float(g.norm()) / λ * (1 + 1e-12)


def test_bound_is_valid_and_the_step_is_worth_more_with_less_noise(layer: LayerQuadratic) -> None:
    records = one_step_improvements(layer, signals=[0.5, 2.0, 6.0], draws=4)
    assert {record.method for record in records} == {"adam", "adambc", "denoised"}
    assert all(record.improvement >= record.bound for record in records)
    assert all(record.bound <= record.printed_bound + 1e-12 for record in records)
    assert all(record.bound <= record.weighted_bound <= record.improvement for record in records)
    cosines = [np.mean([r.cosine for r in records if (r.signal, r.method) == (s, "adam")]) for s in (0.5, 2.0, 6.0)]
    assert cosines == sorted(cosines)
