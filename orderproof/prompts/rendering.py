"""A row that any tool wrote → the text that a job's model meets: chat messages through the model's template.

In: the tokenizer's folder, the template's arguments, and rows as they were parsed. Out: texts, the same as
tokenization.py makes of a job's prompts. Knows nothing of how files are read, nor of orders or routes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orderproof.prompts.prompt import Prompt, PromptError
from orderproof.prompts.prompt_file import prompt_of_record
from orderproof.prompts.tokenization import apply_template, load_tokenizer


class Rendering:
    """Loads the tokenizer at the first chat."""

    def __init__(self, folder: Path, arguments: Mapping[str, Any]) -> None:
        """`arguments`: of the template, as a job's `chat_template_args`."""
        self._folder, self._arguments = folder, arguments

    def __call__(self, record: Mapping[str, Any]) -> str | None:
        """The text of a row of a job's forms, or with `messages` beside its id; None: no job takes it as it is."""
        chat = "messages" in record and "text" not in record
        try:
            prompt = prompt_of_record(Path("row"), 0, {**record, "text": record["messages"]} if chat else record)
        except PromptError:
            return None
        return prompt.text if isinstance(prompt.text, str) else self._rendered(prompt)

    def _rendered(self, prompt: Prompt) -> str | None:
        try:
            return apply_template(self._tokenizer, prompt, self._arguments)
        except Exception:  # templates raise errors of their own, also where there is none
            return None

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self._folder)
