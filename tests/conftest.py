"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE: `ci` (few, always the same), `dev` (few, random), `thorough` (many)."""

import os

from hypothesis import HealthCheck, settings

common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("ci", max_examples=40, derandomize=True, **common)
settings.register_profile("dev", max_examples=40, **common)
settings.register_profile("thorough", max_examples=1000, **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
