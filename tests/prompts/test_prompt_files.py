"""A job's prompts are found in one file or many, in a folder or by a pattern, and read as one set."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.job.hashing import md5_of
from orderproof.job.spec import EngineSpec, Job
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.prompt_files import find_files
from orderproof.prompts.source import PromptSource
from tests.support.lfs import POINTER
from tests.support.prompt_files import GOOD, line


def job(root: Path, prompts: Any) -> Job:
    return Job(name="it", root=root, prompts=prompts, model="m", engine=EngineSpec(args={"max_num_seqs": 4}))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards of two prompts each, one of them empty, whose names sort as their prompts."""
    for k in range(3):
        ids = [f"{k}{i}" for i in range(2)] if k != 1 else []
        table = pa.table({"id": pa.array(ids, pa.string()), "text": pa.array(ids, pa.string())})
        pq.write_table(table, tmp_path / f"train-{k:05}-of-00003.parquet")
    return tmp_path


@pytest.mark.parametrize("prompts", ["train-*-of-*.parquet", ["train-00000-of-00003.parquet", "train-0000[12]*"], "."])
def test_several_files_are_one_set_in_name_order(shards: Path, prompts: Any) -> None:
    found = find_files(job(shards, prompts))
    expected = [("00", 1), ("01", 2), ("20", 3), ("21", 4)]
    assert [(prompt.id, prompt.line) for prompt in read_prompts(found)] == expected
    with PromptSource(found) as source:
        assert [prompt.id for prompt in source.read([3, 0])] == ["21", "00"]
        assert list(source.ids) == ["00", "01", "20", "21"]
        assert source.md5 == found.md5()


def test_a_list_is_read_in_its_own_order_and_may_mix_kinds(shards: Path) -> None:
    (shards / "more.jsonl.gz").write_bytes(gzip.compress(GOOD))
    found = find_files(job(shards, ["more.jsonl.gz", "train-00002-of-00003.parquet"]))
    assert [prompt.id for prompt in read_prompts(found)] == ["a", "20", "21"]


def test_rows_without_ids_are_numbered_through_all_files(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(line(prompt="x") * 2)
    assert [prompt.id for prompt in read_prompts(find_files(job(tmp_path, "*.jsonl")))] == ["1", "2", "3", "4"]


def test_a_flaw_is_named_with_its_own_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    (tmp_path / "b.jsonl").write_bytes(line(id="b", text="x") + line(id="c"))
    found, flaws = find_files(job(tmp_path, "*.jsonl")), list[PromptError]()
    assert [prompt.id for prompt in read_prompts(found, flaws.append)] == ["a", "b"]
    (flaw,) = flaws
    assert (flaw.row, flaw.id) == (3, "c")
    assert "(b.jsonl, line 2)" in flaw.problem
    with pytest.raises(PromptError, match=r"\*\.jsonl, line 3 \(id 'c'\).*b\.jsonl, line 2"):
        PromptSource(found)


def test_an_id_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(GOOD)
    with pytest.raises(PromptError, match="duplicate id, first on line 1"):
        PromptSource(find_files(job(tmp_path, "*.jsonl")))


def test_a_change_of_any_file_is_another_hash_and_a_single_file_has_its_own(shards: Path) -> None:
    one = job(shards, "train-00000-of-00003.parquet")
    assert find_files(one).md5() == md5_of(one.prompts_path)
    several = job(shards, "*.parquet")
    before = find_files(several).md5()
    with PromptSource(find_files(several)) as source:
        pq.write_table(pa.table({"id": ["x"], "text": ["y"]}), shards / "train-00001-of-00003.parquet")
        assert find_files(several).md5() != before
        with pytest.raises(PromptError, match="was changed while the job ran"):
            source.read([0])


@pytest.mark.parametrize(
    ("prompts", "problem"),
    [
        ("absent.jsonl", r"absent\.jsonl: does not exist"),
        ("absent-*.jsonl", "matches no file"),
        ("empty", "is a folder without files of"),
        ("mixed", r"is a folder with files of \.csv and \.jsonl"),
        (["p.jsonl", "absent.jsonl"], r"absent\.jsonl: does not exist"),
        ("pointer.parquet", "Git LFS pointer"),
        ("p.txt", "unknown kind"),
        ("ftp://host/p.jsonl", "is not supported"),
        ("https://user:word@host/p.jsonl", "has a user or password"),
    ],
)
def test_what_cannot_be_found_is_named(tmp_path: Path, prompts: Any, problem: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    for name in ("p.jsonl", "p.txt", "mixed/p.jsonl", "mixed/p.csv", "empty/.hidden.jsonl"):
        (tmp_path / name).write_bytes(GOOD)
    (tmp_path / "pointer.parquet").write_bytes(POINTER)
    with pytest.raises(PromptError, match=problem) as caught:
        find_files(job(tmp_path, prompts))
    assert "word@" not in str(caught.value)


def test_a_name_with_brackets_is_a_name_before_it_is_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "p[1].jsonl").write_bytes(GOOD)
    assert find_files(job(tmp_path, "p[1].jsonl")).files == (tmp_path / "p[1].jsonl",)


def test_a_path_may_begin_at_the_users_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "p.jsonl").write_bytes(GOOD)
    assert find_files(job(tmp_path / "elsewhere", "~/p.jsonl")).files == (tmp_path / "p.jsonl",)
    assert job(tmp_path, "p").model_copy(update={"model": "~/m"}).model_path == tmp_path / "m"
