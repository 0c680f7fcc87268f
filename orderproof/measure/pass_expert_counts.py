"""How many experts the steps of a trial's passes read, from routes that were captured apart from them.

In: a trial, and its job's routes. Out: a figure per pass, or none where the routes are of another model or other
prompts. A pass is replayed in its own order of sending over those of its prompts that were captured: of a sample, the
groups are as thin as the sample. Each replica has its share, and each sample that a prompt was answered with its
place.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from orderproof.job.errors import OrderproofError
from orderproof.job.spec import BATCHED_TOKENS, Job
from orderproof.measure.trial_store import Trial
from orderproof.routing.routes import Routes
from orderproof.routing.simulate import EngineShape, simulate_captured

logger = logging.getLogger(__name__)


def experts_per_step(job: Job, trial: Trial) -> Mapping[str, float]:
    """Per pass id, the distinct experts of a layer that a step reads, mean over steps and layers; empty: not known."""
    path, plan = job.paths.routes, trial.manifest
    if not path.exists():
        return {}
    try:
        with Routes(path) as routes:
            if (routes.record.model, routes.record.dataset_md5) != (plan.model.get("fingerprint"), plan.dataset_md5):
                return {}
            return _of_passes(trial, routes)
    except OrderproofError as error:  # a trial's figures go to their tracker without this one
        logger.warning("experts_per_step is left out: %s", error)
        return {}


def _of_passes(trial: Trial, routes: Routes) -> dict[str, float]:
    engine = trial.manifest.engine
    setting = EngineShape(
        int(engine["max_num_seqs"]),
        int(engine.get("max_num_batched_tokens", BATCHED_TOKENS)),
        replicas=int(engine.get("replicas", 1)),
    )
    known: dict[str, float | None] = {}  # by the order's hash: the candidate's passes all send the same
    figures = {}
    for timed in trial.passes:
        key = f"{timed.order_sha256} {timed.requests}"
        if key not in known:
            sent = trial.tokens(timed.pass_id, columns=["prompt_id"])["prompt_id"].to_pylist()
            counts = Counter(sent)  # samples of each prompt, in the order of sending
            samples = {routes.place[name]: count for name, count in counts.items() if name in routes.place}
            known[key] = simulate_captured(routes, samples, setting, samples).experts_per_layer if samples else None
        figure = known[key]
        if figure is not None:
            figures[timed.pass_id] = figure
    return figures
