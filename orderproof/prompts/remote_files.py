"""Prompt files in other places, fetched through fsspec: each is kept in a folder until another version is there.

Credentials and addresses of servers come from where the libraries behind fsspec look for them: ~/.aws, ~/.netrc,
AWS_ENDPOINT_URL, FSSPEC_S3_ENDPOINT_URL and the like.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orderproof.job.files import FileError, write_atomically
from orderproof.job.hashing import canonical_json, sha256_of
from orderproof.job.spec import shown_url
from orderproof.prompts.file_kinds import KINDS, kind_of
from orderproof.prompts.prompt import PromptError

PROTOCOLS = ("s3", "gs", "hf", "https", "http")
EXTRAS = {"s3": "s3", "gs": "gs"}  # of orderproof's package
CONNECT_S, SILENCE_S = 10.0, 60.0  # of an HTTP server
# What tells one version of a remote file from another, in fsspec's words for each kind of place.
VERSION_KEYS = (
    "ETag",
    "etag",
    "LastModified",
    "last_modified",
    "mtime",
    "md5Hash",
    "generation",
    "blob_id",
    "Content-MD5",
)

_PATTERN = re.compile(r"[*?\[]")
_QUERY = re.compile(r"\?[^\s'\"]+")  # it may hold a secret


def fetch(url: str, folder: Path) -> list[Path]:
    """The files at an address (one, a folder's, or those of a pattern, by name), in `folder`.

    Raises:
        PromptError: there is none, or it cannot be fetched.
    """
    _check(url)
    with _fetch_errors(url):
        fs, place = _open(url)
        kind = urlsplit(url).path
        is_http = url.startswith("http")
        if not is_http and _PATTERN.search(kind):
            names = sorted(name for name in fs.glob(place) if kind_of(Path(name)))
        elif kind_of(Path(kind)) is None and not is_http:
            names = sorted(name for name in fs.find(place) if kind_of(Path(name)))
        else:
            names = [place]
        if not names or not kind_of(Path(urlsplit(names[0]).path)):
            remedy = f"Name files of {', '.join(KINDS)}"
            raise PromptError(Path(shown_url(url)), "names no prompts file", remedy, flaw="file")
        return [_fetched(fs, name, folder) for name in names]


def _check(url: str) -> None:
    parts = urlsplit(url)
    shown = Path(shown_url(url))
    if parts.scheme not in PROTOCOLS:
        problem, remedy = f"{parts.scheme}:// is not supported", f"Use {', '.join(PROTOCOLS)}, or copy the file here"
        raise PromptError(shown, problem, remedy, flaw="file")
    if "@" in parts.netloc and parts.scheme.startswith("http"):
        problem = "has a user or password in its address, which would be in every record"
        raise PromptError(shown, problem, "Put them into ~/.netrc", flaw="file")


def _open(url: str) -> tuple[Any, str]:
    import fsspec

    options: dict[str, Any] = {}
    if url.startswith("http"):
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        options["client_kwargs"] = {"timeout": timeout, "trust_env": True}
    fs, place = fsspec.core.url_to_fs(url, **options)
    fs.invalidate_cache()  # of listings: another version may be there since the last look
    return fs, place


def _fetched(fs: Any, name: str, folder: Path) -> Path:
    """The local copy of one remote file, which is fetched again if another version is there or none can be told."""
    suffixes = "".join(Path(urlsplit(name).path).suffixes[-2:])
    copy = folder / (sha256_of(f"{fs.protocol} {name}")[:32] + (suffixes if kind_of(Path("x" + suffixes)) else ""))
    version_file = copy.with_name(copy.name + ".version")
    info = fs.info(name)
    known = {key: str(info[key]) for key in VERSION_KEYS if info.get(key)}
    version = canonical_json({**known, "size": info.get("size")}) if known else ""
    if version and copy.is_file() and version_file.is_file() and version_file.read_text() == version:
        return copy
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=folder, suffix=".part")
    os.close(descriptor)
    try:
        fs.get_file(name, part)
        os.replace(part, copy)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    write_atomically(version_file, version)
    return copy


@contextlib.contextmanager
def _fetch_errors(url: str) -> Any:
    """Turn whatever the libraries behind fsspec raise into a PromptError."""
    shown = Path(shown_url(url))
    try:
        yield
    except (PromptError, FileError):
        raise
    except ImportError as error:
        scheme = urlsplit(url).scheme
        remedy = f"pip install 'orderproof[{EXTRAS[scheme]}]'" if scheme in EXTRAS else "Install what it names"
        raise PromptError(shown, f"cannot be fetched: {error}", remedy, flaw="file") from None
    except Exception as error:  # each library has errors of its own
        cause = error.__cause__ or error  # over HTTP whatever goes wrong is a FileNotFoundError
        status = getattr(cause, "status", None) or getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(cause, FileNotFoundError) or status == 404:
            raise PromptError(shown, "does not exist", "Check the address and its server", flaw="file") from None
        words = _QUERY.sub("?…", " ".join(f"{type(cause).__name__}: {cause}".split())[:300])
        remedy = "Check the address, the network and the credentials"
        raise PromptError(shown, f"cannot be fetched: {words}", remedy, flaw="file") from None
