"""A commit holds the record alone, and several workers push to one branch. Git and DVC are real."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orderproof.runs.dvc import DvcError, lock_entry, record_in_dvc, stage_of
from orderproof.runs.publish import Published, publish

SIX = stage_of("six-domains")
MESSAGE = "six-domains: promote the cluster order; promote, gain +18.3% (+15.0% to +21.0%) in 5 blocks"


def record_a_new_measurement(project: Any) -> None:
    project.measure_from_outside()
    assert record_in_dvc(project.root, SIX, project.inputs()).recorded


def committed_files(project: Any) -> list[str]:
    files: list[str] = project.git("show", "--name-only", "--format=", "HEAD").split()
    return files


def stage_other_work(project: Any) -> str:
    """The user's own unfinished work: a staged file, and a file of which a part is staged."""
    (project.root / "notes.txt").write_text("mine\n")
    project.edit("measure.py", "import json", "# staged\nimport json")
    project.git("add", "notes.txt", "measure.py")
    project.edit("measure.py", "# staged", "# staged\n# not staged")
    index: str = project.git("diff", "--cached")
    return index


def with_remotes(project: Any, folder: Path) -> None:
    project.git("init", "--quiet", "--bare", "--initial-branch=main", str(folder / "remote.git"))
    project.git("remote", "add", "origin", str(folder / "remote.git"))
    project.git("push", "--quiet", "--set-upstream", "origin", "main")
    project.dvc("remote", "add", "--default", "--quiet", "store", str(folder / "store"))
    project.git("commit", "--quiet", "--all", "--message=a place for the data")


def test_nothing_is_published_unasked(project: Any) -> None:
    head, state = project.git("rev-parse", "HEAD"), project.git("status", "--porcelain")
    record_a_new_measurement(project)
    assert publish(project.root, SIX, "none", MESSAGE) == Published()
    assert project.git("rev-parse", "HEAD") == head
    assert (state, project.git("status", "--porcelain")) == ("", " M dvc.lock\n")


def test_a_commit_holds_dvc_lock_alone_and_the_users_index_stays_as_it_was(project: Any) -> None:
    index = stage_other_work(project)
    record_a_new_measurement(project)
    published = publish(project.root, SIX, "commit", MESSAGE)
    assert published == Published(project.git("rev-parse", "HEAD").strip())
    assert committed_files(project) == ["dvc.lock"]
    assert project.git("log", "-1", "--format=%s").strip() == MESSAGE
    assert project.git("diff", "--cached") == index
    assert publish(project.root, SIX, "commit", MESSAGE) == Published(None)


def test_the_ignore_files_that_dvc_wrote_are_committed_with_a_first_record(project: Any) -> None:
    (project.root / ".gitignore").write_text("/runs.log\n/data/*/prompts.jsonl\n")
    project.git("rm", "--quiet", "--cached", "dvc.lock")
    project.git("commit", "--quiet", "--all", "--message=a project that leaves ignoring to DVC")
    index = stage_other_work(project)
    project.edit("params.yaml", "max_model_len: 512", "max_model_len: 513")
    project.git("commit", "--quiet", "--message=longer", "--only", "params.yaml")
    project.dvc("repro", "--quiet", SIX)
    publish(project.root, SIX, "commit", MESSAGE)
    assert committed_files(project) == ["data/six-domains/.gitignore", "dvc.lock", "reports/six-domains/.gitignore"]
    assert project.git("diff", "--cached") == index


@pytest.mark.parametrize("tracked", [True, False])
def test_a_commit_that_a_hook_refuses_is_an_error_and_changes_nothing(project: Any, tracked: bool) -> None:
    if not tracked:
        project.git("rm", "--quiet", "--cached", "dvc.lock")
        project.git("commit", "--quiet", "--message=without")
    stage_other_work(project)
    before = [project.git(*asked) for asked in (("diff", "--cached"), ("ls-files", "--stage"), ("rev-parse", "HEAD"))]
    hook = project.root / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\necho 'no commits on Sundays' >&2\nexit 1\n")
    hook.chmod(0o755)
    project.edit("dvc.lock", "schema: '2.0'", "schema: '2.0'  # anew")
    with pytest.raises(DvcError, match=r"^`git commit` failed: no commits on Sundays$"):
        publish(project.root, SIX, "commit", MESSAGE)
    assert [
        project.git(*asked) for asked in (("diff", "--cached"), ("ls-files", "--stage"), ("rev-parse", "HEAD"))
    ] == before


def test_without_an_author_the_note_has_the_commands_that_set_one(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.delenv(f"GIT_{role}_NAME")
        monkeypatch.delenv(f"GIT_{role}_EMAIL")
    project.git("config", "user.useConfigOnly", "true")
    project.edit("dvc.lock", "schema: '2.0'", "schema: '2.0'  # anew")
    with pytest.raises(DvcError, match=r"`git config user\.name 'Your Name'`.*`git commit -- dvc\.lock`$"):
        publish(project.root, SIX, "commit", MESSAGE)


def test_inputs_that_the_commit_does_not_hold_are_named(project: Any) -> None:
    project.edit("params.yaml", "max_model_len: 512", "max_model_len: 513")
    project.edit("data/six-domains/prompts.jsonl.dvc", "outs:", "# edited\nouts:")
    project.edit("dvc.lock", "schema: '2.0'", "schema: '2.0'  # anew")
    notes = publish(project.root, SIX, "commit", MESSAGE).notes
    assert [note.split(" has ")[0] for note in notes] == ["params.yaml", "data/six-domains/prompts.jsonl.dvc"]
    assert committed_files(project) == ["dvc.lock"]


def test_inside_a_stage_nothing_is_published_and_the_note_says_why(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = project.git("rev-parse", "HEAD")
    project.edit("dvc.lock", "schema: '2.0'", "schema: '2.0'  # anew")
    monkeypatch.setenv("DVC_STAGE", SIX)
    published = publish(project.root, SIX, "push", MESSAGE)
    assert (published.commit, published.pushed) == (None, False)
    (note,) = published.notes
    assert f"not published: DVC records {SIX}" in note
    assert project.git("rev-parse", "HEAD") == head


def test_what_was_never_recorded_cannot_be_published(project: Any) -> None:
    with pytest.raises(DvcError, match=r"dvc\.lock has no entry for measure@elsewhere"):
        publish(project.root, stage_of("elsewhere"), "commit", MESSAGE)


def test_outside_of_git_publishing_is_an_error(project: Any) -> None:
    shutil.rmtree(project.root / ".git")
    with pytest.raises(DvcError, match="`git status` failed: fatal: not a git repository"):
        publish(project.root, SIX, "commit", MESSAGE)


def test_a_second_clone_gets_the_pushed_order_and_its_evidence(project: Any, tmp_path: Path) -> None:
    with_remotes(project, tmp_path)
    record_a_new_measurement(project)
    published = publish(project.root, SIX, "push", MESSAGE)
    assert published.pushed
    project.git("clone", "--quiet", str(tmp_path / "remote.git"), str(tmp_path / "second"))
    second = replace(project, root=tmp_path / "second")
    assert second.git("rev-parse", "HEAD").strip() == published.commit
    second.dvc("pull", "--quiet", SIX)
    evidence = [path.relative_to(project.root) for path in project.root.glob("reports/six-domains/measure/*/run.json")]
    assert len(evidence) == len(project.runs()) - 1, "the other one is of the other job"
    for path in ("data/six-domains/order.parquet", "data/six-domains/order.json", *evidence):
        assert (second.root / path).read_bytes() == (project.root / path).read_bytes()
    assert second.git("status", "--porcelain") == ""


def test_a_commit_whose_data_cannot_be_pushed_stays_and_says_what_to_do(project: Any) -> None:
    record_a_new_measurement(project)
    with pytest.raises(
        DvcError, match=r"^committed [0-9a-f]{12}, but not pushed: .*no remote specified.*git push$"
    ) as failure:
        publish(project.root, SIX, "push", MESSAGE)
    assert str(failure.value).split()[1].rstrip(",") == project.git("rev-parse", "--short=12", "HEAD").strip()


ONE = stage_of("one-domain")


def second_clone(project: Any, folder: Path) -> Any:
    """Another worker's checkout of what is published."""
    project.git("push", "--quiet")
    project.git("clone", "--quiet", str(folder / "remote.git"), str(folder / "second"))
    return replace(project, root=folder / "second")


def published_by_both(project: Any, second: Any, job: str) -> Published:
    """The second worker records and pushes a job; then the first, who knows nothing of it, pushes its own."""
    project.dvc("push", "--quiet", stage_of(job), "--with-deps")
    second.dvc("pull", "--quiet", stage_of(job), "--with-deps")
    for _ in range(4):  # no two of its measurements are alike, and none of the first clone's three is like the fourth
        second.measure_from_outside(job)
    assert record_in_dvc(second.root, stage_of(job), second.inputs(job)).recorded
    assert publish(second.root, stage_of(job), "push", "the second worker's").pushed
    record_a_new_measurement(project)
    return publish(project.root, SIX, "push", MESSAGE)


def test_whoever_is_late_pushes_on_top_of_what_others_pushed(project: Any, tmp_path: Path) -> None:
    with_remotes(project, tmp_path)
    second = second_clone(project, tmp_path)
    published = published_by_both(project, second, "one-domain")
    assert published.pushed
    assert published.commit == project.git("rev-parse", "origin/main").strip()
    assert project.git("log", "-2", "--format=%s").splitlines() == [MESSAGE, "the second worker's"]
    assert lock_entry(project.root, ONE) == lock_entry(second.root, ONE)
    assert lock_entry(project.root, SIX) != lock_entry(second.root, SIX)
    assert project.git("status", "--porcelain") == ""


def test_two_records_of_one_stage_are_not_merged_and_the_message_says_so(project: Any, tmp_path: Path) -> None:
    with_remotes(project, tmp_path)
    second = second_clone(project, tmp_path)
    with pytest.raises(DvcError, match=r"^committed .*, but not pushed: others pushed .*in dvc\.lock") as failure:
        published_by_both(project, second, "six-domains")
    assert "git pull --rebase" in str(failure.value)
    assert project.git("log", "-1", "--format=%s").strip() == MESSAGE, "the record is no longer committed here"
    assert project.git("status", "--porcelain") == ""
    assert project.git("log", "-1", "--format=%s", "origin/main").strip() == "the second worker's"


def test_the_users_own_attributes_hold_when_commits_are_put_on_top(project: Any, tmp_path: Path) -> None:
    with_remotes(project, tmp_path)
    (tmp_path / "attributes").write_text("notes.txt merge=union")
    project.git("config", "core.attributesFile", str(tmp_path / "attributes"))
    (project.root / "notes.txt").write_text("ours\n")
    project.git("add", "notes.txt")
    project.git("commit", "--quiet", "--message=notes")
    second = second_clone(project, tmp_path)
    for worker, line in ((second, "theirs"), (project, "mine")):
        worker.edit("notes.txt", "ours\n", f"ours\n{line}\n")
        worker.git("commit", "--quiet", "--all", f"--message={line}")
    second.git("push", "--quiet")
    record_a_new_measurement(project)
    assert publish(project.root, SIX, "push", MESSAGE).pushed
    assert (project.root / "notes.txt").read_text().split() == ["ours", "theirs", "mine"]


def test_edits_that_are_not_committed_stay_and_hold_up_the_push_alone(project: Any, tmp_path: Path) -> None:
    with_remotes(project, tmp_path)
    second = second_clone(project, tmp_path)
    second.git("commit", "--quiet", "--allow-empty", "--message=meanwhile")
    second.git("push", "--quiet")
    record_a_new_measurement(project)
    project.edit("measure.py", "import json", "# mine\nimport json")
    with pytest.raises(DvcError, match=r"^committed .*, but not pushed: `git rebase` failed: .*unstaged changes"):
        publish(project.root, SIX, "push", MESSAGE)
    assert "# mine" in (project.root / "measure.py").read_text()
    project.git("checkout", "measure.py")
    assert publish(project.root, SIX, "push", MESSAGE) == Published(None, pushed=True)
    assert project.git("rev-parse", "HEAD") == project.git("rev-parse", "origin/main")
