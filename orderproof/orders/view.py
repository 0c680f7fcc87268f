"""What an order may see of a job's prompts, whatever holds them.

In: tokenized prompts, or a plain list. Out: a `PromptView`. Knows nothing of files or engines.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.orders.order import OrderError
from orderproof.prompts.prompt import Prompt
from orderproof.prompts.source import PromptSource
from orderproof.prompts.tokenization import TokenizedPrompts, Tokenizer
from orderproof.signals.registry import Indices
from orderproof.signals.served_model import UNKNOWN_MODEL, ServedModel

TEXT_FIELDS = ("text", "prompt", "messages", "input")  # ours, completions, chat, embeddings

AnyPrompt = str | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Prompt
AnyPrompts = Sequence[AnyPrompt] | TokenizedPrompts


@dataclass(frozen=True, eq=False)
class PromptView:
    """N prompts in the file's order."""

    ids: Sequence[str]
    labels: Sequence[str | None]
    text: Callable[[int], str]  # of prompt i; called when needed, so that texts may stay on disk
    lines: Sequence[int] | NDArray[np.int64] | None = None  # in the file, from 1; None: no file
    token_counts: NDArray[np.int64] | None = None  # int64[N]; None: not tokenized
    source: str = "prompts"  # named in messages
    first: int = 0  # place of the first one, where this is a part
    token_ids: Callable[[Indices], Sequence[Sequence[int]]] | None = None  # of some prompts; None: not tokenized
    served: ServedModel = UNKNOWN_MODEL  # the model that will answer them
    own_samples: Callable[[Indices], Iterable[int | None]] | None = None  # `n` of their own sampling; None: of none

    def __len__(self) -> int:
        return len(self.ids)

    def texts(self) -> Iterator[str]:
        """All texts, one at a time."""
        return map(self.text, range(len(self)))

    def part(self, start: int, stop: int) -> PromptView:
        """Some neighbours, fewer where the prompts end; all of them: the view itself."""
        if not start and stop >= len(self):
            return self
        token_ids, samples = self.token_ids, self.own_samples
        return PromptView(
            ids=self.ids[start:stop],
            labels=self.labels[start:stop],
            text=lambda i: self.text(start + i),
            lines=None if self.lines is None else self.lines[start:stop],
            token_counts=None if self.token_counts is None else self.token_counts[start:stop],
            source=self.source,
            first=self.first + start,
            token_ids=None if token_ids is None else lambda places: token_ids([start + int(i) for i in places]),
            served=self.served,
            own_samples=None if samples is None else lambda places: samples([start + int(i) for i in places]),
        )

    def take(self, places: Sequence[int]) -> PromptView:
        """Some of the prompts, in the order given."""
        token_ids, samples = self.token_ids, self.own_samples
        return PromptView(
            ids=[self.ids[i] for i in places],
            labels=[self.labels[i] for i in places],
            text=lambda k: self.text(places[k]),
            lines=None if self.lines is None else [int(self.lines[i]) for i in places],
            token_counts=None if self.token_counts is None else self.token_counts[np.array(places, np.int64)],
            source=self.source,
            token_ids=None if token_ids is None else lambda chosen: token_ids([places[int(k)] for k in chosen]),
            served=self.served,
            own_samples=None if samples is None else lambda chosen: samples([places[int(k)] for k in chosen]),
        )

    def at_once(self) -> int | None:
        """How many of these prompts run beside each other, on average; None: the engine is not known."""
        if self.served.batch is None:
            return None
        samples = np.fromiter(self.samples(range(len(self))), np.int64)
        return max(1, round(self.served.batch / (samples.mean() if len(samples) else 1)))

    def samples(self, places: Indices) -> Iterator[int]:
        """How many are generated of each of these prompts."""
        own = itertools.repeat(None, len(places)) if self.own_samples is None else self.own_samples(places)
        return (n or self.served.samples for n in own)

    def lengths(self) -> tuple[NDArray[np.int64], str]:
        """int64[N] and its unit: tokens where they are counted, otherwise characters."""
        if self.token_counts is not None:
            return self.token_counts, "tokens"
        return np.fromiter(map(len, self.texts()), np.int64, len(self)), "characters"

    def where(self, i: int) -> str:
        """Prompt i in words, for a message."""
        if self.lines is None:
            return f"{self.source}[{self.first + i}] (id {self.ids[i]!r})"
        return on_line(self.source, int(self.lines[i]), self.ids[i])


def on_line(source: str, line: int, prompt_id: str) -> str:
    """A prompt of a file in words, for a message."""
    return f"{source}, line {line} (id {prompt_id!r})"


def view_of(prompts: PromptView | AnyPrompts, served: ServedModel = UNKNOWN_MODEL) -> PromptView:
    """See tokenized prompts, or a list of texts, chats, mappings or `Prompt`s; in a list the place serves for an id.

    Args:
        served: the model that will answer them, where a way to order needs it.
    """
    if isinstance(prompts, PromptView):
        return prompts
    if isinstance(prompts, TokenizedPrompts):
        return PromptView(
            prompts.ids,
            prompts.labels,
            prompts.texts,
            prompts.lines,
            prompts.lengths,
            token_ids=lambda places: [prompts.token_ids(int(i)) for i in places],
            served=served,
            own_samples=lambda places: [own_samples(prompts.samplings[int(i)]) for i in places],
        )
    return PromptView(
        ids=[str(_field(prompt, "id", i)) for i, prompt in enumerate(prompts)],
        labels=[None if (label := _field(prompt, "label", None)) is None else str(label) for prompt in prompts],
        text=lambda i: text_of(prompts[i], f"prompts[{i}]"),
        served=served,
        own_samples=lambda places: [own_samples(_sampling(prompts[int(i)])) for i in places],
    )


def view_of_source(
    source: PromptSource, tokenizer: Tokenizer, *, labels: bool, lengths: bool, served: ServedModel = UNKNOWN_MODEL
) -> PromptView:
    """See prompts that stay on disk. Labels and token counts are read only for a way to order that needs them."""
    return PromptView(
        ids=source.ids,
        labels=source.labels() if labels else [None] * len(source),
        text=lambda i: tokenizer.render(source.read([i])[0]),
        lines=source.lines,
        token_counts=source.token_counts(tokenizer) if lengths else None,
        source=str(source.path),
        token_ids=lambda places: tokenizer(source.read(places))[1],
        served=served,
        own_samples=lambda places: map(own_samples, source.samplings(places)),
    )


def _sampling(prompt: AnyPrompt) -> Any:
    """Its own, or the body of a batch request, which holds it among other things."""
    return _field(prompt, "body", None) or _field(prompt, "sampling", None)


def own_samples(sampling: Any) -> int | None:
    """`n` of a prompt's own sampling, or of a batch request's body; None: it does not say."""
    n = sampling.get("n") if isinstance(sampling, Mapping) else None
    return n if isinstance(n, int) and n > 0 else None


def text_of(prompt: Any, where: str) -> str:
    """The words of a prompt: plain text, the contents of chat messages, or those in the body of a batch API's request.

    Raises:
        OrderError: there are none; `where` is named.
    """
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Prompt):
        return text_of(prompt.text, where)
    if isinstance(prompt, Mapping):
        request = prompt["body"] if isinstance(prompt.get("body"), Mapping) else prompt
        for field in TEXT_FIELDS:
            if request.get(field) is not None:
                return text_of(request[field], where)
    if isinstance(prompt, Sequence) and prompt:
        return "\n".join(_words(message, where) for message in prompt)
    fields = ", ".join(TEXT_FIELDS)
    raise OrderError(f"{where}: no text in it. Give a string, chat messages, or one of the fields {fields}")


def _words(message: Any, where: str) -> str:
    """Of one chat message, or of one part of a message; images and the like have none."""
    if isinstance(message, str):
        return message
    if not isinstance(message, Mapping):
        raise OrderError(f"{where}: a chat message is not an object. {_CHAT}")
    content = message.get("content", message.get("text"))
    if content is None:  # of a call of a tool, of an image
        return ""
    if not isinstance(content, str | list | tuple):
        raise OrderError(f"{where}: the `content` of a chat message is neither text nor a list of parts. {_CHAT}")
    return content if isinstance(content, str) else "\n".join(_words(part, where) for part in content)


_CHAT = "Give messages of `role` and `content`, or a text; token ids are not read"


def _field(prompt: AnyPrompt, name: str, default: Any) -> Any:
    if isinstance(prompt, Mapping):
        return prompt.get(name, default)
    return getattr(prompt, name, default) if isinstance(prompt, Prompt) else default
