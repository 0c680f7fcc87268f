"""The story of a job, as Prefect flows: one file per story, deployed by path (infra/prefect.yaml)."""

import orderproof  # noqa: F401  (switches telemetry off before Prefect is imported)
