"""The stories of a job as Prefect flows, one file each, deployed by path (infra/prefect.yaml)."""
