"""Claims about orderproof.outputs.scorers."""

from __future__ import annotations

from decimal import Decimal

import pytest

from orderproof.outputs import scorers
from orderproof.outputs.scorers import SCORERS, ScorerError, last_number, score


def test_every_score_is_0_or_1() -> None:
    assert {score(name, "7", "7") for name in SCORERS} == {1.0}
    assert {score(name, "8", "7") for name in SCORERS} == {0.0}


@pytest.mark.parametrize("text", ["Paris", " paris\n", "PARIS\u00a0"])
def test_exact_overlooks_case_and_white_space(text: str) -> None:
    assert score("exact", text, "Paris") == 1.0


def test_exact_takes_both_forms_of_an_accent_for_one() -> None:
    assert score("exact", "cafe\u0301", "café") == 1.0


@pytest.mark.parametrize("text", ["Paris.", "Par is", "", "Pariss"])
def test_exact_overlooks_nothing_else(text: str) -> None:
    assert score("exact", text, "Paris") == 0.0


def test_contains_finds_the_reference_across_a_line_break() -> None:
    assert score("contains", "It is in New\n York, surely.", "new york") == 1.0
    assert score("contains", "It is in York, newly.", "new york") == 0.0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 and 4 make 7.", "7"),
        ("#### 72\n", "72"),
        ("1,234", "1234"),
        ("1,234,567.89", "1234567.89"),
        ("1.234,56", "1234.56"),
        ("1.234.567", "1234567"),
        ("1'234.5", "1234.5"),
        ("1\u202f234", "1234"),
        ("1 234", "234"),
        ("1,5", "1.5"),
        ("1.234", "1.234"),
        ("0,125", "0.125"),
        ("1,2,3", "3"),
        ("3,14,15", "15"),
        ("= -4", "-4"),
        ("(−4)", "-4"),
        ("10-4", "4"),
        ("$1,200.00!", "1200"),
        ("١٢٣", "123"),
        ("٣٫٥", "3.5"),
        ("١٬٢٣٤٫٥", "1234.5"),
        ("答えは１２", "12"),
        ("x²", None),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_is_read_as_it_is_written(text: str, number: str | None) -> None:
    assert last_number(text) == (None if number is None else Decimal(number))


def test_numbers_are_compared_by_value() -> None:
    assert score("numeric", "The answer is 1,200.0", "1200") == 1.0
    assert score("numeric", "first 1200, then 3", "1200") == 0.0
    assert score("numeric", "no number", "1200") == 0.0
    assert score("numeric", "0.30000000000000001", "0.3") == 0.0


def test_a_misspelled_scorer_is_told_the_nearest() -> None:
    with pytest.raises(ScorerError, match="did you mean 'numeric'"):
        score("numerc", "1", "1")
    with pytest.raises(ScorerError, match="choose one of exact, contains, numeric"):
        score("zzz", "1", "1")


def test_a_reference_that_cannot_decide_is_an_error() -> None:
    with pytest.raises(ScorerError, match="'seven' has none"):
        score("numeric", "7", "seven")
    with pytest.raises(ScorerError, match="not empty"):
        score("contains", "anything", " \n")


def test_a_pattern_may_match_anywhere() -> None:
    assert score("regex", "So the answer is (B).", r"answer is \(?B\)?") == 1.0
    assert score("regex", "the answer is (C)", r"answer is \(?B\)?") == 0.0
    assert score("regex", "BLUE", "(?i)^blue$") == 1.0
    assert score("regex", "", ".") == 0.0


def test_a_reference_that_is_no_pattern_is_an_error() -> None:
    with pytest.raises(ScorerError, match=r"'\(B' is not a valid pattern: missing"):
        score("regex", "(B", "(B")
    with pytest.raises(ScorerError, match="an empty one matches every text"):
        score("regex", "anything", " ")


def test_a_pattern_that_would_never_end_is_told_and_scores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorers, "REGEX_LIMIT_S", 0.2)
    with pytest.raises(ScorerError, match=r"\(\?:x\+x\+\)\+y.* was not done after"):
        score("regex", "x" * 5000, "(?:x+x+)+y")
