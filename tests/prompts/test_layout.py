"""The columns of a file are found by the job's names or by those that other tools use, and near misses are named."""

from __future__ import annotations

import pytest

from orderproof.job.sampling import SAMPLING_NAMES
from orderproof.job.spec import ColumnsSpec
from orderproof.prompts.layout import NATIVE, Layout, find_layout


@pytest.mark.parametrize(
    ("names", "columns", "layout"),
    [
        (["id", "text", "label", "reference"], {}, NATIVE),
        (["id", "text", "messages", "prompt"], {}, NATIVE),
        (["id", "prompt", "messages"], {}, Layout(text="messages")),
        (["id", "conversations"], {}, Layout(text="conversations")),
        (["prompt"], {}, Layout(id=None, text="prompt")),
        (["label"], {}, NATIVE),
        (["id", "text", "messages"], {"text": "messages", "label": "source"}, Layout(text="messages", label="source")),
        (["q", "key"], {"text": "q", "id": "key", "reference": "a"}, Layout("key", "q", "label", "a")),
        (["q"], {"text": "q"}, Layout(id=None, text="q")),
    ],
)
def test_the_layout_of_a_file(names: list[str], columns: dict[str, str], layout: Layout) -> None:
    assert find_layout(names, ColumnsSpec(**columns)) == layout


@pytest.mark.parametrize(
    ("name", "notice"),
    [
        ("max_tokens", "belongs in `sampling`"),
        ("tools", "does not reach the model"),
        ("labels", "did you mean `label`"),
        ("refrence", "did you mean `reference`"),
        ("Sampling", "did you mean `sampling`"),
    ],
)
def test_a_column_that_looks_as_if_it_should_be_read_is_named(name: str, notice: str) -> None:
    (found,) = NATIVE.notices(["id", "text", name])
    assert f"`{name}` is not read" in found
    assert notice in found


def test_other_columns_are_nobodys_business() -> None:
    assert not list(NATIVE.notices(["id", "text", "label", "labels", "source", "context", "texts", "ids"]))


def test_a_column_with_a_role_in_the_job_is_no_near_miss() -> None:
    assert not list(Layout(label="seed", reference="labels").notices(["id", "text", "seed", "labels"]))


def test_the_names_of_sampling_are_vllms() -> None:
    sampling_params = pytest.importorskip("vllm.sampling_params").SamplingParams
    assert set(sampling_params.__struct_fields__) >= SAMPLING_NAMES
