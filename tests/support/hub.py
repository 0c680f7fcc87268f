"""A server that answers as the Hugging Face Hub's API does about one data set, whose files lie in a folder."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

REPOSITORY = "own/set"


class _Handler(http.server.BaseHTTPRequestHandler):
    folder: Path

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.startswith(f"/api/datasets/{REPOSITORY}/tree/"):
            self._answer(self._files())
        elif path.startswith(f"/api/datasets/{REPOSITORY}"):
            self._answer({"id": REPOSITORY, "sha": "0" * 40, "siblings": [], "private": False, "tags": []})
        elif path.startswith(f"/datasets/{REPOSITORY}/resolve/"):
            self._send((self.folder / path.rsplit("/", 1)[1]).read_bytes(), "application/octet-stream")
        else:
            self._answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer([file for file in self._files() if file["path"] in asked["paths"]])

    def _files(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": sha1(file.read_bytes()).hexdigest()}
            for file in sorted(self.folder.iterdir())
        ]

    def _answer(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(content).encode(), "application/json", status, headers)

    def _send(self, content: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serving_hub(folder: Path) -> Iterator[str]:
    """Address of the server, for HF_ENDPOINT."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"folder": folder}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
