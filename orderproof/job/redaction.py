"""A job's engine settings for records, which go to trackers and remotes: the values of secrets are hidden.

A hidden value leaves a keyed digest, so that a change of it is still noticed. The key never leaves the project's
.orderproof/, so a record does not help to guess a value.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderproof.job.hashing import canonical_json
from orderproof.job.paths import STATE_FOLDER, state_dir
from orderproof.job.spec import EngineSpec, Job

KEY_FILE = Path(STATE_FOLDER, "redaction.key")
HIDDEN = re.compile(r"\(hidden(?: ([0-9a-f]{8}):[0-9a-f]{16})?\)")

# What a secret's name has in it. vLLM's `tokenizer…` and `pass_config` are none.
_NAME = r"PASS(?!_?CONFIG)|PW|AUTH|BEARER|COOKIE|TOKEN(?!IZER)|SECRET|KEY|CREDENTIAL"
_SECRET = re.compile(_NAME, re.IGNORECASE)
_COUNT = re.compile("TOKEN", re.IGNORECASE)  # a number under such a name counts tokens: max_num_batched_tokens
# `NAME=value`, as after `docker run -e`; `Name: value` of a header or of JSON (a path of a PATH is none); a bearer's.
_ASSIGNED = re.compile(
    rf"""([\w.-]*(?:{_NAME})[\w.-]*["']?\s*(?:=|:(?!/))\s*|\bbearer\s+)(.+)""", re.IGNORECASE | re.DOTALL
)
_USER_INFO = re.compile(r"""(?<=://)(?:[^\s'"/:@]*:[^\s'"]*|[^\s'"/@]+)(?=@)""")  # of a URL; a password may hold `/@`


def hide_user_info(text: str) -> str:
    """A message without the `user:password@` of the URLs in it."""
    return _USER_INFO.sub("(hidden)", text)


def recorded_engine(job: Job) -> dict[str, Any]:
    """A job's engine for records, without secrets: its `command`, `args` and `env`, or which server it is."""
    return _Redactor(job.root).engine(job.engine)


def recorded_args(job: Job) -> dict[str, Any]:
    """The `args` of `recorded_engine`."""
    return _Redactor(job.root).mapping(job.engine.args)


def args_without_secrets(spec: EngineSpec) -> dict[str, Any]:
    """`args` without secrets and without their digests, for what a change of a secret leaves the same."""
    return _Redactor(None).mapping(spec.args)


def same_settings(then: object, now: object) -> bool:
    """Whether two recorded values are equal. A digest made with another key, or without one, tells nothing."""
    if then == now:
        return True
    before, after = canonical_json(then), canonical_json(now)
    keys_before, keys_after = (set(HIDDEN.findall(text)) for text in (before, after))
    return keys_before != keys_after and HIDDEN.sub("", before) == HIDDEN.sub("", after)


@dataclass
class _Redactor:
    """Hides values. `root`: of the project whose key makes the digests; None: without digests."""

    root: Path | None

    def engine(self, spec: EngineSpec) -> dict[str, Any]:
        if spec.server:
            server = {"server": self._text(spec.server), "model": spec.model, "concurrency": spec.concurrency}
            return {**server, "args": {}, "env": {}}
        env = {name: self._named(name, value, numbers=True) for name, value in spec.environment.items()}
        return {"command": self._command(spec.command), "args": self.mapping(spec.args), "env": env}

    def mapping(self, settings: Mapping[str, Any], *, secret: bool = False) -> dict[str, Any]:
        return {name: self._named(name, value, secret=secret) for name, value in settings.items()}

    def _command(self, words: Sequence[str]) -> list[str]:
        """Also the word after an option such as `--token`."""
        return [
            self._hide(word) if option.startswith("-") and _names_secret(option) else self._text(word)
            for option, word in zip(["", *words], words, strict=False)
        ]

    def _named(self, name: str, value: Any, *, secret: bool = False, numbers: bool = False) -> Any:
        """A value under a name. `secret`: the name of what it is part of is a secret's; `numbers`: also of tokens."""
        secret = secret or bool(_SECRET.search(str(name)))
        if isinstance(value, Mapping):
            return self.mapping(value, secret=secret)
        if isinstance(value, list | tuple):
            return [self._named(name, part, secret=secret, numbers=numbers) for part in value]
        if isinstance(value, str):
            return self._hide(value) if secret else self._text(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return self._hide(value) if is_number and secret and (numbers or not _COUNT.search(str(name))) else value

    def _text(self, text: str) -> str:
        found = _ASSIGNED.search(text)
        shown = text[: found.start(2)] if found else text
        hidden = self._hide(found[2]) if found else ""
        return _USER_INFO.sub(lambda info: self._hide(info[0]), shown) + hidden

    def _hide(self, value: object) -> str:
        if value == "":
            return ""
        key = _key(self.root) if self.root else None
        if key is None:
            return "(hidden)"
        digest = hmac.new(key, str(value).encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        return f"(hidden {hashlib.sha256(key).hexdigest()[:8]}:{digest[:16]})"


def _names_secret(option: str) -> bool:
    return bool(_SECRET.search(option)) and not {"=", ":"} & set(option)


def _key(root: Path) -> bytes | None:
    """The project's key, made at first need; None: it can be neither read nor written."""
    path = state_dir(root) / KEY_FILE.name
    with contextlib.suppress(OSError):
        if not path.exists():
            _make_key(path)
        return path.read_bytes() or None
    return None


def _make_key(path: Path) -> None:
    """Of two processes that make one at the same time, the first one's stays. Only its owner can read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as sink:
            sink.write(secrets.token_hex(32))
            sink.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)
