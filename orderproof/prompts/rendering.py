"""Rows that any tool wrote → the text that a job's model gets: chat messages through its template."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orderproof.prompts.prompt import Prompt, PromptError
from orderproof.prompts.row_reader import RowReader
from orderproof.prompts.tokenization import apply_template, load_tokenizer


class Rendering:
    """Loads the tokenizer at the first chat."""

    def __init__(self, folder: Path, arguments: Mapping[str, Any]) -> None:
        """`arguments`: a job's `chat_template_args`."""
        self._folder, self._arguments = folder, arguments

    def __call__(self, record: Mapping[str, Any]) -> str | None:
        """The text of a row of a prompt file, or of one with `messages`; None: no job accepts the row."""
        try:
            prompt = RowReader(Path("row")).read(0, record)
        except PromptError:
            return None
        return prompt.text if isinstance(prompt.text, str) else self._rendered(prompt)

    def _rendered(self, prompt: Prompt) -> str | None:
        try:
            return apply_template(self._tokenizer, prompt, self._arguments)
        except Exception:  # templates raise errors of their own, as does a missing one
            return None

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self._folder)
