"""The measurements of the validation report: against literal ones, and that they reject a wrong theory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from dprmt import ParameterError
from dprmt.accounting import DPSGD, chi2_mixture_cdf
from dprmt.report.measurements import kappa_sweep, measure_alignment, private_gradients, recipe_experiment
from dprmt.report.measurements._norm_ratio import measure_norm_ratios
from dprmt.report.measurements._run import Experiment, GradientStep
from dprmt.report.measurements._spikes import agreement, measure_spikes
from dprmt.spectra import bulk_edge, detection_threshold, improvement, spike_map, vector_overlaps
from dprmt.training.data import per_sample_losses
from dprmt.training.harness import ItemTask
from dprmt.training.private_run._batches import Draws, poisson
from dprmt.training.private_run._randomness import fresh_randomness
from dprmt.training.recipes import Recipe, Settings
from tests.spectra.simulation import denoise_layers
from tests.training.literal import clipped_sum, gradients_of
from tests.training.tiny_recipe import recipe_in, write_data


def tiny_bert(items: int = 40, seed: int = 0, **changes: Any) -> Experiment:
    """A BERT of random weights, its query matrices and classifier trained, on random tokens."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
        sizes |= {"vocab_size": 50, "max_position_embeddings": 16, "num_labels": 3}
        config = BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        model = BertForSequenceClassification(config).train()
    for name, p in model.named_parameters():
        p.requires_grad_("query" in name or "classifier" in name)
    data = []
    for number in range(items):
        length = int(torch.randint(4, 12, (), generator=generator))
        ids = torch.randint(1, 50, (length,), generator=generator).tolist()
        data.append({"input_ids": ids, "labels": number % 3})

    def collate(batch: list[Any]) -> Any:
        longest = max(len(item["input_ids"]) for item in batch)
        rows = [item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in batch]
        ids = torch.tensor(rows)
        labels = torch.tensor([item["labels"] for item in batch])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}

    task = ItemTask(data, collate, per_sample_losses, lambda item: len(item["input_ids"]))
    return Experiment("tiny", model, task, settings(**changes))


def settings(**changes: Any) -> Settings:
    """Two steps of an expected 15 of 40 samples."""
    sections: dict[str, Any] = {
        "privacy": {"noise_multiplier": 0.5, "delta": 1e-5, "norms": "ghost"},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3},
        "training": {"batch_size": 15, "steps": 2, "micro_batch_size": 6},
        "denoising": {"method": "paper"},
    }
    return Settings(**sections).with_changes({key.replace("__", "."): value for key, value in changes.items()})


# --- the run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", ["exact", "ghost"])
def test_clean_gradients_are_the_clipped_sum_over_the_expected_batch(clipping: str) -> None:
    """Against gradients one by one, of the samples that the same generator draws."""
    experiment = tiny_bert(privacy__clipping_norm=0.7, privacy__norms=clipping)
    drawn = Draws(40, poisson(15, 40), fresh_randomness(0, 1)).at(0)
    alone = [per_sample_losses(experiment.model, experiment.task.collate([experiment.task.items[i]])) for i in drawn]
    expected = clipped_sum(gradients_of(experiment.model, alone), 0.7)
    step = next(private_gradients(experiment))
    assert (step.number, step.samples) == (0, len(drawn)) != (0, 15)
    assert step.sigma == pytest.approx(0.5 * 0.7 / 15)
    assert step.loss == pytest.approx(float(torch.cat(alone).detach().mean()), rel=1e-5)
    assert set(step.clean) == set(step.noisy) == set(expected)
    for name, total in expected.items():
        torch.testing.assert_close(step.clean[name], total / 15, rtol=1e-3, atol=1e-6)


# --- singular values ---------------------------------------------------------------------------------------------


def planted(
    strengths: list[float], shape: tuple[int, int] = (40, 160), sigma: float = 0.2, seed: int = 0
) -> GradientStep:
    """Rank-one layers of the given multiples of the detection threshold, and a bias."""
    rng = np.random.default_rng(seed)
    clean = {}
    for number, strength in enumerate(strengths):
        u, v = (x / np.linalg.norm(x) for x in (rng.standard_normal(side) for side in shape))
        clean[f"layer{number}"] = torch.as_tensor(strength * detection_threshold(shape, sigma) * np.outer(u, v))
    clean["bias"] = torch.ones(3, dtype=torch.float64)
    noisy = {name: x + sigma * torch.as_tensor(rng.standard_normal(tuple(x.shape))) for name, x in clean.items()}
    return GradientStep(4, sigma, 10, 1.0, clean, noisy)


@pytest.mark.parametrize("shape", [(12, 50), (50, 12)])
def test_spikes_against_literal_numpy(shape: tuple[int, int]) -> None:
    step, scales = planted([0.5, 2.0], shape), (1.0, 0.5)
    spikes = measure_spikes(step, draws=3, noise_scales=scales, seed=7)
    generator = torch.Generator().manual_seed(7)
    assert [(s.layer, s.noise_scale) for s in spikes] == [(f"layer{i}", scale) for i in range(2) for scale in scales]
    for spike in spikes:
        X, σ = step.clean[spike.layer].numpy(), 0.2 * spike.noise_scale
        U, λ, Vh = np.linalg.svd(X)
        edge, tops, left, right = bulk_edge(shape, σ), [], [], []
        for W in torch.randn((3, *shape), generator=generator, dtype=torch.float64).numpy():
            noisy_U, s, noisy_Vh = np.linalg.svd(X + σ * W)
            tops.append(s[0] / edge)
            left.append((noisy_U[:, 0] @ U[:, 0]) ** 2)
            right.append((noisy_Vh[0] @ Vh[0]) ** 2)
        assert spike.step == 4
        assert spike.shape == shape
        assert spike.signal_over_threshold == pytest.approx(λ[0] / detection_threshold(shape, σ))
        assert spike.mean == pytest.approx(np.mean(tops))
        assert spike.overlaps == pytest.approx((np.mean(left), np.mean(right)))
        assert spike.predicted == pytest.approx(spike_map(λ[0], shape, σ) / edge)
        assert spike.predicted_overlaps == pytest.approx(vector_overlaps(λ[0], shape, σ))
        released = np.linalg.svdvals(step.noisy[spike.layer].numpy())[0] / edge
        assert spike.single == pytest.approx(released if spike.noise_scale == 1 else tops[0])


def test_agreement_accepts_the_theory_and_rejects_wrong_ones() -> None:
    """Rank-one layers agree within 3 %; a noise level 15 % off, or swapped sides, do not."""
    strengths = np.linspace(1.5, 4.0, 12).tolist()
    step = planted(strengths, (60, 240))
    right = agreement(measure_spikes(step))
    assert right.count == 12
    assert right.large_error < 0.03
    assert right.overlap_large_error < 0.06
    assert right.passing == 1.0
    for factor in (0.85, 1.15):  # noise of σ, theory of factor·σ
        spikes = measure_spikes(step, noise_scales=[factor])
        errors = [
            s.mean
            * bulk_edge(s.shape, factor * 0.2)
            / spike_map(s.signal_over_threshold * detection_threshold(s.shape, factor * 0.2), s.shape, 0.2)
            - 1
            for s in spikes
        ]
        assert np.quantile(np.abs(errors), 0.95) > 0.05
    swapped = [np.subtract(s.overlaps, s.predicted_overlaps[::-1]) for s in measure_spikes(step)]
    assert np.quantile(np.abs(swapped), 0.95) > 0.2


# --- alignment ---------------------------------------------------------------------------------------------------


def test_alignment_and_sweep_are_those_of_the_library() -> None:
    """The sweep uses inner products measured once; here every gate is applied to the gradient itself."""
    steps = [planted(np.linspace(0.0, 2.0, 9).tolist(), seed=seed) for seed in range(3)]
    measured = [measure_alignment(step, kappa=1.05) for step in steps]
    for step, result in zip(steps, measured, strict=True):
        for correction, value in ((True, result.corrected), (False, result.uncorrected)):
            denoised, _ = denoise_layers(step.noisy, step.sigma, 1.05, correction)
            assert value == pytest.approx(improvement(denoised, step.noisy, step.clean), abs=1e-12)
    kappas = (1.0, 1.01, 1.03, 1.05, 1.2, 3.0)
    for point, kappa in zip(kappa_sweep(measured, kappas), kappas, strict=True):
        gains, passing, better = [], [], []
        for step in steps:
            denoised, report = denoise_layers(step.noisy, step.sigma, kappa)
            gains.append(improvement(denoised, step.noisy, step.clean))
            for name, layer in report.items():
                if layer.top_over_edge is not None:
                    passing.append(layer.denoised)
                    if layer.denoised:
                        better.append(improvement(denoised[name], step.noisy[name], step.clean[name]) > 0)
        assert point.kappa == kappa
        assert point.improvement == pytest.approx(np.mean(gains), abs=1e-12)
        assert point.passing == pytest.approx(np.mean(passing))
        assert point.improved == pytest.approx(np.mean(better) if better else math.nan, nan_ok=True)
        assert (point.matrices, point.passed, point.gained) == (len(passing), sum(passing), sum(better))
    assert 0 < kappa_sweep(measured)[0].passing < 1
    with pytest.raises(ParameterError, match="steps"):
        kappa_sweep([])
    with pytest.raises(ParameterError, match="kappa"):
        kappa_sweep(measured, [0.9])


# --- norms -------------------------------------------------------------------------------------------------------


def test_norm_ratios_follow_their_law_and_reject_others() -> None:
    """The law with k probes fits within the band, those with k/2 and 2k do not; the envelope is kept."""
    experiment = tiny_bert()
    norms = measure_norm_ratios(experiment.model, experiment.task, samples=10, draws=200, probes=8)
    assert norms.samples * norms.draws == len(norms.ratios) == 2000
    assert np.mean(norms.ratios) == pytest.approx(1.0, abs=4 * np.std(norms.ratios) / math.sqrt(2000))
    assert norms.distance <= norms.band
    assert norms.over_envelope <= norms.band
    assert norms.band == pytest.approx(math.sqrt(math.log(2 * math.e / 0.01) / 4000))
    for probes in (4, 16):
        other = measure_norm_ratios(experiment.model, experiment.task, samples=10, draws=2, probes=probes)
        at = np.interp(norms.points, other.points, other.predicted)
        assert np.abs(norms.empirical - at).max() > norms.band
    np.testing.assert_allclose(norms.empirical, [(norms.ratios <= x).mean() for x in norms.points])
    assert (norms.predicted <= norms.envelope + 1e-9).all()


def test_norms_and_law_are_those_of_samples_taken_one_by_one() -> None:
    experiment = tiny_bert(items=6)
    norms = measure_norm_ratios(experiment.model, experiment.task, samples=6, draws=1, probes=4)
    alone = [per_sample_losses(experiment.model, experiment.task.collate([item])) for item in experiment.task.items]
    laws, ranks = [], []
    for gradients in gradients_of(experiment.model, alone):
        biases = {name.removesuffix("bias"): value for name, value in gradients.items() if name.endswith("bias")}
        whole = [torch.cat([gradients[f"{name}weight"], bias[:, None]], 1) for name, bias in biases.items()]
        weights = torch.cat([torch.linalg.svdvals(value.double()).square() for value in whole]).numpy()
        weights = weights[weights > 1e-12 * weights.max()]
        ranks.append(len(weights))
        laws.append(chi2_mixture_cdf(norms.points, weights / weights.sum() / 4, np.full(len(weights), 4.0)))
    np.testing.assert_allclose(norms.predicted, np.mean(laws, axis=0), rtol=1e-3)
    assert norms.rank == max(ranks)


# --- from a recipe -----------------------------------------------------------------------------------------------


def tiny_recipe(folder: Any, **changes: Any) -> Recipe:
    write_data(folder)
    return recipe_in(folder, **({"privacy.noise_multiplier": 0.4, "training.steps": 3} | changes))


def test_a_recipe_becomes_an_experiment(tmp_path: Any) -> None:
    setting = recipe_experiment(tiny_recipe(tmp_path))
    assert setting.settings.training.steps == 3
    assert setting.settings.privacy.noise_multiplier == 0.4
    assert setting.settings.denoising.method == "paper"
    steps = list(private_gradients(setting, steps=2))
    assert len(steps) == 2
    assert len(measure_spikes(steps[0])) == 5  # two adapters of two matrices each, and the head


def test_a_target_is_met_by_the_charged_rate(tmp_path: Any) -> None:
    target = {"privacy.noise_multiplier": None, "privacy.target_epsilon": 3.0}
    sigma = recipe_experiment(tiny_recipe(tmp_path, **target)).settings.privacy.noise_multiplier
    assert 2.99 < DPSGD(sigma, poisson(12, 60)).epsilon(steps=3, delta=1e-4).upper <= 3.0


def test_gradients_of_a_recipe_in_a_subspace_are_seen_there(tmp_path: Any) -> None:
    found = recipe_experiment(tiny_recipe(tmp_path, **{"optimizer.name": "grape", "optimizer.rank": 2}))
    (step,) = private_gradients(found, steps=1)
    shapes = {tuple(x.shape) for x in step.noisy.values()}
    assert {min(shape) for shape in shapes} == {2}
    assert {tuple(x.shape) for x in step.clean.values()} == shapes


def test_layers_that_are_left_alone_count_as_they_are() -> None:
    """Excluding a layer is leaving its noisy gradient in place; it is no matrix of the sweep."""
    generator = torch.Generator().manual_seed(0)
    clean = {name: torch.full((8, 60), 0.6, dtype=torch.float64) for name in ("query", "classifier")}
    noisy = {name: x + torch.randn(8, 60, generator=generator, dtype=torch.float64) for name, x in clean.items()}
    step = GradientStep(0, 1.0, 10, 0.7, clean, noisy)
    measured = measure_alignment(step, exclude=["class*"])
    half, _ = denoise_layers({"query": noisy["query"]}, 1.0, 1.02)
    assert measured.corrected == pytest.approx(improvement({**noisy, **half}, noisy, clean))
    assert [layer.top_over_edge is None for layer in measured.layers] == [False, True]
    assert measured.corrected < measure_alignment(step).corrected
