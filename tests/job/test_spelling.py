"""A misspelled name gets a suggestion."""

from __future__ import annotations

from orderproof.job.spelling import did_you_mean, nearest


def test_the_most_similar_name_is_suggested() -> None:
    assert nearest("lable", ["label", "reference"]) == "label"
    assert did_you_mean("lable", ["label", "reference"]) == "did you mean 'label'?"


def test_without_a_similar_name_all_are_listed_once() -> None:
    assert did_you_mean("xyz", ["label", "reference", "label"]) == "known here: label, reference"
    assert did_you_mean("xyz", []) == "there is none"
    assert nearest("xyz", []) is None


def test_a_higher_cutoff_suggests_less() -> None:
    assert nearest("texts", ["text"], cutoff=0.8) == "text"
    assert nearest("context", ["text"], cutoff=0.8) is None
