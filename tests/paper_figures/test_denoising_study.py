"""The study of what denoising buys: its order, its choice of rates, its paired differences, and the page it writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t

torch = pytest.importorskip("torch")
for _package in ("opacus", "transformers", "peft"):
    pytest.importorskip(_package)

from dprmt.training.data import load_data, per_sample_losses  # noqa: E402
from dprmt.training.harness import run_in_memory  # noqa: E402
from dprmt.training.models import load_model  # noqa: E402
from dprmt.training.recipes import DataRecipe, LoraRecipe, ModelRecipe, Settings  # noqa: E402
from paper_figures.denoising import (  # noqa: E402
    STUDIES,
    LastLayer,
    Study,
    _last_decoder,
    chosen_rate,
    difference,
    jobs,
    results,
    with_tables,
)
from paper_figures.denoising._last_decoder import LastDecoder, states  # noqa: E402
from paper_figures.denoising._last_layer import features, padded  # noqa: E402
from paper_figures.denoising._page import BEGIN, END, study_table, verdict  # noqa: E402
from paper_figures.denoising._results import ROLES, reading  # noqa: E402
from paper_figures.denoising._stored import kept  # noqa: E402
from paper_figures.denoising._tasks import LastDecoderTask, LastLayerTask, WholeTask  # noqa: E402
from paper_figures.denoising._trainer import InnerProducts, Trainer  # noqa: E402
from paper_figures.long_runs import denoising as long_run  # noqa: E402

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
STUDY = Study("minilm-docstrings", {"data.limit": 10, "training.steps": 2}, (-5, -4, -3), seeds=2)


def write(job: Any, runs: Path, loss: float, gain: float = 1.5) -> None:
    """A made-up run."""
    evaluations = [{"step": step, "loss": loss, "accuracy": 0.5 - loss / 10} for step in (1, 2)]
    products = [{"replaced": 1, "clean": 1.0, "noisy": 2.0, "denoised": 2.0 * gain}] * 2
    document = {
        **job._asdict(),
        "noise_multiplier": 1.0,
        "sample_rate": 0.5,
        "target_epsilon": 6.7,
        "training_losses": [loss, loss],
        "evaluations": evaluations,
        "inner_products": products,
    }
    job.file(runs).write_text(json.dumps(document))


def run_all(runs: Path, gains: dict[str, float], stop: int | None = None) -> list[Any]:
    """All runs in their order, with a loss that is lowest at the rate 10^-1.5 and lower by each method's gain."""
    done = []
    for seed in range(3):
        for job in jobs(STUDY, runs, seed):
            if len(done) == stop:
                return done
            loss = 1.0 + 0.1 * abs(math.log10(job.rate) + 1.5) - gains.get(job.role, 0.0) * (1 + 0.1 * seed)
            write(job, runs, loss + (0.01 * seed if job.role == "null" else 0.0))
            done.append(job)
    return done


def test_rates_are_chosen_first_then_every_seed_has_all_methods(tmp_path: Path) -> None:
    done = run_all(tmp_path, {})
    tuning = [job for job in done if job.seed == 0]
    # The best of the three is the highest, so that one more is tried.
    assert [job.rate for job in tuning if job.method == "none"] == [0.003162, 0.01, 0.03162, 0.1]
    assert chosen_rate(STUDY, "paper", tmp_path) == 0.03162
    for seed in (1, 2):
        assert [job.role for job in done if job.seed == seed] == list(ROLES)
    null, control = (next(job for job in done if job.role == role) for role in ("null", "longer steps"))
    assert null.method == control.method == "none"
    assert null.noise_seed != null.seed
    assert control.rate == pytest.approx(1.5 * 0.03162)


def test_differences_are_paired(tmp_path: Path) -> None:
    (tmp_path / "minilm-docstrings").mkdir()
    run_all(tmp_path / "minilm-docstrings", {"paper": 0.2, "blend": -0.1})
    study = {**results(tmp_path)["minilm-docstrings"]}
    paper = difference(study, "paper", "mean_loss")
    gains = np.array([-0.2 * 1.1, -0.2 * 1.2])
    assert paper.mean == pytest.approx(gains.mean())
    assert paper.error == pytest.approx(gains.std(ddof=1) / math.sqrt(2))
    assert paper.seeds == 2
    assert difference(study, "blend", "final_accuracy").mean == pytest.approx(-0.0115)
    assert [reading(study, role) for role in ("paper", "blend", "momentum gate")] == ["better", "worse", "cannot tell"]
    assert (paper.interval.low, paper.interval.high) == pytest.approx((-0.23 - 0.127062, -0.23 + 0.127062), abs=1e-5)
    assert reading(study | {"replaced": {"paper": 0.0}}, "paper") == "not compared"
    assert difference(study, "none", "mean_loss").errors == 0


def test_a_study_that_was_stopped_says_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "minilm-docstrings").mkdir()
    assert "Not done" in verdict(results(tmp_path))
    run_all(tmp_path / "minilm-docstrings", {}, stop=25)
    found = results(tmp_path)
    assert "rows" in found["minilm-docstrings"]
    assert "Not done" in verdict(found)
    run_all(tmp_path / "minilm-docstrings", {"paper": 0.2})
    assert "*better*: the paper's denoiser;" in verdict(results(tmp_path))
    assert "Adam against itself: *cannot tell*" in verdict(results(tmp_path))
    run_all(tmp_path / "minilm-docstrings", {"paper": -0.2})
    assert "*worse*: the paper's denoiser;" in verdict(results(tmp_path))


def test_the_page_is_what_the_stored_results_say() -> None:
    """``python -m paper_figures study denoising page`` would change nothing."""
    assert long_run.page() == long_run.PAGE.read_text(encoding="utf-8")


def test_what_the_page_says_of_these_runs_is_what_was_found() -> None:
    """Of the table that compares nothing, of the null that missed, and how often two standard errors would."""
    words = " ".join(long_run.PAGE.read_text(encoding="utf-8").split())
    stored = json.loads(long_run.STORED.read_text(encoding="utf-8"))
    minilm, (smollm2,) = (
        [found for name, found in stored.items() if name.startswith(k)] for k in ("minilm", "smollm2")
    )
    assert [found["replaced"]["paper"] for found in minilm] == [0.0] * 3
    null = difference(smollm2, "null", "final_loss")
    assert f"({null.mean:.4f} ± {null.error:.4f})".replace("0.", ".") in words
    assert f"differs there by {int(-null.mean / null.error)} of its standard errors" in words
    missed = [100 * 2 * float(t.sf(2, seeds - 1)) for seeds in (3, 5)]
    assert f"false alarm in {missed[0]:.0f} % of comparisons, with five in {missed[1]:.0f} %" in words
    (large,) = [found for found in minilm if found["changes"].get("training.batch_size") == 1024]
    roles = ("paper", "blend", "momentum blend")
    above = [difference(large, role, "final_accuracy") for role in (*roles, "longer steps", "null")]
    assert all(1.15 < 100 * one.mean < 1.45 for one in above)
    assert {round(one.mean / one.error) for one in above[:3]} <= {2, 3}
    assert large["rows"]["longer steps"]["rate"] == large["rows"]["paper"]["rate"]
    assert f"for {smollm2['replaced']['paper']:.1f} of four matrices per step" in words
    assert smollm2["step_length"] == pytest.approx(2.0, abs=0.1)  # "doubles"


def test_tables_replace_what_is_between_the_marks(tmp_path: Path) -> None:
    (tmp_path / "minilm-docstrings").mkdir()
    run_all(tmp_path / "minilm-docstrings", {"paper": 0.2})
    curve = {"steps": [1, 2], "epsilon": [1.0, 2.0], "values": [[0.1, 0.2], [0.2, 0.3]]}
    stored = {"curves": {"DP-LoRA": curve, "denoised": curve}}
    page = with_tables(f"a\n{BEGIN}what was there{END}\nb", results(tmp_path), stored, [])
    assert page.startswith("a\n")
    assert page.endswith("\nb")
    assert "what was there" not in page
    (row,) = [line for line in page.splitlines() if line.startswith("| the paper's denoiser | 0.0316 |")]
    assert "-0.2300 ± 0.0100" in row
    assert "half of its runs against the others" in page
    assert with_tables(page, results(tmp_path), stored, []) == page


def test_every_study_is_a_recipe_at_every_method() -> None:
    for study in STUDIES.values():
        assert study.methods[0] == "none"
        for method in study.methods:
            recipe = study.at(method, 0.01, 3, Path("data"))
            assert recipe.optimizer.learning_rate == 0.01
            assert recipe.denoising.method in ("none", "paper", "blend")
            assert recipe.privacy.target_epsilon == 6.7
            layers = {".".join(target.split(".")[:2]) for target in recipe.model.lora.targets}
            last = "layers.29" if recipe.model.task == "generation" else "layer.5"
            assert (layers == {last}) is (not study.whole)


def test_the_last_layer_trains_as_the_whole_model_does() -> None:
    """Same noise, same batches: the losses of the whole model and of its end, from features, step by step."""
    lora = LoraRecipe(rank=2, alpha=4.0, targets=("layer.1.output.dense",))
    recipe = ModelRecipe(
        "classification", architecture="bert", tokenizer="bytes", config=SIZES, pooling="mean", lora=lora
    )
    generator = np.random.default_rng(0)
    texts = [generator.integers(5, 90, size=4 + i % 3).tolist() for i in range(24)]
    labels = [i % 3 for i in range(24)]
    settings = Settings(
        privacy={"noise_multiplier": 0.5, "delta": 1e-3, "norms": "ghost"},
        optimizer={"name": "adamw", "learning_rate": 0.05},
        training={"batch_size": 12, "micro_batch_size": 5, "steps": 4},
        denoising={"method": "paper"},
    )

    class Whole(LastLayerTask):
        """The same items through all layers."""

        def accumulate(self, private: Any, positions: Any, step: int) -> Any:
            ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(texts[i]) for i in positions], batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(texts[i])) for i in positions], batch_first=True)
            places = torch.arange(ids.shape[1]).expand(ids.shape)
            logits = private.model(input_ids=ids, attention_mask=mask, position_ids=places).logits
            targets = torch.tensor([labels[i] for i in positions])
            losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
            private.accumulate(losses, samples=positions, step=step)
            return losses.detach()

    def losses(whole: bool) -> tuple[list[Any], list[Any]]:
        model = load_model(recipe, labels=3).model
        items = list(features(model, texts)), labels
        kind, trained = (Whole, model) if whole else (LastLayerTask, LastLayer(model).train())
        inner = InnerProducts()
        task = kind(trained, items, items)
        with run_in_memory(trained, task, settings, noise_seed=1, observers=[inner]) as run:
            return [record.loss for record in run.steps()], inner.steps

    (whole, inner_whole), (end, inner) = losses(True), losses(False)
    assert whole == pytest.approx(end, rel=1e-4)
    assert len(set(np.round(end, 3))) == 4
    assert [step["noisy"] for step in inner] == pytest.approx([step["noisy"] for step in inner_whole], rel=1e-3)


def test_padding_changes_nothing() -> None:
    lora = LoraRecipe(rank=2, alpha=4.0, targets=("layer.1.output.dense",))
    recipe = ModelRecipe(
        "classification", architecture="bert", tokenizer="bytes", config=SIZES, pooling="mean", lora=lora
    )
    model = load_model(recipe, labels=3).model
    items = list(features(model, [[5, 6, 7, 8, 9], [10, 11]]))
    end = LastLayer(model)
    alone = torch.cat([end(*padded([item])) for item in items])
    torch.testing.assert_close(end(*padded(items)), alone)


def decoder() -> Any:
    """A Llama with grouped keys, adapters in its last layer, and more words than the texts have."""
    lora = LoraRecipe(rank=2, alpha=4.0, targets=("layers.1.self_attn.q_proj", "layers.1.self_attn.v_proj"))
    sizes = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = load_model(
        ModelRecipe("generation", architecture="llama", tokenizer="bytes", config=sizes, lora=lora)
    ).model
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # so that both adapters' matrices have gradients
            parameter.data.normal_(generator=generator)
    return model


def sentences() -> tuple[list[list[int]], list[list[int]]]:
    """Texts of 4 to 9 tokens, of which all but the first two or three are learnt."""
    generator = np.random.default_rng(0)
    texts = [generator.integers(5, 90, size=4 + i % 6).tolist() for i in range(24)]
    return texts, [[-100] * (2 + i % 2) + text[2 + i % 2 :] for i, text in enumerate(texts)]


def together(texts: Any, labels: Any, chosen: Any) -> dict[str, Any]:
    """A batch for the whole model."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(texts[i]) for i in chosen], batch_first=True)
    learnt = [torch.tensor(labels[i]) for i in chosen]
    targets = torch.nn.utils.rnn.pad_sequence(learnt, batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": targets}


def test_the_end_of_a_decoder_has_the_losses_and_gradients_of_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_last_decoder, "_AT_ONCE", 7)
    model, (texts, labels) = decoder(), sentences()
    end = LastDecoder(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    weights = torch.linspace(0.5, 2.0, len(texts))
    whole = per_sample_losses(model, together(texts, labels, range(len(texts))))
    cheap = end(*_last_decoder.padded(states(model, texts), labels))
    torch.testing.assert_close(cheap, whole, rtol=1e-5, atol=1e-6)
    expected, found = (torch.autograd.grad((weights * losses).sum(), trained) for losses in (whole, cheap))
    assert min(float(gradient.norm()) for gradient in expected) > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_end_of_a_decoder_trains_as_the_whole_model_does() -> None:
    texts, labels = sentences()
    settings = Settings(
        privacy={"noise_multiplier": 0.5, "delta": 1e-3, "norms": "ghost"},
        optimizer={"name": "adamw", "learning_rate": 0.02},
        training={"batch_size": 12, "micro_batch_size": 5, "steps": 3},
        evaluation={"every": 1},
    )

    class Whole(LastDecoderTask):
        """The same items through all layers."""

        def accumulate(self, private: Any, positions: Any, step: int) -> Any:
            losses = per_sample_losses(private.model, together(texts, labels, positions))
            private.accumulate(losses, samples=positions, step=step)
            return losses.detach()

        def score(self) -> dict[str, Any]:
            with torch.no_grad():
                return {"loss": float(per_sample_losses(self._model, together(texts, labels, range(24))).mean())}

    def run(whole: bool) -> list[Any]:
        model = decoder()
        items = states(model, texts), labels
        kind, trained = (Whole, model) if whole else (LastDecoderTask, LastDecoder(model).train())
        with run_in_memory(trained, kind(trained, items, items), settings, noise_seed=1) as steps:
            return [(record.loss, record.evaluation["loss"]) for record in steps.steps()]

    whole, cheap = np.array(run(True)), np.array(run(False))
    np.testing.assert_allclose(cheap, whole, rtol=1e-4)
    assert len(set(np.round(cheap[:, 1], 3))) == 3


def test_all_layers_of_an_encoder_train_as_its_end_does_where_only_that_is_adapted(tmp_path: Path) -> None:
    lora = LoraRecipe(rank=2, alpha=4.0, targets=("layer.1.output.dense",))
    recipe = ModelRecipe(
        "classification", architecture="bert", tokenizer="bytes", config=SIZES, pooling="mean", lora=lora
    )
    rows = [f"{'word ' * (1 + i % 4)},{'abc'[i % 3]}" for i in range(24)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    files = [str(tmp_path / "texts.csv")]
    where = DataRecipe("files", train=files, validation=files, inputs=["text"], target="label", max_tokens=24)
    settings = Settings(
        privacy={"noise_multiplier": 0.5, "delta": 1e-3, "norms": "ghost"},
        optimizer={"name": "adamw", "learning_rate": 0.05},
        training={"batch_size": 12, "micro_batch_size": 5, "steps": 3},
        evaluation={"every": 1},
    )

    def run(whole: bool) -> list[Any]:
        loaded = load_model(recipe, labels=3)
        data = load_data(where, loaded.tokenizer, "classification")
        if whole:
            model, task = loaded.model, WholeTask(loaded.model, data, rows=10)
        else:
            items = [data.train[i] for i in range(24)]
            known = list(features(loaded.model, [item["input_ids"] for item in items]))
            model = LastLayer(loaded.model).train()
            labels = [item["labels"] for item in items]
            task = LastLayerTask(model, (known, labels), (known[:10], labels[:10]))
        with run_in_memory(model, task, settings, noise_seed=1) as steps:
            return [(r.loss, r.evaluation["loss"], r.evaluation["accuracy"]) for r in steps.steps()]

    np.testing.assert_allclose(run(True), run(False), rtol=1e-3)


def test_what_is_known_of_the_texts_is_computed_once(tmp_path: Path) -> None:
    asked: list[int] = []

    def compute(texts: Any) -> list[Any]:
        asked.append(len(texts))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return [torch.tensor([float(text)]) for text in texts]

    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path / "known", "train", range(150), compute)
    assert [int(x) for x in kept(tmp_path / "known", "train", range(150), compute)] == list(range(150))
    kept(tmp_path / "known", "train", range(150), compute)
    assert asked == [128, 22, 22]


def test_a_run_that_is_known_under_another_role_is_not_done_again(tmp_path: Path) -> None:
    trainer = object.__new__(Trainer)
    trainer._runs = tmp_path
    jobs_of = {job.role: job for job in run_all(tmp_path, {}) if job.seed == 1}
    same = jobs_of["longer steps"]._replace(rate=jobs_of["none"].rate)
    trainer.run(same)
    assert json.loads(same.file(tmp_path).read_text())["role"] == "longer steps"
    assert trainer._twin(jobs_of["null"]) is None
    assert trainer._twin(jobs_of["longer steps"]) is None


def test_tables_of_a_language_model_have_losses(tmp_path: Path) -> None:
    (tmp_path / "minilm-docstrings").mkdir()
    run_all(tmp_path / "minilm-docstrings", {"paper": 0.2})
    for file in (tmp_path / "minilm-docstrings").glob("*.json"):
        result = json.loads(file.read_text())
        for evaluation in result["evaluations"]:
            del evaluation["accuracy"]
        file.write_text(json.dumps(result))
    table = study_table("minilm-docstrings", results(tmp_path)["minilm-docstrings"])
    assert "| final loss | minus Adam | mean loss | minus Adam |" in table
    assert "accuracy" not in table
