"""Two mappings of what is asked of an engine, compared by name."""

from __future__ import annotations

import json

from orderproof.job.output_key import differences

KEY = {"dataset_md5": "a", "engine": {"args": {"max_num_seqs": 8}, "env": {}}, "sampling": {}}


def test_differences_name_what_was_added_changed_and_taken_away() -> None:
    assert differences({"a": {"b": 1, "c": 2}, "d": []}, {"a": {"b": 1, "c": 3}, "e": "x"}) == [
        "a.c: 2 → 3",
        "d: [] → absent",
        'e: absent → "x"',
    ]
    assert differences(KEY, json.loads(json.dumps(KEY))) == []


def test_what_is_added_to_an_empty_part_is_one_difference() -> None:
    assert differences({"env": {}}, {"env": {"A": "1"}}) == ['env.A: absent → "1"']
    assert differences({"env": {"A": "1"}}, {"env": {}}) == ['env.A: "1" → absent']
    assert differences({"env": {}}, {}) == []
