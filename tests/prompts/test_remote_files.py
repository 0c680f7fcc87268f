"""Prompts in other places are fetched from a server of their kind, again when they change, and errors are in words."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.spec import EngineSpec, Job
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.prompt_files import find_files
from tests.support.hub import serving_hub
from tests.support.prompt_files import GOOD, line


def job(root: Path, prompts: Any) -> Job:
    return Job(name="it", root=root, prompts=prompts, model="m", engine=EngineSpec(args={"max_num_seqs": 4}))


def ids(root: Path, prompts: Any) -> list[str]:
    return [prompt.id for prompt in read_prompts(find_files(job(root, prompts)))]


def ids_elsewhere(root: Path, prompts: str, **environment: str) -> str:
    """As `ids`, in a process with this environment: libraries read it when they are imported."""
    script = (
        "import sys, pathlib; from tests.prompts.test_remote_files import ids;"
        "print(ids(pathlib.Path(sys.argv[1]), sys.argv[2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(root), prompts],
        env={**os.environ, **environment}, cwd=Path(__file__).parents[2], capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip() or done.stderr


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, with ETags where it is told to."""

    tags = True
    gets: list[str]

    def do_GET(self) -> None:
        self.gets.append(self.path)
        super().do_GET()

    def end_headers(self) -> None:
        with contextlib.suppress(OSError):
            if self.tags:
                self.send_header("ETag", f'"{Path(self.translate_path(self.path)).stat().st_mtime_ns}"')
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serving(
    folder: Path, *, tags: bool = True, context: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Address of a server of a folder's files, and the paths that were fetched from it."""
    gets: list[str] = []
    handler = type("Handler", (_Handler,), {"tags": tags, "gets": gets})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *arguments: handler(*arguments, directory=str(folder))
    )
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{'https' if context else 'http'}://localhost:{server.server_port}", gets
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "p.jsonl").write_bytes(GOOD)
    return tmp_path / "served"


def test_a_file_is_fetched_once_and_again_when_it_changes(tmp_path: Path, folder: Path) -> None:
    with serving(folder) as (address, gets):
        url = f"{address}/p.jsonl?token=word"
        before = find_files(job(tmp_path, url)).md5()
        assert ids(tmp_path, url) == ["a"]
        assert len(gets) == 1
        (folder / "p.jsonl").write_bytes(line(id="b", text="x"))
        assert ids(tmp_path, url) == ["b"]
        assert find_files(job(tmp_path, url)).md5() != before
        assert len(gets) == 2


def test_where_a_server_tells_no_version_each_look_fetches(tmp_path: Path, folder: Path) -> None:
    with serving(folder, tags=False) as (address, _):
        assert ids(tmp_path, f"{address}/p.jsonl") == ["a"]
        (folder / "p.jsonl").write_bytes(line(id="b", text="x"))
        assert ids(tmp_path, [f"{address}/p.jsonl"]) == ["b"]


def test_errors_name_the_address_without_its_query(tmp_path: Path, folder: Path) -> None:
    (folder / "bad.jsonl").write_bytes(b"{")
    with serving(folder) as (address, _):
        with pytest.raises(PromptError, match=f"{address}/bad.jsonl.*line 1: the last line is cut off") as caught:
            ids(tmp_path, f"{address}/bad.jsonl?token=word")
        assert "token" not in str(caught.value)
        with pytest.raises(PromptError, match=r"absent\.jsonl.*: does not exist"):
            ids(tmp_path, f"{address}/absent.jsonl?token=word")
        with pytest.raises(PromptError, match="names no prompts file"):
            ids(tmp_path, f"{address}/p.txt")


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/p.jsonl"
        with pytest.raises(PromptError, match=r"p\.jsonl: cannot be fetched: .*Connect"):
            ids(tmp_path, url)


def test_a_file_comes_over_https(tmp_path: Path, folder: Path) -> None:
    authority = pytest.importorskip("trustme").CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with serving(folder, context=context) as (address, _):
        with pytest.raises(PromptError, match=r"cannot be fetched: .*certificate"):
            ids(tmp_path, f"{address}/p.jsonl")
        assert ids_elsewhere(tmp_path, f"{address}/p.jsonl", SSL_CERT_FILE=str(tmp_path / "ca.pem")) == "['a']"


@pytest.mark.parametrize(
    "place", ["s3://prompts/set/*.jsonl", "s3://prompts/set", ["s3://prompts/set/a.jsonl", "s3://prompts/set/b.jsonl"]]
)
def test_several_files_come_from_s3_and_a_change_is_seen(tmp_path: Path, bucket: Any, place: Any) -> None:
    for name in "ab":
        bucket.pipe(f"prompts/set/{name}.jsonl", line(id=name, text="x"))
    found = find_files(job(tmp_path, place))
    assert [prompt.id for prompt in read_prompts(found)] == ["a", "b"]
    times = [path.stat().st_mtime_ns for path in found.files]
    assert [path.stat().st_mtime_ns for path in find_files(job(tmp_path, place)).files] == times
    bucket.pipe("prompts/set/b.jsonl", line(id="c", text="x"))
    assert ids(tmp_path, place) == ["a", "c"]
    assert found.md5() == find_files(job(tmp_path, place)).md5() != ""
    with pytest.raises(PromptError, match="does not exist"):
        ids(tmp_path, "s3://prompts/absent.jsonl")


def test_what_a_place_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(PromptError, match=r"pip install 'orderproof\[gs\]'"):
        ids(tmp_path, "gs://bucket/p.jsonl")


@pytest.mark.parametrize("place", ["p.jsonl", "*.jsonl", ""])
def test_files_of_a_data_set_come_from_a_hub(tmp_path: Path, folder: Path, place: str) -> None:
    with serving_hub(folder) as address:
        hub = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        assert ids_elsewhere(tmp_path, f"hf://datasets/own/set/{place}", **hub) == "['a']"
        (folder / "p.jsonl").write_bytes(line(id="b", text="x"))
        assert ids_elsewhere(tmp_path, f"hf://datasets/own/set/{place}", **hub) == "['b']"
        absent = ids_elsewhere(tmp_path, "hf://datasets/own/absent/p.jsonl", **hub)
        assert "PromptError: hf://datasets/own/absent/p.jsonl: does not exist" in absent
