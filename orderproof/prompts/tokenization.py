"""Prompts → token ids as the model gets them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orderproof.job.lfs import POINTER_REMEDY
from orderproof.job.model import ModelError, find_pointers
from orderproof.job.sampling import max_model_len
from orderproof.job.spec import Job, JobError
from orderproof.prompts import time_limit
from orderproof.prompts.file_kinds import row_word
from orderproof.prompts.prompt import Prompt, PromptError, shown
from orderproof.prompts.time_limit import TooLong, limited

BATCH_PROMPTS = 2048  # tokenized at once
LONG_CHARACTERS = 8  # per token of the model's length: a text that is longer is tokenized in part first
CLEARLY_TOO_LONG = 2  # model's lengths: with more tokens in a beginning, how its last word is cut does not matter


@dataclass(frozen=True, eq=False)
class TokenizedPrompts:
    """N prompts in the file's order, as the model gets them."""

    ids: list[str]
    lines: np.ndarray  # int64[N]
    labels: list[str | None]
    samplings: list[Mapping[str, Any] | None]
    references: list[str | None]
    rendered: list[str]  # chat messages through the model's template
    tokens: np.ndarray  # int32, all prompts end to end
    offsets: np.ndarray  # int64[N + 1]: prompt i is tokens[offsets[i]:offsets[i + 1]]
    adapters: Sequence[str | None] = ()  # name of each prompt's LoRA adapter; empty: no prompt has one
    rows_left_out: int = 0  # rows of the file that cannot be used, as far as they are tolerated
    notices: tuple[str, ...] = ()  # what should be known about rows of the file that are used

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def left_out_lines(self) -> tuple[str, ...]:
        """What a record says of rows that were left out; empty: none were."""
        rows = self.rows_left_out
        return (f"left out: {rows} rows that cannot be used: `orderproof validate` names them",) if rows else ()

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each prompt, int64[N]."""
        return np.diff(self.offsets)

    def token_ids(self, i: int) -> list[int]:
        """Tokens of prompt i in the file's order."""
        ids: list[int] = self.tokens[self.offsets[i] : self.offsets[i + 1]].tolist()
        return ids

    def texts(self, i: int) -> str:
        """Text of prompt i in the file's order, rendered."""
        return self.rendered[i]

    def lora(self, i: int) -> str | None:
        """Name of the adapter of prompt i in the file's order; None: the model itself."""
        return self.adapters[i] if self.adapters else None

    def take(self, rows: np.ndarray) -> TokenizedPrompts:
        """Some of the prompts, int64[n] of their places here, in the order given."""
        offsets = np.concatenate([np.zeros(1, np.int64), self.lengths[rows].cumsum()])
        places = np.repeat(self.offsets[rows] - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])
        chosen = rows.tolist()
        return TokenizedPrompts(
            ids=[self.ids[i] for i in chosen],
            lines=self.lines[rows],
            labels=[self.labels[i] for i in chosen],
            samplings=[self.samplings[i] for i in chosen],
            references=[self.references[i] for i in chosen],
            rendered=[self.rendered[i] for i in chosen],
            tokens=self.tokens[places],
            offsets=offsets,
            adapters=[self.lora(i) for i in chosen],
            rows_left_out=self.rows_left_out,
        )


class Tokenizer:
    """A job's tokenizer, loaded once: prompts → text and token ids as vLLM would make them.

    Plain text gets special tokens, chat templates contain their own. Only local files are read, and no code from the
    model's folder is run. Of a text that is much too long for the model, such as 50 MB in a line, only a beginning is
    rendered and tokenized that is too long as well: the rest would take minutes.

    Raises:
        PromptError: its folder does not exist.
    """

    def __init__(self, job: Job) -> None:
        if not job.tokenizer_path.is_dir():
            raise _unusable(job, "the folder of the model's tokenizer does not exist")
        self.job = job

    def load(self) -> None:
        """Load now instead of at the first use, which takes seconds. Raises PromptError if it is not usable."""
        self._tokenizer  # noqa: B018

    def __call__(self, prompts: Sequence[Prompt]) -> tuple[list[str], list[list[int]]]:
        """Rendered texts and token ids of some prompts.

        Raises:
            PromptError: the tokenizer is not usable, or its template refuses messages.
        """
        plain = [isinstance(prompt.text, str) for prompt in prompts]
        texts = [self._shortened(self.render(prompt)) for prompt in prompts]
        return texts, _encode(self._tokenizer, texts, plain)

    def each(self, prompts: Sequence[Prompt]) -> list[tuple[str, list[int]] | PromptError]:
        """Text and token ids of each prompt, or why it has none: one such prompt does not stop the others.

        Raises:
            PromptError: the tokenizer is not usable, or its template does not end.
        """
        try:
            return list(zip(*self(prompts), strict=True))
        except PromptError as error:
            if not error.is_of_one_row:
                raise
            if len(prompts) == 1:
                return [error]
        half = len(prompts) // 2
        return [*self.each(prompts[:half]), *self.each(prompts[half:])]

    def token_ids(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Token ids of each prompt; none where it cannot be rendered, which is reported when it is sent."""
        return [[] if isinstance(found, PromptError) else found[1] for found in self.each(prompts)]

    def text(self, prompt: Prompt) -> str:
        """The prompt's text; empty where it cannot be rendered, which is reported when it is sent."""
        try:
            return self.render(prompt)
        except PromptError as error:
            if not error.is_of_one_row:
                raise
            return ""

    def render(self, prompt: Prompt) -> str:
        """The prompt's text; chat messages through the model's template.

        Raises:
            PromptError: the template refuses them, or the row is no prompt.
        """
        if prompt.flaw is not None:
            raise PromptError(self.job.prompts_path, prompt.flaw, "Correct the row", row=prompt.line, id=prompt.id)
        return prompt.text if isinstance(prompt.text, str) else _render(self.job, self._tokenizer, prompt)

    def _shortened(self, text: str) -> str:
        """The text, or a beginning of it that is clearly too long for the model as well."""
        if self._limit is None:
            return text
        characters = LONG_CHARACTERS * self._limit
        while characters < len(text):
            (ids,) = _encode(self._tokenizer, [text[:characters]], [True])
            if len(ids) > CLEARLY_TOO_LONG * self._limit:
                return text[:characters]
            characters *= 2
        return text

    def begins_twice(self, ids: Sequence[int]) -> bool:
        """Whether a prompt begins with two of the tokens that the tokenizer puts at the beginning."""
        start = self._tokenizer.bos_token_id
        return start is not None and list(ids[:2]) == [start, start]

    @property
    def start_text(self) -> str:
        """The token at the beginning of a text, as text; empty: there is none."""
        return str(self._tokenizer.bos_token or "")

    @functools.cached_property
    def _limit(self) -> int | None:
        """Tokens of the longest sequence; None: not known."""
        try:
            return max_model_len(self.job)
        except (JobError, ModelError):
            return None

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return _load(self.job)


def tokenize(
    job: Job, prompts: Iterable[Prompt], on_flaw: Callable[[PromptError], None] | None = None
) -> TokenizedPrompts:
    """Render and tokenize prompts as vLLM would, all of them in memory: see `Tokenizer`.

    Args:
        on_flaw: gets why a prompt cannot be rendered, which is then left out; by default the first raises.

    Raises:
        PromptError: no usable tokenizer, or a template that does not end.
    """
    tokenizer = Tokenizer(job)
    kept: list[Prompt] = []
    rendered: list[str] = []
    pieces: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    twice: list[Prompt] = []
    remaining = iter(prompts)
    while batch := list(itertools.islice(remaining, BATCH_PROMPTS)):
        batch, texts, ids = _usable(tokenizer, batch, on_flaw)
        lengths.append(np.fromiter(map(len, ids), np.int64, len(ids)))
        pieces.append(np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(lengths[-1].sum())))
        rendered.extend(texts)
        kept.extend(batch)
        twice += [p for p, own in zip(batch, ids, strict=True) if tokenizer.begins_twice(own)]
    return TokenizedPrompts(
        ids=[p.id for p in kept],
        lines=np.fromiter((p.line for p in kept), np.int64, len(kept)),
        labels=[p.label for p in kept],
        samplings=[p.sampling for p in kept],
        references=[p.reference for p in kept],
        rendered=rendered,
        tokens=np.concatenate([np.empty(0, np.int32), *pieces]),
        offsets=np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum(),
        adapters=[p.lora for p in kept],
        notices=(_begin_twice(job, tokenizer, twice),) if twice else (),
    )


def _usable(
    tokenizer: Tokenizer, prompts: list[Prompt], on_flaw: Callable[[PromptError], None] | None
) -> tuple[list[Prompt], list[str], list[list[int]]]:
    """The prompts that can be rendered, their texts and their token ids."""
    if on_flaw is None:
        return (prompts, *tokenizer(prompts))
    kept, texts, token_ids = list[Prompt](), list[str](), list[list[int]]()
    for prompt, found in zip(prompts, tokenizer.each(prompts), strict=True):
        if isinstance(found, PromptError):
            on_flaw(found)
            continue
        kept.append(prompt)
        texts.append(found[0])
        token_ids.append(found[1])
    return kept, texts, token_ids


def _begin_twice(job: Job, tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> str:
    more = f" and {len(prompts) - 1:,} more" if prompts[1:] else ""
    return (
        f"{job.prompts_name}: the text begins with {tokenizer.start_text!r}, which the tokenizer adds as well, so the "
        f"model gets it twice ({row_word(job.prompts_path)} {prompts[0].line}{more})"
    )


def load_tokenizer(folder: Path) -> Any:
    """Load a tokenizer from local files, running no code of theirs. Raises whatever a broken file causes."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def apply_template(tokenizer: Any, prompt: Prompt, arguments: Mapping[str, Any]) -> str:
    """A prompt's chat messages as one text; its own arguments override `arguments`.

    Raises:
        TooLong: the template did not end.
        and whatever the template raises.
    """
    own = prompt.chat_template_args or {}
    options = {"add_generation_prompt": True, **arguments, **own, "tokenize": False}
    with limited():
        return str(tokenizer.apply_chat_template(list(prompt.text), **options))


def _load(job: Job) -> Any:
    try:
        tokenizer = load_tokenizer(job.tokenizer_path)
    except Exception as error:  # transformers raises whatever the broken file causes
        raise _unusable(job, f"holds no usable tokenizer: {' '.join(str(error).split())[:200]}") from None
    if len(tokenizer) <= len(tokenizer.added_tokens_decoder):  # missing files give some models an empty one
        raise _unusable(job, "holds no tokenizer with a vocabulary")
    return tokenizer


def _unusable(job: Job, problem: str) -> PromptError:
    folder = job.tokenizer_path
    if pointers := [path.name for path in find_pointers(folder)]:
        problem = f"has Git LFS pointers in the place of {', '.join(pointers[:3])}"
        return PromptError(folder, problem, POINTER_REMEDY, flaw="file")
    remedy = (
        f"Download the model with: hf download ORGANISATION/MODEL --local-dir {folder}; "
        f"or correct `model` (or `tokenizer`) of jobs.{job.name} in params.yaml"
    )
    return PromptError(folder, problem, remedy, flaw="file")


def _render(job: Job, tokenizer: Any, prompt: Prompt) -> str:
    fail = functools.partial(PromptError, job.prompts_path, row=prompt.line, id=prompt.id)
    if not tokenizer.chat_template:
        problem = f"`text` is chat messages, and the tokenizer in {job.tokenizer_path} has no chat template"
        raise fail(problem, f"Give plain text, or set `tokenizer` of jobs.{job.name} to a folder that has one")
    try:
        return apply_template(tokenizer, prompt, job.chat_template_args)
    except TooLong:
        problem = f"the model's chat template did not end within {time_limit.LIMIT_S:.0f} s"
        remedy = f"Correct its loops, or chat_template_args of jobs.{job.name}"
        raise fail(problem, remedy, flaw="file") from None
    except Exception as error:  # templates raise errors of their own
        problem = f"the model's chat template refuses the messages: {shown(str(error))}"
        raise fail(problem, f"Correct them, or chat_template_args of jobs.{job.name}") from None


def _encode(tokenizer: Any, texts: list[str], plain: list[bool]) -> list[list[int]]:
    """Token ids of each text; only plain ones get the tokenizer's special tokens."""
    encoded: list[list[int]] = [[]] * len(texts)
    for special in (True, False):
        rows = [i for i, is_plain in enumerate(plain) if is_plain == special]
        if rows:
            chosen = [texts[i] for i in rows]
            options = {"add_special_tokens": special, "return_attention_mask": False, "verbose": False}
            for i, ids in zip(rows, tokenizer(chosen, **options)["input_ids"], strict=True):
                encoded[i] = ids
    return encoded
