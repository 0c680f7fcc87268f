"""The makers of the harder mix and of files of any size."""

from __future__ import annotations

import collections
import itertools
import json
import subprocess
import sys
from pathlib import Path

import make_chat
import make_many
import pytest

from tests.conftest import ROOT


def test_the_harder_mix_is_made_again_from_its_seed_and_another_seed_makes_another() -> None:
    assert list(make_chat.make_chat(50, 0)) == list(make_chat.make_chat(50, 0))
    assert list(make_chat.make_chat(50, 0)) != list(make_chat.make_chat(50, 1))


def test_the_harder_mix_has_ten_topics_of_about_equal_size_and_no_twins() -> None:
    rows = list(make_chat.make_chat(768, 0))
    sizes = collections.Counter(row["label"] for row in rows)
    assert len(sizes) == 10
    assert min(sizes.values()) > 40
    assert len({row["text"] for row in rows}) == len({row["id"] for row in rows}) == 768


def test_its_topics_overlap_and_no_slot_is_left_open() -> None:
    rows = list(make_chat.make_chat(768, 0))
    assert not [row for row in rows if "{" in row["text"] or "}" in row["text"]]
    words = make_chat.YAML(typ="safe").load(make_chat.WORDS.read_text("utf-8"))["topics"]
    strange = sum(
        any(thing in row["text"] for topic, own in words.items() if topic != row["label"] for thing in own["things"])
        for row in rows
    )
    assert 0.2 < strange / len(rows) < 0.5


def test_its_lengths_are_as_in_chat_many_short_and_some_long() -> None:
    lengths = sorted(len(row["text"]) for row in make_chat.make_chat(768, 0))
    assert lengths[len(lengths) // 2] < 120
    assert lengths[-len(lengths) // 20] > 2 * lengths[len(lengths) // 2]


def test_more_prompts_than_the_words_give_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = tmp_path / "few.yaml"
    words.write_text(
        "topics: {a: {things: [x, y], notes: [n, o, p, q]}, b: {things: [z, w], notes: [n, o, p, q]}}\n"
        "asks: {tell: ['Tell {thing}.']}\nbridges: ['{other}']\nopenings: ['Hi']\nclosings: ['Bye']\n"
    )
    monkeypatch.setattr(make_chat, "WORDS", words)
    with pytest.raises(make_chat.ChatError, match=r"few\.yaml give \d+ different prompts, not 100000"):
        list(make_chat.make_chat(100_000, 0))


def test_many_prompts_are_of_the_length_that_was_asked_for_in_every_domain() -> None:
    rows = list(make_many.make_many(3000, 0))
    assert [row["id"] for row in rows[:2]] == ["many-0", "many-1"]
    assert 105 < sum(len(row["text"]) for row in rows) / len(rows) < 130
    assert min(collections.Counter(row["label"] for row in rows).values()) > 400


def test_a_longer_file_begins_like_a_shorter_one_and_is_written_row_by_row(tmp_path: Path) -> None:
    long = make_many.make_many(10**12, 0)
    assert list(itertools.islice(long, 20)) == list(make_many.make_many(20, 0))
    make_many.main(["30", "-o", str(tmp_path / "many.jsonl")])
    assert len([json.loads(line) for line in (tmp_path / "many.jsonl").read_text().splitlines()]) == 30


@pytest.mark.parametrize("maker", ["demo/make_chat.py", "bench/make_many.py"])
def test_no_prompts_are_a_wrong_usage(maker: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "infra" / maker), "0", "-o", str(tmp_path / "x.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "at least 1" in done.stderr) == (2, True)
