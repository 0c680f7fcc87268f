"""Make the sample prompt files: JSON lines of `id`, `text`, `label` and, if there is an answer, `reference`.

The file is in shuffled order; its bytes depend only on the seed and the release of Faker, not on locale or hash seed.
Each domain is a file in domains/: prompt templates, and the phrases for their slots. `{slot}` is filled with a phrase
of that name, or else by the Faker provider of that name; `{slot#2}` gets another phrase than `{slot}`; `{n:3-9}` is a
number, stored as `n`. No two prompts of a file are similar: see `likeness`.
"""

from __future__ import annotations

import argparse
import ast
import json
import operator
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faker import Faker
from ruamel.yaml import YAML

from orderproof.job.files import write_atomically

DOMAINS = Path(__file__).parent / "domains"
SAMPLES: dict[str, tuple[tuple[str, ...], int]] = {  # domains, and prompts per domain
    "six-domains": (("code", "math", "creative", "french", "arabic", "chinese"), 128),
    "one-domain": (("creative",), 768),
}
SHORTEST_CHARACTERS, LONGEST_CHARACTERS = 40, 240  # a domain with a denser script sets its own `shortest`
MOST_ALIKE = 0.45  # likeness at which two prompts count as duplicates
TRIES = 20  # per template, before the next template
ROUNDS = 100  # of all templates, before the domain counts as used up
SLOT = re.compile(r"\{([a-z_]+)(?:#(\d))?(?::(\d+)-(\d+))?\}")
OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
EXAMPLE = "example: python infra/demo/make_prompts.py six-domains --seed 0 -o data/six-domains/prompts.jsonl"


class PromptsError(ValueError):
    """The requested sample cannot be made."""


@dataclass(frozen=True)
class Template:
    """A prompt with slots, numbers that are drawn or computed from others, and the formula of its answer."""

    text: str
    draw: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    answer: str | None = None


@dataclass(frozen=True)
class Domain:
    """The templates of one label and the phrases for their slots."""

    label: str
    templates: tuple[Template, ...]
    slots: Mapping[str, Sequence[str]]
    locale: str | None  # of Faker
    shortest: int  # characters


def read_domain(label: str) -> Domain:
    """Read domains/<label>.yaml."""
    content = YAML(typ="safe").load((DOMAINS / f"{label}.yaml").read_text(encoding="utf-8"))
    templates = tuple(Template(text=t) if isinstance(t, str) else Template(**t) for t in content["prompts"])
    shortest = content.get("shortest", SHORTEST_CHARACTERS)
    return Domain(label, templates, content.get("slots", {}), content.get("faker"), shortest)


def compute(expression: str, numbers: Mapping[str, int]) -> int:
    """The value of whole-number arithmetic such as `a * (b - 2)`."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](value(left), value(right))
            case ast.Name(id=name):
                return numbers[name]
            case ast.Constant(value=int(number)):
                return number
        raise PromptsError(f"`{expression}` is not whole-number arithmetic")

    return value(ast.parse(expression, mode="eval").body)


def fill(template: Template, domain: Domain, rng: random.Random, fake: Faker) -> tuple[str, str | None]:
    """Fill a template: its text and, if it has one, its answer."""
    numbers = {name: rng.randint(*map(int, limits.split("-"))) for name, limits in template.draw.items()}
    numbers |= {m[1]: rng.randint(int(m[3]), int(m[4])) for m in SLOT.finditer(template.text) if m[3]}
    for name, expression in template.given.items():
        numbers[name] = compute(expression, numbers)
    phrases: dict[tuple[str, str | None], str] = {}

    def filling(match: re.Match[str]) -> str:
        name, again = match[1], match[2]
        if name in numbers:
            return str(numbers[name])
        if (name, again) not in phrases:
            taken = {phrase for (other, _), phrase in phrases.items() if other == name}
            phrases[name, again] = _pick(name, taken, domain, rng, fake)
        return phrases[name, again]

    text = SLOT.sub(filling, template.text)
    return text, None if template.answer is None else str(compute(template.answer, numbers))


def _pick(slot: str, taken: set[str], domain: Domain, rng: random.Random, fake: Faker) -> str:
    while True:
        phrase = rng.choice(domain.slots[slot]) if slot in domain.slots else str(fake.format(slot))
        if phrase not in taken:
            return phrase


def shingles(text: str) -> frozenset[str]:
    """The character trigrams of a text, in any script."""
    folded = " ".join(text.casefold().split())
    return frozenset(folded[i : i + 3] for i in range(len(folded) - 2))


def likeness(first: frozenset[str], second: frozenset[str]) -> float:
    """Jaccard similarity of two sets of shingles, 0 to 1."""
    return len(first & second) / len(first | second)


def make_domain(domain: Domain, count: int, seed: int) -> list[dict[str, str]]:
    """`count` rows of one domain, all templates equally often, no two similar."""
    rng = random.Random(f"{seed}/{domain.label}/{count}")
    fake = Faker(domain.locale)
    fake.seed_instance(rng.getrandbits(64))
    rows: list[dict[str, str]] = []
    taken: list[frozenset[str]] = []
    for template in _turns(domain, rng):
        for _ in range(TRIES):
            text, answer = fill(template, domain, rng, fake)
            trigrams = shingles(text)
            fits = domain.shortest <= len(text) <= LONGEST_CHARACTERS
            if fits and all(likeness(trigrams, other) < MOST_ALIKE for other in taken):
                break
        else:
            continue
        taken.append(trigrams)
        row = {"id": f"{domain.label}-{len(rows):03d}", "text": text, "label": domain.label}
        rows.append(row if answer is None else row | {"reference": answer})
        if len(rows) == count:
            return rows
    raise PromptsError(f"the templates of `{domain.label}` give {len(rows)} prompts that differ enough, not {count}")


def _turns(domain: Domain, rng: random.Random) -> Iterator[Template]:
    """Yield every template in turn, shuffled again each round."""
    for _ in range(ROUNDS):
        yield from rng.sample(domain.templates, len(domain.templates))


def make_sample(name: str, seed: int, per_label: int | None = None) -> list[dict[str, str]]:
    """The rows of a sample in its shuffled order."""
    labels, count = SAMPLES[name]
    rows = [row for label in labels for row in make_domain(read_domain(label), per_label or count, seed)]
    random.Random(f"{seed}/order").shuffle(rows)
    return rows


def as_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    cli = argparse.ArgumentParser(description="Make a sample prompt file.", epilog=EXAMPLE)
    cli.add_argument("sample", choices=SAMPLES)
    cli.add_argument("--seed", type=int, default=0, help="default: 0")
    cli.add_argument("--per-label", type=int, help="prompts of each label, instead of the sample's own number")
    cli.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
    options = cli.parse_args(arguments)
    if options.per_label is not None and options.per_label < 1:
        cli.error("--per-label must be at least 1")
    try:
        rows = make_sample(options.sample, options.seed, options.per_label)
        write_atomically(options.output, as_lines(rows))
    except (PromptsError, OSError) as error:
        print(f"make_prompts: {error}", file=sys.stderr)
        return 1
    print(f"wrote {len(rows)} prompts to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
