"""A batch is sent in the promoted order, or the one that its record names, or the file's own."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.generate.select_order import select_order, select_stream_order
from orderproof.job.spec import Job, OrderSpec
from orderproof.orders.order import Order, OrderError
from orderproof.orders.registry import METHODS, make_order
from orderproof.orders.view import view_of_source
from orderproof.prompts.source import PromptSource
from orderproof.prompts.tokenization import Tokenizer
from orderproof.runs import route_artifacts
from orderproof.runs.promotion import ORDER_FILE, demote, write_promotion
from orderproof.runs.promotion_record import Evidence
from orderproof.signals.served_model import ROUTES_FILE, ServedModel
from tests.support.batches import Bytes, make_project, promote_label_order
from tests.support.captured_job import make_job as make_routed_job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return make_project(tmp_path / "p", 60)


def chosen(job: Job, kept: Order | None = None) -> tuple[Order, str]:
    tokenizer: Any = Bytes()
    with PromptSource(job.prompts_path) as source:
        return select_order(job, source, lambda: tokenizer, kept)


def labels(job: Job) -> list[str]:
    return [json.loads(line)["label"] for line in job.prompts_path.read_text().splitlines()]


def test_without_a_promotion_the_file_s_order_is_sent(job: Job) -> None:
    order, why = chosen(job)
    assert (order.permutation.tolist(), order.method, "none is promoted" in why) == ([*range(60)], "file", True)


def test_the_promoted_order_is_sent_as_it_is_pinned(job: Job) -> None:
    promote_label_order(job)
    order, why = chosen(job)
    sent = [labels(job)[place] for place in order.permutation]
    assert (order.method, "promoted by trial" in why) == ("label", True)
    assert sent == sorted(sent, key=list(dict.fromkeys(labels(job))).index)


def test_new_prompts_get_the_order_that_the_promoted_way_to_order_gives(job: Job) -> None:
    promote_label_order(job)
    lines = job.prompts_path.read_text().splitlines()[::-1][:40]
    job.prompts_path.write_text("\n".join(lines) + "\n")
    order, why = chosen(job)
    sent = [labels(job)[place] for place in order.permutation]
    assert (len(order), "made for this version" in why) == (40, True)
    assert sum(a != b for a, b in pairwise(sent)) == 6


def test_an_order_that_was_made_for_an_unfinished_batch_is_used_again(job: Job) -> None:
    promote_label_order(job)
    with open(job.prompts_path, "a") as sink:
        sink.write('{"id": "new", "text": "new", "label": "domain 3"}\n')
    order, _ = chosen(job)
    marked = Order(order.permutation[::-1], order.method, order.parameters, order.seeds, order.dataset_md5)
    assert chosen(job, marked)[0] == marked
    other = Order(order.permutation, order.method, order.parameters, order.seeds, "another")
    assert chosen(job, other)[0] == order


def test_a_pinned_order_of_other_ids_is_never_sent(job: Job) -> None:
    promote_label_order(job)
    record = job.data_dir / "order.json"
    content = json.loads(record.read_text())
    content["order"]["sha256"] = "0" * 64
    record.write_text(json.dumps(content))
    with pytest.raises(OrderError, match=rf"{ORDER_FILE}.*dvc checkout"):
        chosen(job)


def test_after_a_demotion_the_file_s_order_is_sent(job: Job) -> None:
    promote_label_order(job)
    demote(job, [f"p{k}" for k in range(60)])
    assert chosen(job)[0].method == "file"


def test_routes_come_back_where_an_order_is_made_from_them_and_not_for_a_pinned_one(tmp_path: Path) -> None:
    job = make_routed_job(tmp_path, captured=64, order={"method": "cluster", "signal": "predicted", "clusters": 2})
    tokenizer, routes = Tokenizer(job), job.data_dir / ROUTES_FILE
    with PromptSource(job.prompts_path) as source:
        view = view_of_source(source, tokenizer, labels=False, lengths=False, served=ServedModel.of_job(job))
        order = make_order(job.order, view, source.md5)
        write_promotion(job, order, [*source.ids], Evidence(trial="T"))
    route_artifacts.keep(job, order, job.paths.run_dir("measure", "T"))
    for name in route_artifacts.FILES:
        (job.data_dir / name).unlink(missing_ok=True)
    with PromptSource(job.prompts_path) as source:
        assert select_order(job, source, lambda: tokenizer)[0] == order
    assert not routes.exists()
    with job.prompts_path.open("a") as file:
        file.write('{"id": "new", "text": "aeio"}\n')
    with PromptSource(job.prompts_path) as source:
        assert len(select_order(job, source, lambda: tokenizer)[0]) == len(order) + 1
    assert routes.exists()
    routes.unlink()
    select_stream_order(job)
    assert routes.exists()


def test_new_prompts_are_exchanged_within_the_room_of_a_step_as_in_the_trial(tmp_path: Path) -> None:
    spec = OrderSpec(method="exchange", signal="predicted", clusters=2)
    job = make_routed_job(tmp_path, captured=64, order=spec.model_dump())
    args = {**job.engine.args, "max_num_batched_tokens": 60}
    job = job.model_copy(update={"engine": job.engine.model_copy(update={"args": args})})
    tokenizer = Tokenizer(job)

    def trial_order(*, lengths: bool) -> Order:
        with PromptSource(job.prompts_path) as source:
            view = view_of_source(source, tokenizer, labels=False, lengths=lengths, served=ServedModel.of_job(job))
            return make_order(spec, view, source.md5)

    with PromptSource(job.prompts_path) as source:
        write_promotion(job, trial_order(lengths=True), [*source.ids], Evidence(trial="T"))
    with job.prompts_path.open("a") as file:
        file.writelines(f'{{"id": "new {k}", "text": "{word * 40}"}}\n' for k, word in enumerate("aeiobdfg"))
    with PromptSource(job.prompts_path) as source:
        order, _ = select_order(job, source, lambda: tokenizer)
    assert order == trial_order(lengths=True) != trial_order(lengths=False)
    assert order.parameters["batched_tokens"] == 60
    assert select_stream_order(job)[0].in_tokens


@pytest.mark.parametrize("method", [method for method in METHODS if method not in ("cluster", "greedy", "exchange")])
@pytest.mark.parametrize("window", [None, 8])
def test_a_record_is_enough_to_make_the_same_order_again(method: str, window: int | None) -> None:
    prompts = [{"id": str(k), "text": "w" * (k * 7 % 11), "label": str(k % 3)} for k in range(40)]
    order = make_order(OrderSpec.model_validate({"method": method, "window": window, "seed": 5}), prompts, "md5")
    assert np.array_equal(make_order(order.record().spec(), prompts, "md5").permutation, order.permutation)


def test_a_record_of_clusters_gives_their_number_signal_and_seed() -> None:
    record = Order(np.arange(3), "cluster", {"clusters": 5, "signal": "lexical"}, {"kmeans": 9}, "md5").record()
    assert record.spec() == OrderSpec(method="cluster", clusters=5, signal="lexical", seed=9)
