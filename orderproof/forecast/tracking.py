"""A plan sent to MLflow: one run beside the job's trials.

In: reports/plan/<job>/ as `write_forecast` left it. Out: the id of its MLflow run, kept in plan.json; or a
`TrackingError`, and the plan waits for `orderproof log`, or for the next plan, which takes its place. Sending it again
completes what is there and doubles nothing. What is sent is figures and settings, never a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orderproof.forecast.page import PAGE_FILE, PICTURE_FILE
from orderproof.forecast.stored_prediction import PLAN_FILE, plan_dir
from orderproof.job.files import write_atomically
from orderproof.job.hashing import canonical_json
from orderproof.job.spec import Job
from orderproof.runs.mlflow_records import RunRecord, epoch_ms, shortened
from orderproof.runs.single_run import send

RUN_TAG = "orderproof.plan"
FACTS = ("prompts", "batch", "replicas", "samples", "prompt_tokens", "output_tokens", "prefill_share", "batches",
         "touched", "touched_sorted", "neighbours_p", "labels")  # fmt: skip
WORTH = ("today_s", "saved_s", "saved_low_s", "saved_high_s", "ordering_s", "trial_s")


def log_plan(job: Job, *, dvc_revision: str | None = None) -> str:
    """Send the job's last plan to the tracker, or complete what an earlier call sent of it; plan.json keeps the id.

    Raises:
        TrackingError: the tracker is down or refuses.
    """
    folder = plan_dir(job)
    plan: dict[str, Any] = json.loads((folder / PLAN_FILE).read_bytes())
    files = [folder / name for name in (PLAN_FILE, PAGE_FILE, PICTURE_FILE)]
    dataset = (plan["dataset_md5"], plan["facts"]["prompts"])
    run = send(job, "plan", folder, RUN_TAG, _record(plan, dvc_revision), dataset, files)
    write_atomically(folder / PLAN_FILE, json.dumps({**plan, "mlflow_run": run}, indent=1, ensure_ascii=False) + "\n")
    return run


def log_waiting(job: Job, *, dvc_revision: str | None = None) -> dict[str, str]:
    """Send the last plan if no tracker has taken it yet: its MLflow run by its name.

    Raises:
        TrackingError: the tracker is down or refuses.
    """
    try:
        plan = json.loads((plan_dir(job) / PLAN_FILE).read_bytes())
        waits = plan["mlflow_run"] is None
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or one from before plans were sent
        return {}
    return {f"plan {plan['created_utc']}": log_plan(job, dvc_revision=dvc_revision)} if waits else {}


def _record(plan: Mapping[str, Any], dvc_revision: str | None) -> RunRecord:
    forecast, advice = plan["forecast"] or {}, plan["advice"]
    tags = {
        RUN_TAG: plan["created_utc"],
        "advice": advice["answer"],
        "dataset_md5": plan["dataset_md5"],
        "model_fingerprint": plan["model"]["fingerprint"],
        "dvc_revision": dvc_revision,
        "mlflow.note.content": advice["reason"],
    }
    params = {
        "candidate": advice["candidate"] or "none",
        "order": canonical_json(plan["order"]) if plan["order"] else "none",
        "today": forecast["today"]["name"] if forecast else plan["facts"]["runs_in"],
        "looks": ", ".join(map(str, plan["looks"])),
        "sampling": canonical_json(plan["sampling"]),
        "engine.args": canonical_json(forecast["costs"]["args"]) if forecast else None,
    }
    at_ms = epoch_ms(plan["created_utc"])
    return RunRecord(
        pass_id="",
        name=f"plan {plan['job']}",
        start_ms=at_ms,
        end_ms=at_ms,
        tags={key: value for key, value in tags.items() if value is not None},
        params={key: shortened(value, PLAN_FILE) for key, value in params.items() if value is not None},
        metrics=_metrics(plan, forecast),
    )


def _metrics(plan: Mapping[str, Any], forecast: Mapping[str, Any]) -> dict[str, float]:
    figures = {name: plan["facts"][name] for name in FACTS}
    figures |= {name: plan["worth"][name] for name in WORTH} if plan["worth"] else {}
    figures["detectable_gain"] = plan["detectable_gain"]
    if forecast:
        figures |= {name: forecast[name] for name in ("captured", "shuffled_s", "oracle_saves")}
        figures["today_gain"] = forecast["today"]["gain"]
    for one in forecast.get("orders", ()):
        name = one["name"].replace(",", "")  # which MLflow allows in no name
        figures |= {f"{key}/{name}": one[key] for key in ("gain", "low", "high", "experts_saved")}
        if one["name"] == plan["advice"]["candidate"]:
            figures |= {f"foretold_{key}": one[key] for key in ("gain", "low", "high")}
    return {name: float(value) for name, value in figures.items() if value is not None}
