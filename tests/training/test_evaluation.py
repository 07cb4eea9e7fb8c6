"""Evaluation: scores computed by hand, texts found by exhaustive search, and no number where there is none."""

from __future__ import annotations

import importlib.util
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from dprmt import ParameterError
from dprmt.training.data import TaskData, load_data
from dprmt.training.evaluation import evaluate_classification, evaluate_generation
from dprmt.training.evaluation._generation import generate_texts
from dprmt.training.evaluation._text_metrics import text_metrics
from dprmt.training.models import byte_tokenizer, load_model
from dprmt.training.recipes import DataRecipe, EvaluationRecipe, ModelRecipe

TOKENIZER = byte_tokenizer()
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


class Constant(torch.nn.Module):
    """Says the label that the second byte of the text names."""

    head = "classification"

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.config = type("Config", (), {"model_type": "bert"})
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.labels = labels
        self.frozen = torch.nn.Linear(1, 1).eval()
        self.digits = torch.tensor([TOKENIZER.convert_tokens_to_ids(str(i)) for i in range(labels)])

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        assert not self.training
        said = (input_ids[:, 1:2] == self.digits).float()
        return type("Output", (), {"logits": self.scale * said})


def classification(tmp_path: Path, parts: dict[str, list[tuple[str, int]]]) -> TaskData:
    for name, rows in parts.items():
        lines = "".join(f"{text}\t{label}\n" for text, label in rows)
        (tmp_path / f"{name}.tsv").write_text(f"text\tlabel\n{lines}")
    names = tuple(f"{name}.tsv" for name in parts)
    recipe = DataRecipe(source="files", train=names, validation=names, inputs=("text",), target="label")
    return load_data(recipe, TOKENIZER, "classification", base_folder=tmp_path)


# "x1…" is taken for label 1: three hits, one false 1, two missed 1s.
ROWS = [("x1 a", 1), ("x0", 0), ("x1 much longer", 0), ("x0 b", 1), ("x0 longer", 1), ("x1", 1)]


def test_accuracy_f1_and_loss_by_hand(tmp_path: Path) -> None:
    data = classification(tmp_path, {"a": ROWS})
    model = Constant(2)
    right, wrong = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    for size in (1, 4, 100):
        settings = EvaluationRecipe(metrics=("accuracy", "f1"), batch_size=size)
        result = evaluate_classification(model, data, settings=settings)
        assert result["accuracy"] == pytest.approx(3 / 6)
        assert result["f1"] == pytest.approx(2 * 2 / (3 + 4))
        assert result["loss"] == pytest.approx((3 * right + 3 * wrong) / 6, rel=1e-6)
        assert set(result) == {"accuracy", "f1", "loss", "samples"}
    few = evaluate_classification(model, data, settings=EvaluationRecipe(limit=2))
    assert (few["accuracy"], few["samples"]) == (1.0, 2)


# Text metrics

HYPOTHESES = ["the cat sat on the mat", "a dog barks at night in town"]
REFERENCES = [["the cat is on the mat", "a cat sat on the mat"], ["the dog barks at night in town"]]


def ngrams(text: str, n: int) -> Counter[tuple[str, ...]]:
    words = text.split()
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def only(metric: str, hypotheses: list[str], references: list[list[str]]) -> float:
    scores, skipped = text_metrics(hypotheses, references, [metric])
    assert not skipped
    return scores[metric]


def test_bleu_by_hand() -> None:
    pytest.importorskip("sacrebleu")
    # Words found in a reference: 6 of 6 and 6 of 7; pairs 5 of 5 and 5 of 6; and so on.
    matched = [(6 + 6, 13), (5 + 5, 11), (3 + 4, 9), (2 + 3, 7)]
    for n, (hits, total) in enumerate(matched, start=1):
        found = 0
        for text, references in zip(HYPOTHESES, REFERENCES, strict=True):
            allowed: Counter[tuple[str, ...]] = Counter()
            for reference in references:
                allowed |= ngrams(reference, n)
            found += (ngrams(text, n) & allowed).total()
        assert (found, sum(ngrams(text, n).total() for text in HYPOTHESES)) == (hits, total)
    # Hypotheses and closest references are equally long: no brevity penalty.
    expected = 100 * math.exp(sum(math.log(hits / total) for hits, total in matched) / 4)
    assert only("bleu", HYPOTHESES, REFERENCES) == pytest.approx(expected)
    assert only("bleu", ["a b c d"], [["a b c d e f"]]) == pytest.approx(100 * math.exp(1 - 6 / 4))


def test_rouge_l_by_hand() -> None:
    pytest.importorskip("rouge_score")
    # Longest common subsequences: "the cat on the mat" 5 of 6, "cat sat on the mat" 5 of 6; then 6 of 7.
    assert only("rouge_l", HYPOTHESES, REFERENCES) == pytest.approx((5 / 6 + 6 / 7) / 2)
    assert only("rouge_l", ["a b c x"], [["c", "a c"]]) == pytest.approx(2 * (2 / 4) * (2 / 2) / (2 / 4 + 1))


THREE = (
    [*HYPOTHESES, "one short text of words"],
    [*REFERENCES, ["one very short text of words", "words of text here"]],
)


# From literal programs of both definitions: information-weighted hits per word with a length penalty, and ten times the
# tf-idf cosine of clipped n-gram counts with a Gaussian penalty of the length. With several references NIST takes, for
# every text and order, the best one.
@pytest.mark.parametrize(
    ("metric", "package", "texts", "expected"),
    [
        ("nist", "nltk", (HYPOTHESES, [texts[:1] for texts in REFERENCES]), 3.175475915370327),
        ("nist", "nltk", (HYPOTHESES, REFERENCES), 3.4825120917949217),
        ("cider", "pycocoevalcap", (HYPOTHESES, REFERENCES), 7.080875452423971),
        ("cider", "pycocoevalcap", THREE, 6.0399130952592435),
        ("cider", "pycocoevalcap", (["a b c d", "e f g h"], [["a b c d"], ["e f g h"]]), 10.0),
    ],
)
def test_nist_and_cider_as_defined(metric: str, package: str, texts: tuple, expected: float) -> None:
    pytest.importorskip(package)
    assert only(metric, *texts) == pytest.approx(expected)


def test_what_cannot_be_computed_is_said_and_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycocoevalcap")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    scores, skipped = text_metrics(["a b"], [["a b"]], ["meteor", "nist", "rouge_l"])
    assert scores == {"rouge_l": 1.0}
    assert skipped == {"meteor": "METEOR 1.5 needs Java, and there is no java command", "nist": "no text has 5 words"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    scores, skipped = text_metrics(["a b"], [["a b"]])
    assert scores == {"exact_match": 1.0}
    assert set(skipped) == {"bleu", "nist", "rouge_1", "rouge_l", "meteor", "cider"}
    assert skipped["bleu"] == "sacrebleu is not installed (pip install '.[generation]' in a checkout of dprmt)"


# Generation


def language_model(seed: int = 0) -> torch.nn.Module:
    config = SIZES | {"num_key_value_heads": 1}
    recipe = ModelRecipe(task="generation", architecture="llama", config=config, finetune="full")
    model = load_model(recipe, seed=seed).model
    with torch.no_grad():
        model.lm_head.weight.mul_(60)  # so that it has preferences
    return model


def next_log_probabilities(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, -1].double(), dim=0)


PROMPTS = [list(TOKENIZER(text)["input_ids"]) for text in ("name[Aromi]\n", "x\n", "food[Thai], near[Bar]\n")]


def test_one_beam_is_the_likeliest_token_each_time_whatever_the_padding() -> None:
    model = language_model()
    settings = EvaluationRecipe(beams=1, max_new_tokens=6, no_repeat_ngram=0, batch_size=3)
    expected = []
    for prompt in PROMPTS:
        ids = list(prompt)
        for _ in range(6):
            ids.append(int(next_log_probabilities(model, ids).argmax()))
            if ids[-1] == TOKENIZER.eos_token_id:
                break
        expected.append(TOKENIZER.decode(ids[len(prompt) :], skip_special_tokens=True).strip())
    assert len(set(expected)) > 1
    assert generate_texts(model, TOKENIZER, PROMPTS, settings) == expected
    assert model.training


def test_many_beams_find_the_best_text() -> None:
    model = language_model(seed=3)
    vocabulary, end = len(TOKENIZER), TOKENIZER.eos_token_id
    for prompt in PROMPTS[:2]:
        first = next_log_probabilities(model, prompt)
        scored = {(end,): float(first[end]) / 1**0.9}
        for token in range(vocabulary):
            if token != end:
                second = next_log_probabilities(model, [*prompt, token])
                scored |= {(token, other): float(first[token] + second[other]) / 2**0.9 for other in range(vocabulary)}
        best = max(scored, key=lambda ids: scored[ids])
        settings = EvaluationRecipe(beams=vocabulary, max_new_tokens=2, no_repeat_ngram=0, batch_size=1)
        expected = TOKENIZER.decode(list(best), skip_special_tokens=True).strip()
        assert generate_texts(model, TOKENIZER, [prompt], settings) == [expected]


def test_inputs_are_generated_once_and_scored_against_all_references(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('mr,ref\nname[A],One.\nname[B],Two.\nname[A],"One, indeed."\n')
    recipe = DataRecipe(source="files", train=("a.csv",), validation=("a.csv",), inputs=("mr",), target="ref")
    data = load_data(recipe, TOKENIZER, "generation", base_folder=tmp_path)
    model = language_model()
    settings = EvaluationRecipe(beams=2, max_new_tokens=5, metrics=("bleu", "rouge_l"))
    result = evaluate_generation(model, TOKENIZER, data, "validation", settings=settings)
    assert result.inputs == ("name[A]", "name[B]")
    assert result.references == (("One.", "One, indeed."), ("Two.",))
    prompts = [[*TOKENIZER(f"{text}\n")["input_ids"]] for text in result.inputs]
    assert list(result.hypotheses) == generate_texts(model, TOKENIZER, prompts, settings)
    assert (result.scores, result.skipped) == text_metrics(result.hypotheses, result.references, settings.metrics)
    one = evaluate_generation(
        model,
        TOKENIZER,
        data,
        "validation",
        settings=EvaluationRecipe(limit=1, beams=1, max_new_tokens=2, metrics=("rouge_l",)),
    )
    assert one.inputs == ("name[A]",)
    with pytest.raises(ParameterError, match="split must be a split with samples"):
        evaluate_generation(model, TOKENIZER, data)
    with pytest.raises(ParameterError, match="'classification'"):
        evaluate_classification(model, data)
