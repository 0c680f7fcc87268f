"""A server of OpenAI's completions protocol with vLLM's extensions, which fails requests as it is told. Not a model."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Fault = Literal["429", "500", "503", "400", "401", "cut", "slow", "garbage"]
SLOW_S = 1.0
METRICS = """\
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0"} %d
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0"} %d
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0"} %d
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{enable_prefix_caching="%s",engine="0"} 1.0
"""


@dataclass
class OpenAIServer:
    """What it was sent and what it does. A request is known by the first token of its prompt."""

    url: str = ""
    key: str | None = None
    caching: bool = False
    token_ids: bool = True  # whether answers have them, as vLLM's do
    pause_s: float = 0.0  # that an answer takes
    faults: dict[int, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    always: Fault | None = None
    began: list[int] = field(default_factory=list)  # requests, each time that they came
    answered: Counter[int] = field(default_factory=Counter)
    bodies: dict[int, dict[str, Any]] = field(default_factory=dict)
    in_flight: int = 0
    most_in_flight: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, number: int, body: dict[str, Any]) -> dict[str, Any]:
        own = {"token_ids": [number, 2, 3]} if self.token_ids else {}
        choices = [
            {"index": k, "text": f"text {number}.{k}", "finish_reason": "length", "logprobs": None, **own}
            for k in range(body.get("n") or 1)
        ]
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 3, "total_tokens": len(body["prompt"]) + 3}
        head = {"id": f"cmpl-{number}", "object": "text_completion", "created": 0, "model": body["model"]}
        return {**head, "choices": choices[::-1], "usage": usage}


@contextmanager
def openai_server(**settings: Any) -> Iterator[OpenAIServer]:
    """A server on a free port of loopback."""
    state = OpenAIServer(**settings)
    listening = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{listening.server_port}/v1"
    try:
        yield state
    finally:
        listening.shutdown()
        listening.server_close()


def _handler(state: OpenAIServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            pages: dict[str, Callable[[], Any]] = {
                "/v1/models": lambda: {"object": "list", "data": [_model("toy"), _model("other")]},
                "/version": lambda: {"version": "0.32.0"},
                "/metrics": lambda: METRICS % (3, 100, sum(state.answered.values()), state.caching),
            }
            if self._refused():
                return
            page = pages[self.path]()
            self._send(200, page if isinstance(page, str) else json.dumps(page))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self._refused():
                return
            number = body["prompt"][0]
            if body["max_tokens"] == 1:  # whether the server answers anything
                self._do(state.always, number, body, counted=False)
                return
            with state.lock:
                state.began.append(number)
                state.bodies[number] = body
                state.in_flight += 1
                state.most_in_flight = max(state.most_in_flight, state.in_flight)
                fault = state.always or (state.faults[number].pop(0) if state.faults[number] else None)
            try:
                time.sleep(state.pause_s)
                self._do(fault, number, body)
            finally:
                with state.lock:
                    state.in_flight -= 1

        def _do(self, fault: Fault | None, number: int, body: dict[str, Any], *, counted: bool = True) -> None:
            whole = json.dumps(state.answer(number, body))
            if fault == "cut":
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(whole)))
                self.end_headers()
                self.wfile.write(whole[: len(whole) // 2].encode())
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            elif fault == "slow":
                time.sleep(SLOW_S)
                self.close_connection = True
            elif fault == "garbage":
                self._send(200, "<html>a proxy's page</html>")
            elif fault:
                self._send(int(fault), json.dumps({"error": {"message": f"fault {fault}", "type": "x", "code": None}}))
            else:
                with state.lock:
                    state.answered[number] += counted
                self._send(200, whole)

        def _refused(self) -> bool:
            if state.key and self.headers["Authorization"] != f"Bearer {state.key}":
                self._send(401, json.dumps({"error": {"message": "Unauthorized"}}))
                return True
            return False

        def _send(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "vllm", "max_model_len": 256}
