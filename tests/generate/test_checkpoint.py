"""A checkpoint keeps results, and a later run sends only what is left, in the same order."""

from __future__ import annotations

from pathlib import Path

from orderproof.generate.checkpoint import count_done
from orderproof.generate.checkpoint_folder import FOLDER, RESULTS_FILE
from orderproof.generate.result import State
from tests.support.results import make_order, make_result, open_at


def test_results_are_there_after_reopening_whatever_their_text(tmp_path: Path) -> None:
    with open_at(tmp_path) as first:
        for place in (4, 1):
            first.append(make_result(place))
    with open_at(tmp_path) as again:
        assert (again.resumed, again.read(4), again.read(1), again.read(0)) == (2, make_result(4), make_result(1), None)


def test_pending_prompts_keep_the_order_of_sending(tmp_path: Path) -> None:
    with open_at(tmp_path) as checkpoint:
        assert checkpoint.pending.tolist() == make_order().permutation.tolist()
        sent = checkpoint.pending.tolist()
        checkpoint.append(make_result(sent[2]))
        assert checkpoint.pending.tolist() == sent[:2] + sent[3:]


def test_a_failed_prompt_is_sent_again_and_its_later_output_counts(tmp_path: Path) -> None:
    with open_at(tmp_path) as checkpoint:
        checkpoint.append(make_result(1, completions=(), asked_tokens=None, error="too long"))
        assert checkpoint.states[1] == State.FAILED
    assert count_done(tmp_path / FOLDER) == (0, 6)
    with open_at(tmp_path) as again:
        assert 1 in again.pending
        again.append(make_result(1))
    with open_at(tmp_path) as third:
        assert (third.resumed, third.read(1)) == (1, make_result(1))


def test_an_incomplete_output_is_kept_and_not_sent_again(tmp_path: Path) -> None:
    with open_at(tmp_path) as checkpoint:
        checkpoint.append(make_result(1, error="cut short"))
    with open_at(tmp_path) as again:
        assert 1 not in again.pending
        assert again.states[1] == State.INCOMPLETE


def test_counting_outputs_changes_nothing_and_needs_no_whole_last_line(tmp_path: Path) -> None:
    assert count_done(tmp_path / FOLDER) is None
    with open_at(tmp_path) as checkpoint:
        checkpoint.append(make_result(1))
        checkpoint.append(make_result(2))
    results = tmp_path / FOLDER / RESULTS_FILE
    torn = results.read_bytes()[:-1]
    results.write_bytes(torn)
    assert count_done(tmp_path / FOLDER) == (1, 6)
    assert results.read_bytes() == torn


def test_a_discarded_checkpoint_is_gone(tmp_path: Path) -> None:
    open_at(tmp_path).discard()
    assert list(tmp_path.iterdir()) == []
