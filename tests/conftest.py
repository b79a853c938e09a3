"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# Compiling on the first call takes seconds: no deadline. Derandomised: CI fails for a reason in the change, or not at
# all; run with --hypothesis-profile=explore to look further.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("default")
