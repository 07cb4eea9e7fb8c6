"""Shared test set-up: hypothesis profiles, chosen with HYPOTHESIS_PROFILE, and the order and choice of tests."""

from __future__ import annotations

import os

import hypothesis

from tests.share import pytest_addoption as pytest_addoption
from tests.share import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.share import pytest_configure as pytest_configure
from tests.share import pytest_runtest_logstart as pytest_runtest_logstart
from tests.share import pytest_runtest_makereport as pytest_runtest_makereport

_COMMON = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("quick", derandomize=True, max_examples=10, **_COMMON)
hypothesis.settings.register_profile("ci", derandomize=True, max_examples=25, **_COMMON)
hypothesis.settings.register_profile("thorough", max_examples=500, **_COMMON)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
