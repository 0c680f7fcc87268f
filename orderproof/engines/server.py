"""A vLLM server that somebody else runs, through OpenAI's protocol: `vllm serve`, anywhere.

Prompts are sent as token ids to `/v1/completions`, with vLLM's sampling parameters by their own names, so that an
answer is what the engine of a child process would generate with the server's settings. Requests begin in the order
given, with as many in flight as `engine.concurrency`. The `openai` client tries again, with growing pauses, what was
answered with 408, 409, 429 or 5xx, timed out or was cut off.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import httpx
import numpy as np

from orderproof.engines.protocol import (
    Completion,
    EngineError,
    EngineInfo,
    Failure,
    Output,
    PassStats,
    Request,
    Sampling,
    Steps,
)
from orderproof.job.redaction import hide_user_info
from orderproof.job.spec import EngineSpec

if TYPE_CHECKING:
    import openai

CONNECT_S, METRICS_S = 10.0, 5.0
NO_KEY = "none"  # the client wants one; a server without `--api-key` ignores it
# What vLLM's server takes from the model's generation_config.json where a request says nothing, with the values that
# SamplingParams has without that file.
NEUTRAL: Mapping[str, Any] = {
    "max_tokens": 16,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
}
RENAMED = {"extra_args": "vllm_xargs"}
# Members of SamplingParams that a completion request of vLLM's server has by the same name.
TAKEN = frozenset({
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p",
    "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "include_stop_str_in_output", "structured_outputs", "logit_bias",
    "allowed_token_ids", "bad_words", "thinking_token_budget", "repetition_detection",
})  # fmt: skip
COUNTERS = ("vllm:num_preemptions", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits")
CACHE_INFO = "vllm:cache_config_info"


class ServerEngine:
    """The `engine.server` of a job. Entering its context asks the server what it is; nothing is started."""

    def __init__(self, spec: EngineSpec, *, meanwhile: Callable[[], None] | None = None) -> None:
        """`meanwhile`: called once before the server is asked; what it raises ends the engine at once."""
        assert spec.server is not None
        self.spec, self.url, self.meanwhile = spec, spec.server.rstrip("/"), meanwhile
        self._name = hide_user_info(self.url)
        self._info: EngineInfo | None = None
        self._client: openai.OpenAI | None = None
        self._model = spec.model

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineError("the server was not asked what it is")
        return self._info

    def __enter__(self) -> Self:
        if self.meanwhile:
            self.meanwhile()
        started_s = time.monotonic()
        try:
            self._client = self._connect()
            served = self._served_model()
            self._model = str(served["id"])
            cache = next((labels for name, labels, _ in self._metrics() if name == CACHE_INFO), {})
            self._info = EngineInfo(
                load_s=time.monotonic() - started_s,
                versions={"vllm": self._version()},
                machine={"device_type": "server", "device": self._name},
                settings={
                    "mode": "server",
                    "model": self._model,
                    "max_model_len": served.get("max_model_len"),
                    "max_num_seqs": self.spec.max_num_seqs,
                    # Where it is not known, prefixes may be shared, so arms are kept apart.
                    "prefix_caching": cache.get("enable_prefix_caching", "True") == "True",
                },
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._client:
            self._client.close()

    def probe(self, mib: int) -> float:
        """0: the memory of a server's machine cannot be measured from here."""
        return 0.0

    def run(
        self,
        requests: Iterable[Request],
        sampling: Sampling,
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None = None,
    ) -> PassStats:
        """See `Engine.run`. A server tells of no single steps, so `watch` is never called."""
        before, begun_s = self._counters(), time.monotonic()
        for answer in _Pass(self, iter(requests), sampling, begun_s).answers():
            sink(answer)
        wall_s, after = time.monotonic() - begun_s, self._counters()
        preempted, queries, hits = (int(after.get(name, 0) - before.get(name, 0)) for name in COUNTERS)
        return PassStats(
            wall_s=wall_s,
            step_ms=np.empty(0, np.float32),
            running=np.empty(0, np.int32),
            waiting=np.empty(0, np.int32),
            preempted=preempted,
            prefix_queries=queries,
            prefix_hits=hits,
        )

    def complete(self, request: Request, sampling: Sampling, begun_s: float) -> Output | Failure:
        """Send one request, several times if need be.

        Raises:
            openai.OpenAIError: it was refused, or failed as often as it may be sent.
            EngineError: the server is no vLLM.
        """
        assert self._client is not None
        params, unknown = _body({**NEUTRAL, **sampling, **(request.sampling or {})})
        if unknown:
            return Failure(request.number, f"a server does not take sampling.{', sampling.'.join(sorted(unknown))}")
        if request.cache_salt:
            params["cache_salt"] = request.cache_salt
        sent_s = time.monotonic()
        response = self._client.completions.create(
            model=self._model or "",
            prompt=list(request.token_ids),
            extra_body={**params, "return_token_ids": True},
        )
        completions = tuple(map(self._completion, sorted(response.choices, key=lambda choice: choice.index)))
        details = response.usage.prompt_tokens_details if response.usage else None
        cached = (details.cached_tokens if details else None) or 0
        return Output(request.number, completions, cached, sent_s, time.monotonic() - begun_s)

    def answers_anything(self, request: Request) -> bool:
        """Whether the server gives one token for the beginning of a request that it failed: then it is the request."""
        import openai

        assert self._client is not None
        try:
            self._client.completions.create(model=self._model or "", prompt=list(request.token_ids[:1]), max_tokens=1)
        except (openai.OpenAIError, ValueError):
            return False
        return True

    def explain(self, error: Exception) -> str:
        """An error of the client without what it knows of the key and of users."""
        words = " ".join(str(getattr(error, "message", "") or error or type(error).__name__).split())
        cause = f" ({error.__cause__})" if error.__cause__ and str(error.__cause__) else ""
        return hide_user_info(f"{words}{cause}")

    def failed(self, error: Exception) -> EngineError:
        """The server as a whole does not do its work."""
        return EngineError(
            f"the server {self._name} failed: {self.explain(error)}. What was answered is kept: see to the server, "
            "and run the same command again"
        )

    def _connect(self) -> openai.OpenAI:
        import openai

        key = NO_KEY
        if name := self.spec.api_key_env:
            key = os.environ.get(name, "")
            if not key:
                raise EngineError(f"engine.api_key_env names {name}, which is not set: export {name}=…")
        timeout = openai.Timeout(self.spec.request_timeout_s, connect=CONNECT_S)
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=self.spec.request_retries, timeout=timeout)

    def _served_model(self) -> dict[str, Any]:
        """What the server says of the job's model."""
        import openai

        assert self._client is not None
        try:
            models = [model.model_dump() for model in self._client.models.list()]
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            remedy = "name the environment variable that holds its key in engine.api_key_env"
            raise EngineError(f"the server {self._name} refuses the key ({self.explain(error)}): {remedy}") from None
        except openai.OpenAIError as error:
            raise EngineError(
                f"{self._name} does not answer as a server of OpenAI's protocol ({self.explain(error)}): start it "
                "(`vllm serve …`), or correct engine.server, which ends in /v1"
            ) from None
        names = [str(model["id"]) for model in models]
        found = [model for model in models if model["id"] == (self.spec.model or names[0])]
        if not found:
            raise EngineError(
                f"the server {self._name} has no model {self.spec.model!r}: set engine.model to one of "
                f"{', '.join(names)}"
            )
        return found[0]

    def _completion(self, choice: Any) -> Completion:
        token_ids = getattr(choice, "token_ids", None)
        if token_ids is None:
            raise EngineError(
                f"the server {self._name} returns no token ids: it is no vLLM, or one older than 0.11, and outputs "
                "could not be compared"
            )
        return Completion(
            token_ids=token_ids,
            text=choice.text,
            finish_reason=choice.finish_reason or "",
            stop_reason=getattr(choice, "stop_reason", None),
        )

    def _version(self) -> str:
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
            return str(self._get("/version").json()["version"])
        return "unknown"

    def _counters(self) -> dict[str, float]:
        totals: dict[str, float] = {}
        for name, _, value in self._metrics():
            totals[name] = totals.get(name, 0) + value  # of all engines behind the server
        return totals

    def _metrics(self) -> list[tuple[str, Mapping[str, str], float]]:
        """Name, labels and value of what vLLM reports in Prometheus's format; nothing where that is out of reach."""
        from prometheus_client.parser import text_string_to_metric_families

        with contextlib.suppress(httpx.HTTPError, ValueError):
            families = text_string_to_metric_families(self._get("/metrics").text)
            wanted = (family for family in families if family.name in (*COUNTERS, CACHE_INFO))
            return [(f.name, s.labels, s.value) for f in wanted for s in f.samples if not s.name.endswith("_created")]
        return []

    def _get(self, path: str) -> httpx.Response:
        """From beside the protocol's own path."""
        parts = urlsplit(self.url)
        base = parts._replace(path=parts.path.removesuffix("/v1")).geturl()
        headers = {"Authorization": f"Bearer {self._client.api_key}"} if self._client else {}
        return httpx.get(base + path, timeout=METRICS_S, headers=headers).raise_for_status()


class _Pass:
    """The requests of one run, each with a thread while it is in flight."""

    def __init__(self, engine: ServerEngine, requests: Iterator[Request], sampling: Sampling, begun_s: float) -> None:
        self._engine, self._requests, self._sampling, self._begun_s = engine, requests, sampling, begun_s
        self._next = threading.Lock()  # requests begin in their order
        self._done: queue.SimpleQueue[Output | Failure | BaseException | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._fault: BaseException | None = None  # of the requests

    def answers(self) -> Iterator[Output | Failure]:
        """Each answer when it is there. Raises what `requests` raises, after the answers to those before it."""
        senders = self._engine.spec.max_num_seqs
        for _ in range(senders):
            threading.Thread(target=self._send, daemon=True).start()
        try:
            while senders:
                done = self._done.get()
                if done is None:
                    senders -= 1
                elif isinstance(done, BaseException):
                    raise done
                else:
                    yield done
        finally:
            self._stopped.set()
        if self._fault:
            raise self._fault

    def _send(self) -> None:
        """Send one request after the other until there are none."""
        try:
            while request := self._take():
                self._done.put(self._answer(request))
        except BaseException as error:  # answers() raises it in the caller's thread
            self._done.put(error)
        finally:
            self._done.put(None)

    def _take(self) -> Request | None:
        """The next request; None: there are no more, or nobody waits for the answers any longer."""
        with self._next:
            if self._stopped.is_set() or self._fault:
                return None
            try:
                return next(self._requests, None)
            except BaseException as fault:
                self._fault = fault
                return None

    def _answer(self, request: Request) -> Output | Failure | EngineError:
        """The answer to a request; an EngineError where the server does not do its work for others either."""
        import openai

        engine = self._engine
        try:
            return engine.complete(request, self._sampling, self._begun_s)
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
            return engine.failed(error)
        except (openai.RateLimitError, openai.InternalServerError, openai.APIConnectionError, ValueError) as error:
            # ValueError: an answer that is no JSON
            if not engine.answers_anything(request):
                return engine.failed(error)
            tries = engine.spec.request_retries + 1
            return Failure(request.number, f"the server failed it {tries} times: {engine.explain(error)}")
        except openai.OpenAIError as error:
            return Failure(request.number, engine.explain(error))


def _body(sampling: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """A request's parameters, and the names that a server has none for."""
    given = {RENAMED.get(name, name): value for name, value in sampling.items()}
    unknown = {name for name in sampling if name not in TAKEN and name not in RENAMED and sampling[name] is not None}
    return given, unknown
