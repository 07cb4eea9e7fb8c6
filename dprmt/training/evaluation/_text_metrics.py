"""BLEU, NIST, ROUGE, METEOR, CIDEr and exact matches of generated texts, by the maintained packages."""

from __future__ import annotations

import importlib.util
import shutil
import string
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dprmt._validation import ParameterError, check_choice, how_to_install

Texts = Sequence[str]
References = Sequence[Sequence[str]]


class MetricUnavailableError(Exception):
    """A metric that cannot be computed here, with the reason."""


def text_metrics(
    hypotheses: Texts, references: References, metrics: Sequence[str] = ()
) -> tuple[dict[str, float], dict[str, str]]:
    """Score texts against one or several references each.

    Parameters
    ----------
    hypotheses : sequence of str
        N >= 1 generated texts.
    references : sequence of sequences of str
        At least one reference for each text.
    metrics : sequence of {"bleu", "nist", "rouge_1", "rouge_l", "meteor", "cider", "exact_match"}
        Metrics to compute; all by default.

    Returns
    -------
    scores : dict of float
        ``bleu`` in [0, 100]: sacrebleu, corpus, 13a tokens, cased. ``nist`` >= 0: nltk, corpus, up to 5 words, the
        best reference for each text and length. ``rouge_1`` and ``rouge_l`` in [0, 1]: rouge-score, mean of the best
        F1 over the references, no stemming. ``exact_match`` in [0, 1]: share equal to a reference up to case,
        punctuation, articles and spaces, as in SQuAD and HotpotQA. ``meteor`` in [0, 1]: METEOR 1.5. ``cider`` in [0,
        10]: CIDEr-D of pycocoevalcap, close to 0 if there is one hypothesis. METEOR, CIDEr and NIST use sacrebleu's
        13a tokens in lower case.
    skipped : dict of str
        Reason for each metric that cannot be computed here.

    Raises
    ------
    ParameterError
        If the lengths differ or are 0, a hypothesis has no reference, or a metric is unknown.

    Examples
    --------
    >>> scores, skipped = text_metrics(["the pub is cheap"], [["the pub is cheap", "a pub"]], ["bleu", "rouge_l"])
    >>> round(scores["bleu"], 6), scores["rouge_l"], skipped
    (100.0, 1.0, {})
    """
    if not hypotheses or len(hypotheses) != len(references) or not all(references):
        raise ParameterError("references", len(references), "a list of at least one text for every hypothesis")
    scores: dict[str, float] = {}
    skipped: dict[str, str] = {}
    for metric in metrics or tuple(_SCORES):
        check_choice("metrics", metric, tuple(_SCORES))
        package, score = _SCORES[metric]
        try:
            if package and importlib.util.find_spec(package) is None:
                raise MetricUnavailableError(f"{package} is not installed ({how_to_install('generation')})")
            scores[metric] = float(score(hypotheses, references))
        except MetricUnavailableError as reason:
            skipped[metric] = str(reason)
    return scores, skipped


def _bleu(hypotheses: Texts, references: References) -> float:
    import sacrebleu

    most = max(len(texts) for texts in references)
    # A hypothesis with fewer references than others has None in the further columns.
    columns = [[texts[i] if i < len(texts) else None for texts in references] for i in range(most)]
    return sacrebleu.corpus_bleu(list(hypotheses), columns).score


def _nist(hypotheses: Texts, references: References) -> float:
    from nltk.translate.nist_score import corpus_nist

    tokens = [_tokens(text) for text in hypotheses]
    if max(map(len, tokens)) < 5:
        raise MetricUnavailableError("no text has 5 words")
    return corpus_nist([[_tokens(text) for text in texts] for texts in references], tokens, n=5)


def _rouge(kind: str, hypotheses: Texts, references: References) -> float:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([kind], use_stemmer=False)
    best = [
        scorer.score_multi(list(texts), text)[kind].fmeasure for text, texts in zip(hypotheses, references, strict=True)
    ]
    return sum(best) / len(best)


def _exact_match(hypotheses: Texts, references: References) -> float:
    pairs = zip(hypotheses, references, strict=True)
    return sum(_answer(text) in {_answer(other) for other in texts} for text, texts in pairs) / len(hypotheses)


def _answer(text: str) -> str:
    letters = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return " ".join(word for word in letters.split() if word not in ("a", "an", "the"))


def _meteor(hypotheses: Texts, references: References) -> float:
    if shutil.which("java") is None:
        raise MetricUnavailableError("METEOR 1.5 needs Java, and there is no java command")
    from pycocoevalcap.meteor.meteor import Meteor

    scorer = Meteor()
    try:
        return scorer.compute_score(*_by_number(hypotheses, references))[0]
    except (OSError, ValueError) as error:  # what reading from and writing to a dead process gives
        raise MetricUnavailableError(f"METEOR's Java process failed ({type(error).__name__})") from None
    finally:
        process = scorer.meteor_p
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            stream.close()


def _cider(hypotheses: Texts, references: References) -> float:
    from pycocoevalcap.cider.cider import Cider

    return Cider().compute_score(*_by_number(hypotheses, references))[0]


def _by_number(hypotheses: Texts, references: References) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    truth = {i: [" ".join(_tokens(text)) for text in texts] for i, texts in enumerate(references)}
    return truth, {i: [" ".join(_tokens(text))] for i, text in enumerate(hypotheses)}


def _tokens(text: str) -> list[str]:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return Tokenizer13a()(text.lower()).split()


_SCORES: dict[str, tuple[str, Callable[[Texts, References], Any]]] = {
    "bleu": ("sacrebleu", _bleu),
    "nist": ("nltk", _nist),
    "rouge_1": ("rouge_score", partial(_rouge, "rouge1")),
    "rouge_l": ("rouge_score", partial(_rouge, "rougeL")),
    "meteor": ("pycocoevalcap", _meteor),
    "cider": ("pycocoevalcap", _cider),
    "exact_match": ("", _exact_match),
}
