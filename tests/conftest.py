"""Shared test set-up: hypothesis profiles, chosen with HYPOTHESIS_PROFILE."""

from __future__ import annotations

import os

import hypothesis

_COMMON = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("ci", derandomize=True, max_examples=25, **_COMMON)
hypothesis.settings.register_profile("dev", max_examples=25, **_COMMON)
hypothesis.settings.register_profile("thorough", max_examples=500, **_COMMON)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
