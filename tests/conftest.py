"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE: `ci` (few, always the same), `dev` (few, random), `thorough` (many)."""

import os
import signal

from hypothesis import HealthCheck, settings

signal.signal(signal.SIGINT, signal.default_int_handler)      # a shell starts what runs in the background with Ctrl-C ignored

common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("ci", max_examples=40, derandomize=True, **common)
settings.register_profile("dev", max_examples=40, **common)
settings.register_profile("thorough", max_examples=1000, **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
