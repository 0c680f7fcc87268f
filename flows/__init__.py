"""The stories of a job as Prefect flows, one file each, deployed by path (infra/prefect.yaml)."""

import tasks  # noqa: F401  (its settings must be there before the flows import Prefect)
