"""Telemetry of the tools off, in one place: imported by the package before any of them is."""

import os

for _name, _value in {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Prefect's own server for one process takes 11 to 21 s to start on a cold home; its default limit is 20 s.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    # Its note file would go to ~/.prefect, wherever PREFECT_HOME is.
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    "GX_ANALYTICS_ENABLED": "false",
}.items():
    os.environ.setdefault(_name, _value)
