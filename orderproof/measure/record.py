"""A trial and its verdict as the record of a run."""

from __future__ import annotations

import datetime

from orderproof.job.formatting import percentage, with_interval
from orderproof.job.model import ModelFacts
from orderproof.job.paths import Verb
from orderproof.job.spec import Job
from orderproof.measure.parts import arm_differences
from orderproof.measure.plan import Plan
from orderproof.measure.trial_records import Manifest
from orderproof.measure.trial_store import Trial
from orderproof.measure.verdict import Verdict
from orderproof.runs.inputs import Inputs
from orderproof.runs.run import TOY, Basis, Figure, Run
from orderproof.runs.run_store import new_id

NEXT_COMMAND = {
    "promote": "orderproof generate {job}",
    "keep": "orderproof plan {job}  (looks for a better order)",
    "inconclusive": "orderproof measure {job}  (another trial of the same question has half the alpha)",
    "refused": "orderproof plan {job}  (says what an order could gain)",
    "invalid": "orderproof doctor",
}


def trial_run(plan: Plan, trial: Trial, verdict: Verdict) -> Run:
    """The run of a trial that came to a verdict."""
    manifest = trial.manifest
    times = manifest.created_utc, _ended(trial).isoformat(timespec="seconds")
    basis = _basis(plan.job, plan.model, plan.dataset_md5, manifest)
    run = _run(plan.job, verdict, manifest.trial, "aa" if manifest.aa else "measure", times, basis)
    run = run.model_copy(
        update={
            "figures": (
                *run.figures,
                Figure(name="measured_s", value=_measured_s(trial)),
                Figure(name="alpha", value=manifest.rule.alpha),
            ),
            "details": {**run.details, "question": manifest.question, "attempt": manifest.attempt},
        }
    )
    differences = arm_differences(trial)
    more = (*(["; ".join(differences)] if differences else []), *plan.prompts.left_out_lines)
    return run.model_copy(update={"lines": (*run.lines, *more)})


def refused_run(job: Job, inputs: Inputs, verdict: Verdict) -> Run:
    """The run of a question that was refused before a trial began."""
    now = datetime.datetime.now(datetime.UTC)
    written = now.isoformat(timespec="seconds")
    basis = _basis(job, inputs.model, inputs.dataset_md5(job), None)
    return _run(job, verdict, new_id(now), "measure", (written, written), basis)


def _basis(job: Job, model: ModelFacts, dataset_md5: str, trial: Manifest | None) -> Basis:
    if trial is None:
        return Basis.of(job, model, dataset_md5 or None, None)
    return Basis.of(
        job,
        model,
        dataset_md5 or None,
        trial.prompts_total,
        order=trial.candidate,
        order_reason="the candidate of the trial",
        versions=dict(trial.versions),
        machine=dict(trial.machine),
    )


def _run(job: Job, verdict: Verdict, run_id: str, verb: Verb, times: tuple[str, str], basis: Basis) -> Run:
    started_utc, ended_utc = times
    return Run(
        job=job.name,
        verb=verb,
        id=run_id,
        started_utc=started_utc,
        ended_utc=ended_utc,
        answer=verdict.verdict,
        exit_code=verdict.exit_code,
        sentence=verdict_sentence(job.name, verdict, aa=verb == "aa", toy=basis.toy),
        reason=verdict.reason,
        lines=(*_noise_lines(verdict), *_outputs_lines(verdict)),
        next_command=NEXT_COMMAND[verdict.verdict].format(job=job.name),
        basis=basis,
        figures=_figures(verdict),
        details={"verdict": verdict.model_dump(mode="json")},
    )


def verdict_sentence(job: str, verdict: Verdict, *, aa: bool, toy: bool) -> str:
    """A verdict and its gain on one line."""
    sentence = f"{'A/A test of ' if aa else ''}{job}: {verdict.verdict}"
    if verdict.gain is None:
        return sentence
    sentence += f", gain {with_interval(verdict.gain, verdict.gain_low, verdict.gain_high)} in {verdict.blocks} blocks"
    return sentence + (f" [{TOY}]" if toy else "")


def _noise_lines(verdict: Verdict) -> tuple[str, ...]:
    noise = verdict.noise
    if noise is None:
        return ()
    return (f"noise: two halves of the control differ by {with_interval(noise.gain, noise.gain_low, noise.gain_high)}",)


def _outputs_lines(verdict: Verdict) -> tuple[str, ...]:
    outputs = verdict.outputs
    if outputs is None or outputs.d_ab is None:
        return ()
    floor = "" if outputs.d_aa is None else f", {percentage(outputs.d_aa)} by reshuffling alone"
    return (f"outputs: {percentage(outputs.d_ab)} differ{floor} ({outputs.answer.replace('_', ' ')})",)


def _figures(verdict: Verdict) -> tuple[Figure, ...]:
    outputs = verdict.outputs
    figures = [
        Figure(name="gain", value=verdict.gain, low=verdict.gain_low, high=verdict.gain_high),
        Figure(name="blocks", value=verdict.blocks),
        Figure(name="detectable_gain", value=verdict.detectable_gain),
        Figure(name="output_diff_rate", value=outputs.d_ab if outputs else None),
        Figure(name="output_diff_floor", value=outputs.d_aa if outputs else None),
    ]
    if outputs and outputs.scores:
        figures.append(Figure(name="score_difference", value=outputs.scores.difference))
    return tuple(figures)


def _measured_s(trial: Trial) -> float:
    """Seconds that the engine worked for the trial, the warm-up included."""
    blocks = {timed.block: timed.block_s for timed in trial.passes}
    return trial.manifest.slices.warm_up.seconds + sum(blocks.values())


def _ended(trial: Trial) -> datetime.datetime:
    """When the trial's last pass ended: unlike a file's time, a checkout does not change it."""
    if not trial.passes:
        return datetime.datetime.fromisoformat(trial.manifest.created_utc)
    last = trial.passes[-1]
    return datetime.datetime.fromisoformat(last.started_utc) + datetime.timedelta(seconds=last.block_s)
