"""Rows of OpenAI's batch format, and a job that takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orderproof.job.spec import EngineSpec
from orderproof.prompts.openai_body import CHAT
from orderproof.prompts.prompt import Prompt
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.request_defaults import RequestDefaults
from tests.support.tiny_tokenizer import job_of

CHATS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def request(id: str = "a", url: str = CHAT, beside: Any = None, **body: Any) -> dict[str, Any]:
    """A row; `beside`: further fields of the row, `body`: keys of its body."""
    words = {"messages": CHATS} if url == CHAT else {"prompt": "once"}
    return {"custom_id": id, "method": "POST", "url": url, "body": {**words, **body}, **(beside or {})}


def write_rows(folder: Path, *rows: Any) -> Path:
    """Write a batch file into a folder."""
    path = folder / "batch.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def request_defaults(folder: Path, generation_config: Any = None, args: Any = None, **changes: Any) -> RequestDefaults:
    """Of a job whose model lies in the folder and is served as `main` and `other`, with an adapter `tone`."""
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    engine = EngineSpec(
        args={"max_num_seqs": 4, "served_model_name": ["main", "other"], "enable_lora": True, **(args or {})},
        lora_modules={"tone": "adapters/tone"},
    )
    return RequestDefaults(job_of(folder / "batch.jsonl", folder, engine=engine, **changes))


def read_rows(folder: Path, *rows: Any, defaults: RequestDefaults | None = None) -> list[Prompt]:
    """The prompts of a batch file with these rows."""
    return list(read_prompts(write_rows(folder, *rows), defaults=defaults or request_defaults(folder)))
