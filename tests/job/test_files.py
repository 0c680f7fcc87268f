"""Files are whole or absent, for the readers that the umask lets."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orderproof.job.errors import OrderproofError
from orderproof.job.files import FileError, append_line, atomic_file, write_atomically


@pytest.fixture
def umask() -> Iterator[int]:
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_and_alone(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a.bin") as sink:
        sink.write(b"one ")
        sink.write(b"two")
    assert (tmp_path / "a.bin").read_bytes() == b"one two"
    assert names(tmp_path) == ["a.bin"]


def test_nothing_is_at_the_path_before_the_block_has_ended(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a.bin") as sink:
        sink.write(b"one")
        sink.flush()
        assert not (tmp_path / "a.bin").exists()


def write_half(path: Path, interruption: type[BaseException]) -> None:
    with atomic_file(path) as sink:
        sink.write(b"half of the new")
        raise interruption


@pytest.mark.parametrize("interruption", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_the_old_file_and_no_part(tmp_path: Path, interruption: type[BaseException]) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(interruption):
        write_half(path, interruption)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_an_error_makes_no_new_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write_half(tmp_path / "a.bin", ZeroDivisionError)
    assert names(tmp_path) == []


def test_a_process_that_is_killed_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    script = """
import os, signal, sys
from pathlib import Path
from orderproof.job.files import atomic_file
with atomic_file(Path(sys.argv[1])) as sink:
    sink.write(b"half of the new")
    sink.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script, path], check=False)
    assert done.returncode == -9
    assert path.read_bytes() == b"old"


def test_what_cannot_be_moved_into_place_is_removed(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "taken", "text")
    assert names(tmp_path) == ["taken"]


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "c.json", "{}")
    assert (tmp_path / "a" / "b" / "c.json").read_text() == "{}"


def test_a_file_may_be_read_by_whom_the_umask_lets(tmp_path: Path, umask: int) -> None:
    write_atomically(tmp_path / "a.json", "{}")
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o666 & ~umask


def test_writing_leaves_the_umask_as_it_was(tmp_path: Path, umask: int) -> None:
    write_atomically(tmp_path / "a.json", "{}")
    assert os.umask(umask) == umask


@pytest.mark.parametrize("content", ["été ٣ 中\n", b"\x00\xff\r\n"])
def test_content_is_written_byte_for_byte(tmp_path: Path, content: str | bytes) -> None:
    write_atomically(tmp_path / "a", content)
    assert (tmp_path / "a").read_bytes() == (content.encode() if isinstance(content, str) else content)


def test_a_line_is_added_after_the_others(tmp_path: Path) -> None:
    path = tmp_path / "passes.jsonl"
    for line in ("one", "two é", "three"):
        append_line(path, line)
    assert path.read_bytes() == "one\ntwo é\nthree\n".encode()


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        for write in (lambda: write_atomically(path, b"x" * 5000), lambda: append_line(path, "x" * 5000)):
            with pytest.raises(FileError, match=r"a\.bin cannot be written: File too large") as refused:
                write()
            assert isinstance(refused.value, OSError)
            assert isinstance(refused.value, OrderproofError)
            assert (refused.value.filename, refused.value.strerror) == (str(path), "File too large")
            assert names(tmp_path) == ["a.bin"]
            assert path.read_bytes().startswith(b"old")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_folder_that_cannot_be_made_is_named_by_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"file/a\.bin cannot be written: (Not a directory|File exists)"):
        write_atomically(tmp_path / "file" / "a.bin", b"")


def test_an_error_of_another_file_stays_what_it_is(tmp_path: Path) -> None:
    def copy_nothing() -> None:
        with atomic_file(tmp_path / "a.bin") as sink:
            sink.write((tmp_path / "none").read_bytes())

    with pytest.raises(FileNotFoundError, match="none"):
        copy_nothing()
