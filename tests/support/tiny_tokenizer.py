"""A real byte-level tokenizer in a model's folder, made in a moment: one token per byte and a mark at the beginning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orderproof.job.spec import EngineSpec, Job

MODEL_TOKENS = 64  # the model's length
START = "<s>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{{ mood or '' }}{% endif %}"
)


def save_model(folder: Path, chat_template: str | None = None, *, spaces: bool = True) -> None:
    """Write config.json and the tokenizer's files; without `spaces` a text loses them before it is tokenized."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({START: 0, **{byte: i for i, byte in enumerate(alphabet, 1)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if not spaces:
        tokenizer.normalizer = normalizers.Replace(" ", "")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{START} $A", special_tokens=[(START, 0)])
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=START)
    saved.chat_template = chat_template
    saved.save_pretrained(folder)
    config = {"model_type": "qwen3_moe", "max_position_embeddings": MODEL_TOKENS}
    (folder / "config.json").write_text(json.dumps(config))


def save_byte_tokenizer(folder: Path) -> None:
    """Write the files of a tokenizer whose token ids are the text's bytes; a chat is its messages, end to end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's alphabet: these stand for themselves
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable} | {chr(256 + k): byte for k, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def job_of(prompts: Path, model: Path, **changes: Any) -> Job:
    """A job on that model, with relative paths from the prompts' folder."""
    engine = changes.pop("engine", EngineSpec(args={"max_num_seqs": 4}))
    return Job(name="tried", root=prompts.parent, prompts=prompts.name, model=str(model), engine=engine, **changes)
