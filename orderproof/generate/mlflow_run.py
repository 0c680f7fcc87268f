"""What MLflow shall hold of any generation, whether it is a run of the job or a reproduction of one.

In: its `GenerationRecord`, and what its kind adds. Out: a `RunRecord`. Knows nothing of MLflow's client or of servers
(tracking/beside.py sends it), nor of engines or Prefect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orderproof.generate.generation_record import GenerationRecord
from orderproof.job.hashing import canonical_json
from orderproof.lossy.routing import routing_named
from orderproof.runs.mlflow_records import RunRecord, epoch_ms, shortened


def run_of(
    made: GenerationRecord,
    name: str,
    tags: Mapping[str, str | None],
    params: Mapping[str, str],
    metrics: Mapping[str, float | None],
    series: Mapping[str, Sequence[float]] | None = None,
) -> RunRecord:
    """One run, told like all others of what was generated.

    Args:
        tags, params, metrics: what its kind adds; None: not known, and left out.
    """
    every_tag = {
        "dataset_md5": made.dataset_md5,
        "order_sha256": made.order.sha256,
        "lossy": None if made.lossy_k0 is None else f"k0 = {made.lossy_k0}",
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(made.versions.items())),
        "prefect_run": made.prefect_run,
        "mlflow.note.content": made.sentence(),
        **tags,
    }
    every_param = {
        "order": made.order.method,
        "order.parameters": canonical_json(made.order.parameters),
        "order.why": made.order_why,
        "routing": routing_named(made.lossy_k0),
        **params,
    }
    return RunRecord(
        pass_id="",
        name=name,
        start_ms=epoch_ms(made.started_utc),
        end_ms=epoch_ms(made.ended_utc),
        tags={key: value for key, value in every_tag.items() if value is not None},
        params={key: shortened(value, f"{made.run}.json") for key, value in every_param.items()},
        metrics={key: float(value) for key, value in metrics.items() if value is not None},
        series=series or {},
    )
