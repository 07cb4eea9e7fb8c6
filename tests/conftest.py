"""Shared test set-up: hypothesis profiles, chosen with HYPOTHESIS_PROFILE, and a share of the slow tests."""

from __future__ import annotations

import os

import hypothesis

from tests.share import pytest_addoption as pytest_addoption
from tests.share import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.share import pytest_configure as pytest_configure

_COMMON = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("ci", derandomize=True, max_examples=25, **_COMMON)
hypothesis.settings.register_profile("dev", max_examples=25, **_COMMON)
hypothesis.settings.register_profile("thorough", max_examples=500, **_COMMON)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
