"""What a person sees of a job's status.

In: what `job_status` tells of one or several jobs. Out: lines for a terminal. Reads no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orderproof.job.formatting import with_interval
from orderproof.lossy.routing import routing_named
from orderproof.measure.outcome import TOY

HEADINGS = ("JOB", "RUNS IN", "LAST VERDICT", "GAIN", "TRIALS", "NOTES")


def status_lines(told: Sequence[dict[str, Any]]) -> list[str]:
    """A table of several jobs, one a line; of a single job, a short block that leaves nothing out."""
    if len(told) == 1:
        return _block(told[0])
    rows = [HEADINGS, *(_row(one) for one in told)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    order, verdict = one["order"], one["verdict"]
    promoted = order and order["promoted"] and not one["stale"]
    notes = [
        *(["LOSSY routing accepted"] if one["lossy_k0"] is not None else []),
        *(["toy model"] if one["toy"] else []),
        *(["promoted order is of other prompts"] if one["stale"] else []),
        *([f"{len(one['incomplete'])} without a verdict"] if one["incomplete"] else []),
        *(["generating now"] if one["underway"] else ["an unfinished batch"] if one["checkpoint"] else []),
        *(problem.split(":")[0] + " broken or missing" for problem in one["problems"]),
    ]
    return (
        one["job"],
        f"{order['method']} (promoted)" if promoted else "file",
        verdict["verdict"] if verdict else "not measured",
        _gain(verdict) if verdict else "",
        str(one["trials"]),
        ", ".join(dict.fromkeys(notes)),
    )


def _block(one: dict[str, Any]) -> list[str]:
    verdict = one["verdict"]
    facts = [("prompts", one["prompts"]), ("model", one["model"]), ("runs in", _runs_in(one))]
    if one["lossy_k0"] is not None:
        facts.append(("routing", f"{routing_named(one['lossy_k0'])}, accepted in params.yaml"))
    if verdict:
        said = f"{verdict['verdict']} {_gain(verdict)}".strip()
        trial = f"in {verdict['blocks']} blocks of trial {verdict['trial']}" if verdict["trial"] else "without a trial"
        facts += [("last verdict", f"{said} {trial}, {verdict['when']}"), ("", verdict["reason"])]
    else:
        facts.append(("last verdict", f"none: `orderproof measure {one['job']}` gives one"))
    if one["toy"]:
        facts.append(("", TOY))
    facts.append(("trials", f"{one['trials']}; {one['attempts']} attempts at what the newest one asked"))
    facts.append(("alpha left", f"{one['alpha_left']:g} for another trial of that question"))
    facts += _batch_facts(one)
    facts += [("no verdict", f"{name}: stopped, or being measured now") for name in one["incomplete"]]
    facts += [("problem", problem) for problem in one["problems"]]
    return [one["job"], *(f"  {name:<13} {text}".rstrip() for name, text in facts)]


def _batch_facts(one: dict[str, Any]) -> list[tuple[str, str]]:
    facts, last, kept = [], one["last_run"], one["checkpoint"]
    if last:
        failed = f", {last['failed']} failed" if last["failed"] else ""
        rates = "" if last["throughput_req_s"] is None else f", {last['throughput_req_s']:.2f} req/s"
        rates += f" on {last['replicas']} replicas" if last["replicas"] > 1 else ""
        rates += "" if last["lossy_k0"] is None else f", {routing_named(last['lossy_k0'])}"
        facts.append(
            ("last run", f"{last['prompts']} outputs{failed} in {last['order']} order{rates}, {last['ended']}")
        )
        if last["streamed"] and not last["current"]:
            facts.append(("", f"of a stream, whose prompts are kept in data/{one['job']}/streamed.jsonl"))
        elif last["current"] is False:
            facts.append(("", f"of another version of the prompts: `orderproof generate {one['job']}` makes new ones"))
        if not last["sent"]:
            facts.append(("", f"not in MLflow yet: `orderproof log {one['job']}` sends it"))
    if made := one["reproduction"]:
        scores = f", scores {made['scores']}" if made["scores"] else ""
        since = f", {made['changes']} settings changed" if made["changes"] else ""
        facts.append(("reproduction", f"{made['identical']} of {made['compared']} outputs identical{scores}{since}, "
                                      f"{made['ended']}"))  # fmt: skip
        if made["current"] is False:
            facts.append(("", "of other outputs than the job has now"))
    if kept:
        newest = f", the newest of {kept['when']}" if kept["when"] else ""
        go_on = "" if one["underway"] else f": `orderproof generate {one['job']}` goes on"
        facts.append(("checkpoint", f"{kept['results']} of {kept['prompts']} results are kept{newest}{go_on}"))
    if one["underway"]:
        facts.append(("at work now", _at_work(one["underway"])))
    return facts


def _at_work(now: dict[str, Any]) -> str:
    said = f"{now['who']}, since {now['since']}"
    if now["run"] is None:
        return f"{said}; it generates nothing yet"
    left = "" if now["seconds_left"] is None else f", {now['seconds_left'] / 60:.0f} min more"
    of_all = "" if now["prompts"] is None else f" of {now['prompts']}"
    return f"{said}; {now['done']}{of_all} prompts, {now['rate_req_s']:.2f} req/s{left}"


def _runs_in(one: dict[str, Any]) -> str:
    order = one["order"]
    if order is None:
        return "the file's own order; none was ever promoted"
    if not order["promoted"]:
        return "the file's own order" + (f", since {order['demoted']} (demoted)" if order["demoted"] else "")
    if one["stale"]:
        return f"the file's own order: the promoted {order['method']} order is of another version of the prompts"
    gain = f" with {_gain(order)}" if order["gain"] is not None else ""
    return f"the {order['method']} order, promoted {order['since']} by trial {order['trial']}{gain}"


def _gain(figures: dict[str, Any]) -> str:
    if figures["gain"] is None:
        return ""
    return with_interval(figures["gain"], figures["gain_low"], figures["gain_high"])
