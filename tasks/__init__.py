"""The library's steps as Prefect tasks: with names, progress, artifacts and the accelerator's limit.

Measurements use NO_CACHE and no retries: the same call twice is two measurements.
"""

import os

import orderproof  # noqa: F401  (switches telemetry off before Prefect is imported)

for _name, _value in {
    # The library logs to `orderproof.…`; Prefect sends that to the run's page, where there is a run.
    "PREFECT_LOGGING_EXTRA_LOGGERS": "orderproof",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # Prefect's own server for one process takes 11 to 21 s to start on a cold home; its default limit is 20 s.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    # Its note file would go to ~/.prefect, wherever PREFECT_HOME is.
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
}.items():
    os.environ.setdefault(_name, _value)
