"""The public surface: what is promised is there, and nothing else leaks."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import types

import pytest

ROOMS = (
    "dprmt.accounting",
    "dprmt.spectra",
    "dprmt.plots",
    "dprmt.training.clipping",
    "dprmt.training.data",
    "dprmt.training.denoising",
    "dprmt.training.evaluation",
    "dprmt.training.harness",
    "dprmt.training.models",
    "dprmt.training.norms",
    "dprmt.training.optimizers",
    "dprmt.training.projection",
    "dprmt.training.recipes",
    "dprmt.training.studies",
    "dprmt.training.studies.barcode",
    "dprmt.training.studies.heavy_tail",
    "dprmt.training.studies.next_token",
    "dprmt.training.studies.quadratic",
    "dprmt.training.validation",
)

PROMISED = {
    "dprmt.accounting": {
        "chi2_mixture_cdf",
        "chi2_mixture_sf",
        "envelope_cdf",
        "DPSGD",
        "RandomizedClipping",
        "PrivacyBounds",
        "compose",
        "calibrate_noise_multiplier",
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
        "kappa_for",
        "cosine_similarity",
        "improvement",
        "block_cosine",
        "adam_improvement_bound",
        "adam_bound_gap",
    },
    "dprmt.plots": set(),
    "dprmt.training.norms": {
        "hutchinson_squared_norms",
        "hutchpp_squared_norms",
        "exact_squared_norms",
        "ghost_squared_norms",
    },
    "dprmt.training.clipping": {"make_private", "register_norm_samplers"},
    "dprmt.training.denoising": {"DenoisingStep"},
    "dprmt.training.harness": {"train"},
    "dprmt.training.optimizers": {"DPAdamBC", "DPGrape"},
    "dprmt.training.recipes": {"load_recipe"},
}


def public_module(room: str) -> types.ModuleType:
    """The room, or a skip where torch is missing."""
    if room.startswith("dprmt.training"):
        pytest.importorskip("torch")
    return importlib.import_module(room)


@pytest.mark.parametrize("room", ROOMS)
def test_promised_names_are_public(room: str) -> None:
    assert set(public_module(room).__all__) >= PROMISED[room]


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
    """Whether a public name is an exception or a mere record, which the function that makes it shows."""
    if not isinstance(value, type):
        return False
    return issubclass(value, Exception) or dataclasses.is_dataclass(value) or hasattr(value, "_fields")


@pytest.mark.parametrize("name", ["DPSGD", "RandomizedClipping", "compose", "calibrate_noise_multiplier"])
def test_privacy_claims_have_a_formal_guarantees_section(name: str) -> None:
    accounting = importlib.import_module("dprmt.accounting")
    assert "Formal guarantees" in (inspect.getdoc(getattr(accounting, name)) or "")
