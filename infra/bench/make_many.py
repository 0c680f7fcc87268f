"""A prompts file of any size: seeded, written line by line, so that a million prompts need no memory.

It writes JSON lines of `id`, `text` and `label` that depend only on the number of prompts and the seed. Each prompt
consists of pieces of one domain's sample prompts (infra/demo), 118 characters on average: about 60 tokens of the demo's
models.

    python infra/bench/make_many.py 1000000 -o /tmp/many.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orderproof.job.files import atomic_file

sys.path.insert(0, str(Path(__file__).parents[1] / "demo"))  # the makers are scripts, no package

import make_prompts

POOL_PROMPTS = 128  # of each domain, that pieces are cut from
MEAN_CHARACTERS, SPREAD = 118, 0.4  # of the lengths' logarithm: most prompts are between half and twice the mean
SHORTEST_CHARACTERS, LONGEST_CHARACTERS = 20, 1000


def make_many(number: int, seed: int) -> Iterator[dict[str, str]]:
    """The rows, one at a time, domains in random order."""
    labels = make_prompts.SAMPLES["six-domains"][0]
    pools = {
        label: [row["text"] for row in make_prompts.make_domain(make_prompts.read_domain(label), POOL_PROMPTS, seed)]
        for label in labels
    }
    rng = random.Random(f"{seed}/many")
    for i in range(number):
        label = labels[int(rng.random() * len(labels))]
        yield {"id": f"many-{i}", "text": _text(pools[label], rng), "label": label}


def _text(pool: Sequence[str], rng: random.Random) -> str:
    """Beginnings of a domain's prompts, up to a length that is drawn."""
    length = int(MEAN_CHARACTERS * rng.lognormvariate(-(SPREAD**2) / 2, SPREAD))
    length = min(max(length, SHORTEST_CHARACTERS), LONGEST_CHARACTERS)
    pieces: list[str] = []
    while length > 0:
        pieces.append(pool[int(rng.random() * len(pool))][:length])
        length -= len(pieces[-1]) + 1
    return " ".join(pieces)


def as_line(row: Mapping[str, str]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def main(arguments: Sequence[str] | None = None) -> None:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("number", type=int)
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("-o", "--output", type=Path, required=True)
    options = cli.parse_args(arguments)
    if options.number < 1:
        cli.error("number must be at least 1")
    with atomic_file(options.output) as sink:
        sink.writelines(map(as_line, make_many(options.number, options.seed)))
    print(f"wrote {options.number} prompts to {options.output}")


if __name__ == "__main__":
    main()
