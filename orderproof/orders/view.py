"""What a way to order may read of prompts, in the same form for a list, tokenized prompts and prompts on disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.orders.prompt_text import text_of
from orderproof.prompts.prompt import Prompt
from orderproof.prompts.source import PromptSource
from orderproof.prompts.tokenization import TokenizedPrompts, Tokenizer
from orderproof.signals.registry import Indices
from orderproof.signals.served_model import UNKNOWN_MODEL, ServedModel

AnyPrompt = str | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Prompt
AnyPrompts = Sequence[AnyPrompt] | TokenizedPrompts


@dataclass(frozen=True, eq=False)
class PromptView:
    """N prompts in the file's order."""

    ids: Sequence[str]
    labels: Sequence[str | None]
    text: Callable[[int], str]  # of prompt i; called only when needed, so that texts may stay on disk
    lines: Sequence[int] | NDArray[np.int64] | None = None  # in the file, from 1; None: not from a file
    token_counts: NDArray[np.int64] | None = None  # int64[N]; None: not tokenized
    source: str = "prompts"  # the name in messages
    first: int = 0  # index of the first prompt, if this is a part of a list
    token_ids: Callable[[Indices], Sequence[Sequence[int]]] | None = None  # of some prompts; None: not tokenized
    served: ServedModel = UNKNOWN_MODEL  # the model that will answer them
    own_samples: Callable[[Indices], Iterable[int | None]] | None = None  # `n` in their own sampling; None: all None

    def __len__(self) -> int:
        return len(self.ids)

    def texts(self) -> Iterator[str]:
        """All texts, one at a time."""
        return map(self.text, range(len(self)))

    def part(self, start: int, stop: int) -> PromptView:
        """Prompts start … stop − 1, or fewer at the end of the prompts."""
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
            token_ids=None if token_ids is None else lambda indices: token_ids([start + int(i) for i in indices]),
            served=self.served,
            own_samples=None if samples is None else lambda indices: samples([start + int(i) for i in indices]),
        )

    def take(self, indices: Sequence[int]) -> PromptView:
        """Some of the prompts, in the order given."""
        token_ids, samples = self.token_ids, self.own_samples
        return PromptView(
            ids=[self.ids[i] for i in indices],
            labels=[self.labels[i] for i in indices],
            text=lambda k: self.text(indices[k]),
            lines=None if self.lines is None else [int(self.lines[i]) for i in indices],
            token_counts=None if self.token_counts is None else self.token_counts[np.array(indices, np.int64)],
            source=self.source,
            token_ids=None if token_ids is None else lambda some: token_ids([indices[int(k)] for k in some]),
            served=self.served,
            own_samples=None if samples is None else lambda some: samples([indices[int(k)] for k in some]),
        )

    def at_once(self) -> int | None:
        """How many of these prompts run at once, on average; None: the engine is not known."""
        if self.served.batch is None:
            return None
        samples = np.fromiter(self.samples(range(len(self))), np.int64)
        return max(1, round(self.served.batch / (samples.mean() if len(samples) else 1)))

    def samples(self, indices: Indices) -> Iterator[int]:
        """How many samples are generated for each of these prompts."""
        own = itertools.repeat(None, len(indices)) if self.own_samples is None else self.own_samples(indices)
        return (n or self.served.samples for n in own)

    def lengths(self) -> tuple[NDArray[np.int64], str]:
        """int64[N] and their unit: tokens if they are counted, otherwise characters."""
        if self.token_counts is not None:
            return self.token_counts, "tokens"
        return np.fromiter(map(len, self.texts()), np.int64, len(self)), "characters"

    def where(self, i: int) -> str:
        """Name prompt i in a message."""
        if self.lines is None:
            return f"{self.source}[{self.first + i}] (id {self.ids[i]!r})"
        return on_line(self.source, int(self.lines[i]), self.ids[i])


def on_line(source: str, line: int, prompt_id: str) -> str:
    """Name a prompt of a file in a message."""
    return f"{source}, line {line} (id {prompt_id!r})"


def view_of(prompts: PromptView | AnyPrompts, served: ServedModel = UNKNOWN_MODEL) -> PromptView:
    """View tokenized prompts, or a list of texts, chats, mappings or `Prompt`s; without an `id` the index is the id.

    Args:
        served: the model that will answer them, if the way to order needs it.
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
            token_ids=lambda indices: [prompts.token_ids(int(i)) for i in indices],
            served=served,
            own_samples=lambda indices: [own_samples(prompts.samplings[int(i)]) for i in indices],
        )
    return PromptView(
        ids=[str(_field(prompt, "id", i)) for i, prompt in enumerate(prompts)],
        labels=[None if (label := _field(prompt, "label", None)) is None else str(label) for prompt in prompts],
        text=lambda i: text_of(prompts[i], f"prompts[{i}]"),
        served=served,
        own_samples=lambda indices: [own_samples(_sampling(prompts[int(i)])) for i in indices],
    )


def view_of_source(
    source: PromptSource, tokenizer: Tokenizer, *, labels: bool, lengths: bool, served: ServedModel = UNKNOWN_MODEL
) -> PromptView:
    """View prompts that stay on disk; labels and token counts are read only if asked for."""
    return PromptView(
        ids=source.ids,
        labels=source.labels() if labels else [None] * len(source),
        text=lambda i: tokenizer.text(source.read([i])[0]),
        lines=source.lines,
        token_counts=source.token_counts(tokenizer) if lengths else None,
        source=str(source.path),
        token_ids=lambda indices: tokenizer.token_ids(source.read(indices)),
        served=served,
        own_samples=lambda indices: map(own_samples, source.samplings(indices)),
    )


def _sampling(prompt: AnyPrompt) -> Any:
    """A prompt's own sampling; of a batch API's request its body, which holds the same keys."""
    return _field(prompt, "body", None) or _field(prompt, "sampling", None)


def own_samples(sampling: Any) -> int | None:
    """`n` in a prompt's own sampling or in a batch request's body; None if it is not there."""
    n = sampling.get("n") if isinstance(sampling, Mapping) else None
    return n if isinstance(n, int) and n > 0 else None


def _field(prompt: AnyPrompt, name: str, default: Any) -> Any:
    if isinstance(prompt, Mapping):
        return prompt.get(name, default)
    return getattr(prompt, name, default) if isinstance(prompt, Prompt) else default
