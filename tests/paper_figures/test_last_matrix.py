"""The study on digits again, of an adapter in a pretrained last matrix: its sums, its page, what is said of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dprmt._files import read_lines
from dprmt.training.models import load_model
from dprmt.training.recipes import LoraRecipe, ModelRecipe
from paper_figures.denoising._last_decoder import IGNORED, LastDecoder, padded, states
from paper_figures.digits import (
    ADAPTERS,
    METHODS,
    Run,
    Setting,
    _tuning,
    false_alarms,
    runs_of,
    train,
    with_tables,
)
from paper_figures.digits._adapted import LENGTH, WEIGHT, AdaptedEncoder, Norm, Texts
from paper_figures.digits._adapted_decoder import AdaptedDecoder, Text
from paper_figures.digits._page import beside_many, corrected, corrected_blend, readings
from paper_figures.digits._tuning import NULL
from paper_figures.long_runs import _denoisers
from paper_figures.long_runs._denoisers import study_of
from paper_figures.long_runs._stored import PAGE, read
from paper_figures.long_runs.last_matrix import STUDY

WIDTH, RANK, CLASSES = 6, 2, 3


def drawn_texts(count: int, seed: int) -> Texts:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 11, (count,), generator=generator).tolist()
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    patterns = 2 * torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(99))
    fixed = [
        torch.randn(length, WIDTH, generator=generator) + patterns[label]
        for length, label in zip(lengths, labels, strict=True)
    ]
    return Texts(fixed, [torch.randn(length, RANK, generator=generator) for length in lengths], labels)


def encoder() -> AdaptedEncoder:
    generator = torch.Generator().manual_seed(7)
    norm = Norm(torch.rand(WIDTH, generator=generator) + 0.5, torch.randn(WIDTH, generator=generator), 1e-12)
    return AdaptedEncoder(norm, drawn_texts(200, 1), drawn_texts(40, 2), drawn_texts(40, 3))


def one_by_one(samples: AdaptedEncoder, places: torch.Tensor):  # type: ignore[no-untyped-def]
    """c, a and label of every text at these places, without its filling."""
    for place in places.tolist():
        for block in samples._train.blocks:
            for row in torch.nonzero(block.places == place)[:, 0].tolist():
                length = int((block.share[row] > 0).sum())
                yield block.fixed[row, :length], block.inputs[row, :length], block.labels[row]


def test_clipped_sums_are_those_of_one_text_after_the_other() -> None:
    samples = encoder()
    generator = torch.Generator().manual_seed(0)
    weights = samples.start(0, [3])
    weights["adapter"] = 0.3 * torch.randn(weights["adapter"].shape, generator=generator)
    drawn = torch.randperm(200, generator=generator)[:60]
    clip = 1.2  # some of these norms are larger, some smaller
    found = samples.clipped_sum(weights, drawn, clip)
    total, clipped, count = {name: torch.zeros_like(value[0]) for name, value in weights.items()}, 0, 0
    for fixed, inputs, label in one_by_one(samples, drawn):
        own = {name: value[0].clone().requires_grad_() for name, value in weights.items()}
        states = torch.nn.functional.layer_norm(
            fixed + inputs @ own["adapter"].T, (WIDTH,), samples._norm.weight, samples._norm.bias, 1e-12
        )
        out = states.mean(0) / LENGTH @ own["head"] + own["head bias"]
        gradient = torch.autograd.grad(torch.nn.functional.cross_entropy(out, label), list(own.values()))
        of = dict(zip(own, gradient, strict=True))
        of["adapter"] = WEIGHT * of["adapter"]
        norm = math.sqrt(sum(float(value.square().sum()) for value in of.values()))
        clipped, count = clipped + (norm > clip), count + 1
        for name, value in of.items():
            total[name] += min(1.0, clip / norm) * value
    assert count == 60
    assert 5 < clipped < 55
    for name, value in total.items():
        torch.testing.assert_close(found[name][0], value, rtol=1e-4, atol=1e-4)


def test_a_text_s_place_is_its_own_whatever_its_length() -> None:
    texts = drawn_texts(50, 4)
    places = torch.tensor([3, 17, 30, 49])
    blocks = list(texts.drawn(places))
    assert sorted(place for block in blocks for place in block.places.tolist()) == places.tolist()
    for block in blocks:
        torch.testing.assert_close(block.share.sum(1), torch.ones(len(block.labels)))
    assert texts.size == sum(len(block.places) for block in texts.blocks) == 50


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_adapter_and_head(method: str) -> None:
    samples, setting = encoder(), Setting(epsilon=8.0, batch=60, steps=4, hidden=0, of="texts")
    runs = [Run(0.1, 1, 1), Run(0.03, 2, 2)]
    together = train(setting, method, runs, samples, look=True)
    alone = [train(setting, method, [run], samples)[0] for run in runs]
    assert [one.tune_loss for one in together] == pytest.approx([one.tune_loss for one in alone], rel=1e-4)
    assert set(together[0].over) == {"adapter", "head"}
    assert samples.sizes == [200, 40, 40]


def test_what_is_learnt_is_seen_in_texts_that_were_not_trained_on() -> None:
    samples, setting = encoder(), Setting(epsilon=50.0, batch=100, steps=30, hidden=0, of="texts")
    (ended,) = train(setting, "Adam", [Run(0.1, 1, 1)], samples)
    assert ended.test > 0.8  # a third by chance


def small_decoder(rank: int = 2) -> tuple[LastDecoder, list[Text]]:
    """Two heads share their values; texts of several lengths, of some words among many."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    lora = LoraRecipe(rank=rank, alpha=3.0 * rank, targets=("layers.1.self_attn.v_proj",))
    options = {
        "architecture": "llama",
        "tokenizer": "bytes",
        "config": {**sizes, "intermediate_size": 32},
        "lora": lora,
    }
    model = load_model(ModelRecipe("generation", **options)).model.eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(5, 60, (length,), generator=generator).tolist() for length in (4, 9, 6, 5, 7, 8) * 4]
    labels = [[IGNORED] * (place % 3) + text[place % 3 :] for place, text in enumerate(texts)]
    end = LastDecoder(model)
    for module in end.layer.self_attn.v_proj.lora_B.values():
        torch.nn.init.normal_(module.weight, generator=generator)  # of which nothing may be used
    return end, list(zip(states(model, texts), labels, strict=True))


@pytest.fixture(scope="module")
def decoder() -> AdaptedDecoder:
    end, texts = small_decoder()
    return AdaptedDecoder(end, texts[:16], texts[16:20], texts[20:])


def one_text(end: LastDecoder, words: torch.Tensor, text: Text) -> tuple[torch.Tensor, torch.Tensor]:
    """Its logits of these words and its right ones, through the whole last layer with the adapter in it."""
    hidden, targets = padded([text[0]], [text[1]])
    learnt = targets != IGNORED
    return end.output(end.last_states(hidden, learnt))[:, words], torch.searchsorted(words, targets[learnt])


def test_a_decoder_s_clipped_sums_are_those_of_its_losses_one_after_the_other(decoder: AdaptedDecoder) -> None:
    end, texts = small_decoder()
    weights = decoder.start(0, [0])
    weights["adapter"] += 0.1 * torch.randn(weights["adapter"].shape, generator=torch.Generator().manual_seed(1))
    drawn, clip = torch.tensor([0, 3, 4, 9, 10]), 0.15
    found = decoder.clipped_sum(weights, drawn, clip)["adapter"][0]
    (inside,) = (module.weight for module in end.layer.self_attn.v_proj.lora_B.values())
    with torch.no_grad():
        inside.copy_(weights["adapter"][0])
    inside.requires_grad_()
    total, norms = torch.zeros_like(found), []
    for place in drawn.tolist():
        loss = torch.nn.functional.cross_entropy(*one_text(end, decoder.words, texts[place]))
        (gradient,) = torch.autograd.grad(loss, inside)
        norms.append(float(gradient.norm()))
        total += min(1.0, clip / norms[-1]) * gradient
    assert min(norms) < clip < max(norms)
    torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-6)
    assert decoder.clipped_sum(weights, drawn[:0], clip)["adapter"].abs().sum() == 0


def test_a_decoder_s_answers_are_those_of_the_whole_layer(decoder: AdaptedDecoder) -> None:
    end, texts = small_decoder()
    adapter = 0.3 * torch.randn(decoder.start(0, [0])["adapter"].shape, generator=torch.Generator().manual_seed(2))
    (inside,) = (module.weight for module in end.layer.self_attn.v_proj.lora_B.values())
    with torch.no_grad():
        inside.copy_(adapter[0])
        logits, right = (
            torch.cat(values)
            for values in zip(*(one_text(end, decoder.words, text) for text in texts[20:]), strict=True)
        )
    (hits,), (loss,) = decoder.accuracy({"adapter": adapter}, "test")
    assert float(hits) == pytest.approx(float((logits.argmax(-1) == right).double().mean()), abs=1e-6)
    assert float(loss) == pytest.approx(float(torch.nn.functional.cross_entropy(logits, right)), rel=1e-5)
    assert decoder.words.tolist() == sorted({word for _, labels in texts for word in labels[1:]} - {IGNORED})


def test_a_rank_fits_into_a_head() -> None:
    end, texts = small_decoder(rank=5)
    with pytest.raises(ValueError, match="rank must be at most a head's size, 4, not 5"):
        AdaptedDecoder(end, texts[:1], texts[1:2], texts[2:3])


def test_two_steps_of_a_decoder_by_every_method(decoder: AdaptedDecoder) -> None:
    """The study of SmolLM2 at two steps of a small model."""
    setting = replace(ADAPTERS["adapter, E2E"], batch=8, steps=2)
    before = train(replace(setting, steps=1), "Adam", [Run(1e-9, 1, 1)], decoder)[0]
    for method in METHODS:
        (ended,) = train(setting, method, [Run(0.1, 1, 1)], decoder, look=True)
        assert set(ended.over) == {"adapter"}
        assert 0 <= ended.test <= 1
        assert 0 < abs(ended.tune_loss - before.tune_loss) < 1 or method == "spiked Muon"  # it may find nothing
    assert decoder.sizes == [16, 4, 4]


def test_a_budget_is_that_of_all_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    samples = encoder()
    study = study_of("made", "a: b", {"one": SMALL, "other": SMALL}, lambda *_: samples)
    monkeypatch.setattr(_denoisers, "stored_file", lambda name: tmp_path / name)
    monkeypatch.setattr(_denoisers, "_seconds", lambda setting, _: 0.5 + 2.0 * setting.steps)
    study.main(["budget", "folder", "--settings", "other"])
    runs = runs_of(SMALL)
    assert runs == 12 * (3 * 2 + 4) + 21 * 4
    hours = runs * 2.0 * 5 / 3600
    assert capsys.readouterr().out == f"other: {runs} runs of 5 steps, 2.00 s a step: {hours:.1f} h of processor time\n"
    assert read(tmp_path / "made")["budget"] == {"other": {"runs": runs, "step_seconds": 2.0}}


def test_a_setting_that_is_trained_later_stands_beside_the_earlier_one_each_with_its_own_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = replace(SMALL, steps=1, first_rates=(-4,), tuning_seeds=(100,), seeds=(0,), noises=2)
    study = study_of("made", "a: b", {"one": small, "one more": small}, lambda *_: encoder())
    monkeypatch.setattr(_denoisers, "stored_file", lambda name: tmp_path / name)
    for end in ("_LOWEST", "_HIGHEST"):
        monkeypatch.setattr(_tuning, end, -4)

    def measured(folder: str, command: str, name: str, seconds: float) -> int:
        """As if every piece had taken so long; the time of this setting's."""
        study.main([command, str(tmp_path / folder), "--settings", name])
        file = tmp_path / folder / "raw" / f"made-{'study' if command == 'train' else command}.jsonl"
        lines = [{**line, "cpu_seconds": seconds} for line in read_lines(file)]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        study.main([command, str(tmp_path / folder), "--settings", name])
        return round(seconds * sum(line["name"].startswith(f"{name} ·") for line in lines))

    (tmp_path / "made").write_text(json.dumps({"budget": {"one": "known"}}))
    other = measured("a", "train", "one more", 5.0)
    one = measured("a", "train", "one", 7.0)
    first = read(tmp_path / "made")["settings"]["one"]
    more = measured("a", "more", "one", 3.0)
    stored = read(tmp_path / "made")["settings"]
    assert read(tmp_path / "made")["budget"] == {"one": "known"}
    assert list(stored) == ["one more", "one"]
    assert stored["one"] == first | {"nulls": stored["one"]["nulls"], "more_cpu_seconds": more}
    assert len(stored["one"]["nulls"]) == small.noises
    assert stored["one more"]["methods"] == first["methods"]
    assert capsys.readouterr().out.splitlines()[-1] == f"stored made: one more {other} s; one {one + more} s"


def test_the_page_shows_the_stored_runs_and_says_what_they_found() -> None:
    stored = read(STUDY.file)["settings"]
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page, stored, STUDY.name) == page
    results = stored["adapter, docstrings"]
    found, many = readings(results), beside_many(results)
    denoisers = ("gate", "gate without norm correction", "blend", "momentum gate", "momentum blend")
    for one in (found, many):
        assert {one[name].reading for name in denoisers} == {"worse"}
        assert [name for name in one if one[name].reading == "better"] == ["Muon"]
    behind = [-found[name].mean for name in denoisers]
    muon, null = found["Muon"], found[NULL].interval
    words = " ".join(page.split())
    assert f"behind Adam, by {min(behind):.1f} to {max(behind):.1f} points" in words
    assert f"Muon is {muon.mean:.1f} [{muon.interval.low:.1f}, {muon.interval.high:.1f}] points ahead" in words
    assert f"± {(null.high - null.low) / 2:.1f} points wide" in words
    assert f"it is {muon.mean - found['spiked Muon'].mean:.1f} and" in words
    assert len(results["nulls"]) == 20
    assert false_alarms(results).missed == 1
    assert "One of ten further nulls misses 0." in words
    looks = results["methods"]["Adam"]["over"]["adapter"]
    assert [sum(value > 1 for value in look) for look in looks[:2]] == [2, 4]
    assert all(len(method["test"]) == 10 for method in results["methods"].values())


def test_what_the_page_says_of_the_adapter_in_smollm2_is_stored() -> None:
    setting, results = ADAPTERS["adapter, E2E"], read(STUDY.file)["settings"]["adapter, E2E"]
    found, many = readings(results), beside_many(results)
    denoisers = ("gate", "gate without norm correction", "blend", "momentum gate", "momentum blend")
    assert {name for name in denoisers if found[name].reading == "worse"} == set(denoisers) - {"momentum blend"}
    assert found["momentum blend"].reading == "cannot tell"
    assert {many[name].reading for name in denoisers} == {"worse"}
    assert not [name for one in (found, many) for name in one if one[name].reading == "better"]
    behind = sorted(-found[name].mean for name in denoisers)[1:]
    least, most = (f"{value:.1f}".removeprefix("0") for value in (behind[0], behind[-1]))
    gate, blended, muon = found["gate"], found["momentum blend"], found["Muon"]
    assert -found["momentum blend"].mean < behind[0]
    assert muon.reading == many["Muon"].reading == "cannot tell"
    words = " ".join(PAGE.read_text(encoding="utf-8").split())
    ends = f"{-gate.mean:.2f} [{-gate.interval.high:.2f}, {-gate.interval.low:.2f}]".replace("0.", ".")
    of_blended = f"a blended momentum, {short(-blended.mean)} behind, cannot be told"
    assert f"by {least} to {most} points (the gate by {ends}; {of_blended})" in words
    assert f"it is {short(-muon.mean)} behind, and cannot be told" in words
    added = corrected(results)
    ends = f"{short(added.mean)} [{short(added.interval.low)}, {short(added.interval.high)}]"
    assert f"without, within half a point ({ends}, an interval by itself); the blend is better with it" in words
    assert (added.reading, corrected_blend(results).reading) == ("equal within the margin", "better")
    null = found[NULL].interval
    assert f"the null of the table is ± {(null.high - null.low) / 2:.1f} points wide" in words
    assert len(results["nulls"]) == setting.noises == 10
    assert "all five beside the mean of ten other noises" in words
    assert false_alarms(results).missed == 0
    assert "None of five further nulls misses 0;" in words
    assert f"Words are right in {100 * sum(results['methods']['Adam']['test']) / 10:.0f} of 100 places" in words
    train_on, tune_on, test_on = results["sizes"]
    sizes = f"{train_on:,} rows to train on, {tune_on} to tune on, {test_on} to test on, {setting.batch} a step"
    assert f"{sizes}, {setting.steps} steps, ε ≤ {setting.epsilon:.0f}, the same numbers of rates and seeds" in words
    small = ADAPTERS["adapter, docstrings"]
    for one in ("first_rates", "tuning_seeds", "seeds"):
        assert len(getattr(setting, one)) == len(getattr(small, one))
    assert [sum(value > 1 for value in look) for look in results["methods"]["Adam"]["over"]["adapter"]] == [2, 1, 1]
    assert "two stand out at the start, one after seven steps and at the end" in words
    spiked = muon.mean - found["spiked Muon"].mean
    assert f"it is 7.7 and {spiked:.1f} behind".replace("0.", ".") in words
    assert all(len(method["test"]) == 10 for method in results["methods"].values())


def short(value: float) -> str:
    return f"{value:.2f}".replace("0.", ".", 1)


SMALL = Setting(
    epsilon=8.0,
    batch=60,
    steps=5,
    hidden=0,
    of="texts",
    first_rates=(-5, -4, -3),
    tuning_seeds=(100, 101),
    seeds=(0, 1, 2, 3),
)
