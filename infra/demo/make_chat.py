"""Make the harder mix: JSON lines of `id`, `text` and `label` (the topic), one language, topics that overlap.

The file is in random order; its bytes depend only on the number and the seed. The words are in chat.yaml. Most prompts
are one or two sentences. One in four contains pasted notes, one in three a second topic, and the task (explain, plan,
write, …) is independent of the topic, so no two groups are far apart.

    python infra/demo/make_chat.py 768 --seed 0 -o data/chat/prompts.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from orderproof.job.files import write_atomically

WORDS = Path(__file__).with_name("chat.yaml")
SECOND_TOPIC, PASTED, OPENED, CLOSED = 0.33, 0.25, 0.25, 0.5  # shares of the prompts
MOST_NOTES = 4
NUMBER = re.compile(r"\{n:(\d+)-(\d+)\}")
TRIES = 100  # per prompt, before the words count as used up


class ChatError(ValueError):
    """The requested mix cannot be made."""


def make_chat(number: int, seed: int) -> Iterator[dict[str, str]]:
    """Yield the rows; no two have the same text."""
    words = YAML(typ="safe").load(WORDS.read_text("utf-8"))
    rng = random.Random(f"{seed}/chat")
    topics, texts = sorted(words["topics"]), set()
    for i in range(number):
        for _ in range(TRIES):
            topic = rng.choice(topics)
            text = _prompt(topic, words, rng)
            if text not in texts:
                break
        else:
            raise ChatError(f"the words of {WORDS.name} give {i} different prompts, not {number}")
        texts.add(text)
        yield {"id": f"chat-{i:04d}", "text": text, "label": topic}


def _prompt(topic: str, words: Mapping[str, Any], rng: random.Random) -> str:
    """A request about something of the topic, and the text that people write around it."""
    own, ask = words["topics"][topic], rng.choice(sorted(words["asks"]))
    things = rng.sample(own["things"], 2)
    parts = [rng.choice(words["asks"][ask]).replace("{thing}", things[0]).replace("{thing#2}", things[1])]
    if rng.random() < SECOND_TOPIC:
        other = words["topics"][rng.choice([name for name in sorted(words["topics"]) if name != topic])]
        parts.append(rng.choice(words["bridges"]).replace("{other}", rng.choice(other["things"])))
    if rng.random() < PASTED:
        parts += rng.sample(own["notes"], rng.randint(1, MOST_NOTES))
    if rng.random() < OPENED:
        parts.insert(0, rng.choice(words["openings"]))
    if rng.random() < CLOSED:
        parts.append(NUMBER.sub(lambda m: str(rng.randint(int(m[1]), int(m[2]))), rng.choice(words["closings"])))
    return " ".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("number", type=int)
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("-o", "--output", type=Path, required=True)
    options = cli.parse_args(arguments)
    if options.number < 1:
        cli.error("number must be at least 1")
    try:
        rows = [json.dumps(row, ensure_ascii=False) + "\n" for row in make_chat(options.number, options.seed)]
    except ChatError as error:
        raise SystemExit(f"make_chat: {error}") from None
    write_atomically(options.output, "".join(rows))
    print(f"wrote {options.number} prompts to {options.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
