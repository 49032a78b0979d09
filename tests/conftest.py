"""Settings that hold for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No deadline for one example: on a busy machine it would fail tests for being unlucky. A test as a whole has one.
settings.register_profile("clew", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("clew")
