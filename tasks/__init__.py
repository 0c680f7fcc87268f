"""The library's steps as Prefect tasks: with names, progress, artifacts and the accelerator's limit.

Measurements use NO_CACHE and no retries: the same call twice is two measurements.
"""

import os

import orderproof  # noqa: F401  (switches telemetry off before Prefect is imported)
from orderproof.doctor.services import prefect_api

# Read by Prefect when it is imported, so they are for a flow that is run as a command; what the user set stands.
SETTINGS = {
    # Prefect's own server for one process takes 11 to 21 s to start on a cold home; its default limit is 20 s.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    # Its note file would go to ~/.prefect, wherever PREFECT_HOME is.
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    # A server that takes connections and never answers would hold up each request for six minutes.
    "PREFECT_API_REQUEST_TIMEOUT": "20",
    # Prefect's own server that is gone, as after Ctrl-C, does not return; another one may be restarted.
    "PREFECT_CLIENT_MAX_RETRIES": "3" if prefect_api() else "1",
}
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)
