"""The public surface: what is promised is there, and nothing else leaks."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import types
import typing
from collections.abc import Iterator

import pytest

ROOMS = (
    "dprmt.accounting",
    "dprmt.spectra",
    "dprmt.statements",
    "dprmt.plots",
    "dprmt.report",
    "dprmt.cli",
    "dprmt.training.clipping",
    "dprmt.training.data",
    "dprmt.training.denoising",
    "dprmt.training.evaluation",
    "dprmt.training.harness",
    "dprmt.training.hugging_face",
    "dprmt.training.models",
    "dprmt.training.norms",
    "dprmt.training.optimizers",
    "dprmt.training.subspaces",
    "dprmt.training.recipes",
    "dprmt.training.telemetry",
    "paper_figures.studies",
    "paper_figures.barcode",
    "paper_figures.heavy_tail",
    "paper_figures.next_token",
    "paper_figures.quadratic",
    "dprmt.report.measurements",
)

PROMISED = {
    "dprmt.accounting": {
        "chi2_mixture_cdf",
        "chi2_mixture_sf",
        "envelope_cdf",
        "DPSGD",
        "ExactNorms",
        "Hutchinson",
        "HutchPlusPlus",
        "Poisson",
        "RandomAllocation",
        "PrivacyBounds",
        "calibrate",
        "choose_probes",
        "compose",
    },
    "dprmt.spectra": {
        "bulk_edge",
        "detection_threshold",
        "spike_map",
        "spike_map_inverse",
        "vector_overlaps",
        "MarchenkoPastur",
        "shrink",
        "hard_threshold",
        "estimate_sigma",
        "denoise",
        "denoise_layers",
        "blend",
        "blend_layers",
        "BlendMemory",
        "kappa_for",
        "cosine_similarity",
        "improvement",
        "block_cosine",
        "adam_improvement_bound",
        "adam_bound_gap",
        "signal_energy",
        "signal_energy_over_steps",
        "directional_slope",
        "best_rate_factor",
        "update_curvature",
        "objective_change",
        "displacement_spectrum",
        "steps_until_visible",
    },
    "dprmt.training.norms": {
        "hutchinson_squared_norms",
        "hutchpp_squared_norms",
        "exact_squared_norms",
        "ghost_squared_norms",
    },
    "dprmt.training.clipping": {"make_private", "plan_private"},
    "dprmt.training.denoising": {"DenoisingStep"},
    "dprmt.training.harness": {"train"},
    "dprmt.cli": {"main"},
    "dprmt.report": {"write_report"},
    "dprmt.training.optimizers": {"DPAdamBC", "DPGrape"},
    "dprmt.training.recipes": {"load_recipe"},
    "dprmt.training.telemetry": {"Telemetry"},
}


# What makes the privacy, or says how much there is, or what it reads and writes is not covered by it.
PRIVACY_CLAIMS = {
    "dprmt.accounting": ("DPSGD", "ExactNorms", "Hutchinson", "HutchPlusPlus", "calibrate", "choose_probes", "compose"),
    "dprmt.training.clipping": (
        "ClippedStep",
        "DistributedNoisySumOptimizer",
        "NoisySumOptimizer",
        "NormSamplers",
        "make_private",
        "plan_private",
    ),
    "dprmt.training.data": ("load_data",),
    "dprmt.training.denoising": ("DenoisingEvaluation", "DenoisingReport", "DenoisingStep", "gradient_noise_std"),
    "dprmt.training.evaluation": ("evaluate_classification", "evaluate_generation"),
    "dprmt.training.telemetry": ("Telemetry",),
    "dprmt.training.harness": (
        "Run",
        "dry_run",
        "load_parameters",
        "load_trained",
        "read_card",
        "read_metrics",
        "read_summary",
        "read_sweep_card",
        "sweep",
        "train",
        "run_in_memory",
        "train_task",
    ),
    "dprmt.training.models": ("byte_tokenizer",),
    "dprmt.training.norms": (
        "HutchPlusPlusEstimator",
        "HutchinsonEstimator",
        "NormEstimator",
        "NormRecord",
        "ProbeGenerator",
        "clip_factors",
    ),
    "dprmt.training.optimizers": ("DPAdamBC", "DPGrape", "make_optimizer"),
    "dprmt.training.subspaces": ("Subspaces",),
    "dprmt.training.recipes": ("DataRecipe",),
    "dprmt.report": ("write_report",),
    "dprmt.statements": ("privacy_card",),
    "paper_figures.studies": ("read_records", "train_privately"),
    "paper_figures.heavy_tail": (
        "EightBitInputs",
        "clipped_gradient_sum",
        "epsilon_after",
        "gradient_cosines",
        "per_sample_gradient_norms",
        "run_trial",
        "run_trials",
    ),
    "paper_figures.next_token": ("word_vocabulary",),
    "dprmt.report.measurements": (
        "agreement",
        "kappa_sweep",
        "measure_alignment",
        "measure_norm_ratios",
        "measure_spikes",
        "private_gradients",
    ),
}


def public_module(room: str) -> types.ModuleType:
    """The room, or a skip where torch is missing."""
    if room.startswith("dprmt.training") or not room.startswith("dprmt."):
        pytest.importorskip("torch")
    return importlib.import_module(room)


@pytest.mark.parametrize("room", ROOMS)
def test_promised_names_are_public(room: str) -> None:
    assert set(public_module(room).__all__) >= PROMISED.get(room, set())


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_leaks(room: str) -> None:
    module = public_module(room)
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(module.__all__)
    assert list(module.__all__) == sorted(
        module.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name)
    )


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_callable_is_documented_with_an_example(room: str) -> None:
    module = public_module(room)
    without = [
        name
        for name in module.__all__
        if callable(getattr(module, name)) and not is_error_or_record(getattr(module, name))
        if ">>>" not in (inspect.getdoc(getattr(module, name)) or "")
    ]
    assert without == []


def is_error_or_record(value: object) -> bool:
    """Whether a name is an exception, a ``Literal``, or a mere record, which the function that makes it shows."""
    if not isinstance(value, type):
        return typing.get_origin(value) is not None  # an alias such as Literal["adam", "sgd"] has no docstring
    return issubclass(value, Exception) or dataclasses.is_dataclass(value) or hasattr(value, "_fields")


MOST_PARAMETERS = 12


def parameters_of(module: types.ModuleType) -> Iterator[tuple[str, int]]:
    """Every public function, class and method of a room, and how many arguments it takes beside ``self``."""
    for name in module.__all__:
        value = getattr(module, name)
        members = inspect.getmembers(value, callable) if isinstance(value, type) else []
        methods = [(f"{name}.{member}", routine) for member, routine in members if not member.startswith("_")]
        for called, routine in [*([] if is_error_or_record(value) else [(name, value)]), *methods]:
            with contextlib.suppress(ValueError, TypeError):  # not callable, or written in C
                yield called, len([word for word in inspect.signature(routine).parameters if word != "self"])


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_public_takes_more_than_twelve_arguments(room: str) -> None:
    """What belongs together is a value that checks itself, as `Units` is."""
    assert {name: many for name, many in parameters_of(public_module(room)) if many > MOST_PARAMETERS} == {}


def test_too_many_arguments_are_seen_in_functions_constructors_and_methods() -> None:
    """Of thirteen: so the test above is not green because it looks at nothing."""
    module, words = types.ModuleType("room"), ", ".join(f"a{i}" for i in range(13))
    exec(
        f"def function({words}): ...\n"
        f"class Made:\n    def __init__(self, {words}): ...\n    def method(self, {words}): ...",
        vars(module),
    )
    module.__all__ = ["Made", "function"]
    assert dict(parameters_of(module)) == {"Made": 13, "Made.method": 13, "function": 13}
    assert dict(parameters_of(public_module("dprmt.accounting")))["DPSGD.epsilon"] > 1


@pytest.mark.parametrize(("room", "name"), [(room, name) for room, names in PRIVACY_CLAIMS.items() for name in names])
def test_privacy_claims_have_a_formal_guarantees_section(room: str, name: str) -> None:
    documentation = inspect.getdoc(getattr(public_module(room), name)) or ""
    _, found, section = documentation.partition("\nFormal guarantees\n-----------------\n")
    assert found
    assert section.strip()
