"""From a recipe to the objects of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD, RandomizedClipping, calibrate_noise_multiplier
from dprmt.spectra import BlendMemory
from dprmt.training._private_step import PrivateStep
from dprmt.training.clipping import ClippingPlan, plan_private
from dprmt.training.data import TaskData, load_data, per_sample_losses
from dprmt.training.denoising import Denoising, DenoisingStep
from dprmt.training.evaluation import evaluate_classification, evaluate_generation
from dprmt.training.harness._guard import check_gradients_arrive
from dprmt.training.harness._randomness import Randomness
from dprmt.training.harness._released import ReleasedGradients
from dprmt.training.harness._sampling import charged_sample_rate
from dprmt.training.models import LoadedModel, load_model, load_tokenizer
from dprmt.training.norms import NormRecord, ProbeGenerator
from dprmt.training.optimizers import make_optimizer
from dprmt.training.recipes import DenoisingRecipe, Recipe

Mechanism = DPSGD | RandomizedClipping
_PROJECTED_NORMS: dict[str, Any] = {"exact": "materialize", "ghost": "ghost"}  # how DP-GRAPE calls the clippings


@dataclass
class Settings:
    """A run before its first step.

    Attributes
    ----------
    recipe : Recipe
        What was asked for.
    loaded : LoadedModel
        Model and tokenizer.
    data : TaskData
        Training, validation and test sets.
    private : PrivateStep
        Clipping, noise and optimizer.
    mechanism : DPSGD or RandomizedClipping
        One step, for the accountant.
    device : torch.device
        Where the model is.
    denoising : DenoisingStep or None
        Between noise and optimizer, once attached.
    denoising_memory : BlendMemory or None
        What the denoiser keeps from step to step; belongs into checkpoints.
    """

    recipe: Recipe
    loaded: LoadedModel
    data: TaskData
    private: PrivateStep
    mechanism: Mechanism
    device: torch.device
    denoising: DenoisingStep | None = None
    denoising_memory: BlendMemory | None = None

    @property
    def inner_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer inside Opacus' one."""
        optimizer: torch.optim.Optimizer = self.private.optimizer.original_optimizer
        return optimizer

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Trainable parameters by name."""
        return {name: value for name, value in self.loaded.model.named_parameters() if value.requires_grad}

    def attach_denoising(self, released: ReleasedGradients) -> None:
        """Put the denoiser between noise and optimizer, if the recipe has one, and the observer before it.

        DP-GRAPE's weights are denoised where their noise is, in the subspace; its other parameters are not denoised.
        """
        wanted, outer = self.recipe.denoising, self.private.optimizer
        projected = self.recipe.optimizer.name == "grape" and wanted.method != "none"
        if not projected:
            released.before(self.inner_optimizer)
        if wanted.method != "none":
            options = _denoising_options(wanted)
            if not projected:
                self.denoising = DenoisingStep.attach(outer, self.parameters, options)
                self.denoising_memory = self.denoising.memory
                return
            memory = self.denoising_memory = options.new_memory()

            def denoise(noisy: dict[str, torch.Tensor], sigma: float) -> Any:
                released.look()
                return options.apply(noisy, sigma, memory)

            outer.denoise = denoise

    def denoising_summary(self) -> dict[str, Any]:
        """How many matrices the last step replaced, out of how many.

        Returns
        -------
        dict
            Empty without a denoiser.
        """
        if self.recipe.denoising.method == "none":
            return {}
        if self.denoising is None:
            layers: Any = getattr(self.private.optimizer, "report", {})
        else:
            layers = self.denoising.last_report.layers if self.denoising.last_report is not None else {}
        return {"denoised_layers": sum(layer.denoised for layer in layers.values()), "matrices": len(layers)}

    def collate(self, items: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """A micro-batch on the device of the model.

        Returns
        -------
        dict
            Of tensors, ``sample_id`` included.
        """
        return {name: value.to(self.device) for name, value in self.data.collate(items).items()}

    def evaluate(self) -> dict[str, Any]:
        """Scores on the validation set.

        Returns
        -------
        dict
            Empty if there is none. For generation, ``"skipped"`` says which metrics could not be computed, and why.
        """
        if not len(self.data.validation):
            return {}
        wanted, model = self.recipe.evaluation, self.loaded.model
        if self.data.task == "generation":
            result = evaluate_generation(model, self.loaded.tokenizer, self.data, "validation", settings=wanted)
            return {**result.scores, **({"skipped": result.skipped} if result.skipped else {})}
        metrics = wanted.metrics or ("accuracy",)
        return {
            **evaluate_classification(
                model, self.data, metrics=metrics, batch_size=wanted.batch_size, limit=wanted.limit
            )
        }


def _denoising_options(wanted: DenoisingRecipe) -> Denoising:
    # The recipe has one word where the step has two: for the method, and for the loss of the paper's.
    shrinkers = {"paper": "frobenius", "operator": "operator", "nuclear": "nuclear"}
    chosen: dict[str, Any] = {"method": "blend"}
    if wanted.method in shrinkers:
        chosen = {"method": "paper", "loss": shrinkers[wanted.method]}
    return Denoising(
        **chosen,
        kappa=wanted.kappa,
        false_alarm=wanted.false_alarm,
        norm_correction=wanted.norm_correction,
        memory=wanted.memory,
        layer_weights=wanted.layer_weights,  # type: ignore[arg-type]
    )


def build(
    recipe: Recipe,
    loaded: LoadedModel,
    data: TaskData,
    device: torch.device,
    randomness: Randomness,
    processes: int = 1,
    noise_multiplier: float | None = None,
) -> Settings:
    """Find the noise multiplier and make the steps private.

    Parameters
    ----------
    recipe : Recipe
        What to train.
    loaded, data
        From :func:`load`.
    device : torch.device
        Where.
    randomness : Randomness
        Of this start of the run.
    processes : int
        How many processes work together.
    noise_multiplier : float, optional
        σ if it is known already, from an earlier start.

    Returns
    -------
    Settings
        Ready for the first step.

    Raises
    ------
    ParameterError
        If the recipe does not fit the data or the model.
    SilentParameterError
        If a trainable parameter is not connected to the loss.
    """
    loaded.model.to(device)
    check_gradients_arrive(loaded.model, lambda: _made_up_losses(loaded, data, device))
    rate = sample_rate(recipe, data)
    plan = _plan(recipe, loaded, randomness, processes)
    sigma = noise_multiplier or find_noise_multiplier(recipe, plan.record, rate)
    mechanism = plan.record.mechanism(sigma, rate)
    private = _make_private(recipe, loaded, randomness, plan, sigma)
    return Settings(recipe, loaded, data, private, mechanism, device)


def find_noise_multiplier(recipe: Recipe, record: NormRecord, rate: float) -> float:
    """The recipe's σ, or the smallest that keeps its target ε.

    Returns
    -------
    float
        σ.
    """
    privacy, steps = recipe.privacy, recipe.training.steps
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    assert privacy.target_epsilon is not None  # the recipe has exactly one of both
    options: dict[str, Any] = {"rank": record.rank, "probe_sharing": record.probe_sharing}
    if record.probes is None:
        options = {}
    return calibrate_noise_multiplier(privacy.target_epsilon, privacy.delta, rate, steps, record.probes, **options)


def sample_rate(recipe: Recipe, data: TaskData) -> float:
    """Probability of a sample to be in a logical batch.

    Returns
    -------
    float
        What sampler and accountant are told.

    Raises
    ------
    ParameterError
        If the expected batch is larger than the training set.
    """
    if recipe.training.batch_size > len(data.train):
        allowed = f"at most the size of the training set, {len(data.train)}"
        raise ParameterError("training.batch_size", recipe.training.batch_size, allowed)
    return charged_sample_rate(recipe.training.batch_size, len(data.train))


def _plan(recipe: Recipe, loaded: LoadedModel, randomness: Randomness, processes: int) -> ClippingPlan:
    privacy: Any = recipe.privacy  # the recipe has checked its words
    if recipe.optimizer.name == "grape":
        if privacy.clipping not in _PROJECTED_NORMS:
            raise ParameterError("privacy.clipping", privacy.clipping, "'exact' or 'ghost' with optimizer 'grape'")
        if processes > 1:
            raise ParameterError("optimizer.name", "grape", f"another one in {processes} processes")
    return plan_private(
        loaded.model,
        clipping=privacy.clipping,
        clipping_norm=privacy.clipping_norm,
        expected_batch_size=recipe.training.batch_size,
        probes=privacy.probes,
        sketch=privacy.sketch,
        probe_sharing=privacy.probe_sharing,
        tokens=recipe.data.max_tokens,
        probe_generator=ProbeGenerator(randomness.derive("probes")),
        distributed=processes > 1,
    )


def _make_private(
    recipe: Recipe, loaded: LoadedModel, randomness: Randomness, plan: ClippingPlan, sigma: float
) -> PrivateStep:
    privacy, optimizer = recipe.privacy, recipe.optimizer
    noise_generator = randomness.generator("noise", next(loaded.model.parameters()).device)
    if optimizer.name == "grape":
        from dprmt.training.projection import make_private_projected

        return make_private_projected(
            loaded.model,
            # A gradient has no more singular vectors than its shorter side: a head with two labels has two.
            rank=optimizer.rank if optimizer.projector != "svd" else lambda layer: min(optimizer.rank, layer.n),
            refresh_every=optimizer.refresh_every,
            projector=optimizer.projector,  # type: ignore[arg-type]  # the recipe has checked its words
            lr=optimizer.learning_rate,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            norms=_PROJECTED_NORMS[privacy.clipping],
            seed=recipe.training.seed,
            clipping_norm=privacy.clipping_norm,
            noise_multiplier=sigma,
            expected_batch_size=recipe.training.batch_size,
            noise_generator=noise_generator,
        )
    inner = make_optimizer(
        optimizer.name,  # type: ignore[arg-type]
        [value for value in loaded.model.parameters() if value.requires_grad],
        lr=optimizer.learning_rate,
        momentum=optimizer.momentum,
        betas=optimizer.betas,
        eps=optimizer.eps,
        floor=optimizer.floor,
        noise_variance=plan.noise_variance(sigma),
        weight_decay=optimizer.weight_decay,
    )
    return plan.privatize(inner, noise_multiplier=sigma, noise_generator=noise_generator)


def load(recipe: Recipe) -> tuple[LoadedModel, TaskData]:
    """Model and data of a recipe.

    Returns
    -------
    tuple
        (model with tokenizer, data).

    Raises
    ------
    ParameterError
        If one of them cannot be loaded, or the model cannot read texts as long as the recipe's.
    """
    tokenizer = load_tokenizer(recipe.model)
    data = load_data(recipe.data, tokenizer, recipe.model.task)
    labels = len(data.labels) if data.labels is not None else None
    loaded = load_model(recipe.model, labels=labels, seed=recipe.training.seed, tokenizer=tokenizer)
    longest = loaded.longest_input
    if longest is not None and recipe.data.max_tokens > longest:
        raise ParameterError("data.max_tokens", recipe.data.max_tokens, f"at most {longest}, the model's longest input")
    return loaded, data


def usable_device(name: str | torch.device | None) -> torch.device:
    """The device to train on; under ``torchrun``, this process' own GPU.

    Parameters
    ----------
    name : str or device or None
        None for a GPU if there is one.

    Returns
    -------
    torch.device
        One that computes.

    Raises
    ------
    ParameterError
        If there is no such device.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type == "cuda":
            own = int(os.environ.get("LOCAL_RANK", torch.cuda.current_device()))
            device = torch.device("cuda", own if device.index is None else device.index)
            torch.cuda.set_device(device)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise ParameterError("device", str(name), f"a device that computes here ({reason})") from None
    return device


def made_up_batch(loaded: LoadedModel, data: TaskData, samples: int, tokens: int) -> dict[str, torch.Tensor]:
    """A batch of random tokens: looking at it costs no privacy.

    Returns
    -------
    dict of Tensor
        As ``data.collate`` returns it.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (samples, tokens)
    vocabulary = int(loaded.model.config.vocab_size)
    batch = {
        "input_ids": torch.randint(vocabulary, shape, generator=generator),
        "attention_mask": torch.ones(shape, dtype=torch.long),
    }
    if data.pair_types:
        batch["token_type_ids"] = torch.zeros(shape, dtype=torch.long)
    if data.labels is None:
        return batch | {"labels": batch["input_ids"]}
    return batch | {"labels": torch.randint(len(data.labels), (samples,), generator=generator)}


def _made_up_losses(loaded: LoadedModel, data: TaskData, device: torch.device) -> torch.Tensor:
    batch = made_up_batch(loaded, data, samples=4, tokens=min(16, data.max_tokens))
    return per_sample_losses(loaded.model, {name: value.to(device) for name, value in batch.items()})
