"""dvc.lock is merged stage by stage, and what both sides changed is nobody's to choose."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from orderproof.runs.lock_merge import StageConflict, main, merge_stages

A, B, A2, B2 = ({"cmd": name} for name in ("a", "b", "a anew", "b anew"))
LOCK = """\
schema: '2.0'
stages:
  measure@one:
    cmd: orderproof measure one
    outs:
    - path: data/one/order.json
      hash: md5
      md5: {md5}
      size: 12
"""


@pytest.mark.parametrize(
    ("ours", "theirs", "merged"),
    [
        ({"a": A2, "b": B}, {"a": A, "b": B2}, {"a": A2, "b": B2}),  # each its own
        ({"a": A, "b": B, "c": A}, {"a": A, "b": B, "d": B}, {"a": A, "b": B, "c": A, "d": B}),  # both new ones
        ({"a": A2, "b": B}, {"a": A2, "b": B}, {"a": A2, "b": B}),  # the same
        ({"b": B}, {"a": A, "b": B2}, {"b": B2}),  # one dropped a stage that the other left alone
    ],
)
def test_each_stage_is_what_the_side_that_changed_it_says(ours: object, theirs: object, merged: object) -> None:
    assert isinstance(ours, dict)
    assert isinstance(theirs, dict)
    assert dict(merge_stages({"a": A, "b": B}, ours, theirs)) == merged
    assert dict(merge_stages({"a": A, "b": B}, theirs, ours)) == merged


@pytest.mark.parametrize("theirs", [{"a": B}, {}])
def test_a_stage_that_both_changed_is_nobodys_to_choose(theirs: dict[str, object]) -> None:
    with pytest.raises(StageConflict):
        dict(merge_stages({"a": A}, {"a": A2}, theirs))


def test_what_nobody_changed_stays_byte_for_byte(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("base", "ours", "theirs")]
    for path, md5 in zip(paths, ("a" * 32, "a" * 32, "b" * 32), strict=True):
        path.write_text(LOCK.format(md5=md5))
    assert main(*paths) == 0
    assert paths[1].read_text() == LOCK.format(md5="b" * 32)


def test_a_conflict_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("base", "ours", "theirs")]
    for path, md5 in zip(paths, "abc", strict=True):
        path.write_text(LOCK.format(md5=md5))
    assert main(*paths) == 1
    assert YAML(typ="safe", pure=True).load(paths[1])["stages"]["measure@one"]["outs"][0]["md5"] == "b"
