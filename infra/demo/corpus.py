"""The training text of a demo model: reads prompt files, trains a tokenizer and yields endless batches."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orderproof.prompts.prompt import Prompt
from orderproof.prompts.prompt_file import read_prompts

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHAT_SHARE = 0.25  # of documents in chat format, so that the model learns both plain and chat prompts
SENTENCE_END = re.compile(r"[.?!؟。？！]")
MAX_LENGTH_TOKENS = 2048

Domains = Mapping[str, Sequence["Source"]]


@dataclass(frozen=True)
class Source:
    """The text of a prompt and, if the file has one, its reference answer."""

    text: str
    reference: str | None


def read_domains(paths: Sequence[Path]) -> Domains:
    """label → its prompts; prompts without a label form the domain "".

    Raises:
        orderproof.prompts.prompt_file.PromptError: a file or a row of it cannot be read.
    """
    domains: dict[str, list[Source]] = defaultdict(list)
    for path in paths:
        for prompt in read_prompts(path):
            domains[prompt.label or ""].append(Source(_plain(prompt), prompt.reference))
    return domains


def _plain(prompt: Prompt) -> str:
    if isinstance(prompt.text, str):
        return prompt.text
    return "\n".join(message["content"] for message in prompt.text)


def train_tokenizer(domains: Domains, vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most `vocabulary` tokens: it can encode any text, and adds no special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((source.text for sources in domains.values() for source in sources), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        model_max_length=MAX_LENGTH_TOKENS,
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
    )


def batches(
    domains: Domains, tokenizer: PreTrainedTokenizerFast, shape: tuple[int, int], seed: int
) -> Iterator[torch.Tensor]:
    """Yield int64[sequences, tokens] without end. Each sequence is of one domain; domains are equally frequent."""
    import torch

    rng = random.Random(seed)
    documents = {label: _documents(sources, rng) for label, sources in sorted(domains.items())}
    turn: list[str] = []
    while True:
        rows = []
        for _ in range(shape[0]):
            turn = turn or rng.sample(list(documents), len(documents))
            rows.append(_sequence(documents[turn.pop()], tokenizer, shape[1]))
        yield torch.tensor(rows)


def _sequence(documents: Iterator[str], tokenizer: PreTrainedTokenizerFast, length: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < length:
        ids += tokenizer.encode(next(documents))
    return ids[:length]


def _documents(sources: Sequence[Source], rng: random.Random) -> Iterator[str]:
    """Yield prompt and answer without end, shuffled again each round.

    The answer of a prompt without a reference is another prompt, so that the model continues in the same domain. Its
    full stops are removed: otherwise the end of a prompt, where an answer begins, looks like the end of an answer.
    """
    while True:
        turn = rng.sample(sources, len(sources))
        for source, neighbour in zip(turn, turn[1:] + turn[:1], strict=True):
            answer = SENTENCE_END.sub("", neighbour.text) if source.reference is None else source.reference
            yield _chat(source.text, answer) if rng.random() < CHAT_SHARE else f"{source.text}\n{answer}{END_OF_TEXT}"


def _chat(prompt: str, answer: str) -> str:
    turns: Iterable[tuple[str, str]] = (("user", prompt), ("assistant", answer))
    return "".join(f"{TURN_START}{role}\n{text}{TURN_END}\n" for role, text in turns)
