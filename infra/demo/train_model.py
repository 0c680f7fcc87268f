"""Train a small real language model from scratch, so that the demo needs no download.

In: prompt files (JSON lines or Parquet). Out: a folder that vLLM and transformers load like any other checkpoint: a
Qwen3 mixture-of-experts model, or with --dense a plain Qwen3, in bfloat16, with its own tokenizer, chat template and
model card. Knows nothing of jobs, orders or engines. Same prompts, options, versions and processor: same bytes.

It is a toy: it learns the look of its prompts, and which experts serve which domain, and no facts. That is enough for
what it is for: an engine decoding with it reads the experts that its batch selects, as with a large model.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import os
import random
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

DEFAULT_PROMPTS = Path("data/six-domains/prompts.jsonl")
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHAT_SHARE = 0.25  # share of training documents in chat form, so that plain and chat prompts both look familiar
MAX_LENGTH_TOKENS = 2048
WARMUP_STEPS = 10
EXAMPLE = """example:
  python infra/demo/train_model.py -o data/models/demo-moe
  python infra/demo/train_model.py --dense -o data/models/demo-dense
  python infra/demo/train_model.py my-prompts.jsonl --steps 200 -o data/models/my-moe"""


class TrainingError(ValueError):
    """Something that keeps a model from being trained, in words that tell the user what to change."""


@dataclass(frozen=True)
class Document:
    """A prompt, and what to learn as its answer: its reference, or else another prompt of the same domain."""

    prompt: str
    answer: str

    def plain(self) -> str:
        return f"{self.prompt}\n{self.answer}{END_OF_TEXT}"

    def chat(self) -> str:
        turns = (("user", self.prompt), ("assistant", self.answer))
        return "".join(f"{TURN_START}{role}\n{text}{TURN_END}\n" for role, text in turns)


# ------------------------------------------------------------------------------------------------------- the text


def read_domains(paths: Sequence[Path]) -> dict[str, list[tuple[str, str | None]]]:
    """label → (text, reference) of each of its prompts; prompts without a label form a domain of their own."""
    import json

    domains: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
    for path in paths:
        for line in path.read_bytes().split(b"\n"):
            if line.strip():
                row = json.loads(line)
                domains[row.get("label") or ""].append((row["text"], row.get("reference")))
    return dict(domains)


def documents(prompts: Sequence[tuple[str, str | None]], rng: random.Random) -> Iterator[Document]:
    """The prompts of one domain for ever, newly shuffled each time round."""
    while True:
        turn = rng.sample(prompts, len(prompts))
        for (text, reference), (neighbour, _) in zip(turn, turn[1:] + turn[:1], strict=True):
            yield Document(text, neighbour if reference is None else reference)


def train_tokenizer(texts: Iterator[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE: any text can be written in it, and no special token is added unasked."""
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
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        model_max_length=MAX_LENGTH_TOKENS,
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
    )


def batches(
    domains: dict[str, list[tuple[str, str | None]]],
    tokenizer: PreTrainedTokenizerFast,
    shape: tuple[int, int],
    rng: random.Random,
) -> Iterator[torch.Tensor]:
    """int64[sequences, tokens] for ever: each sequence is cut from documents of one domain, each domain as often."""
    import torch

    sources = {label: documents(prompts, rng) for label, prompts in sorted(domains.items())}
    turn: list[str] = []
    while True:
        rows = []
        for _ in range(shape[0]):
            turn = turn or rng.sample(list(sources), len(sources))
            source, ids = sources[turn.pop()], list[int]()
            while len(ids) < shape[1]:
                document = next(source)
                ids += tokenizer.encode(document.chat() if rng.random() < CHAT_SHARE else document.plain())
            rows.append(ids[: shape[1]])
        yield torch.tensor(rows)


# ------------------------------------------------------------------------------------------------------ the model


def build_model(options: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """An untrained model; the dense one computes as much per token as the other's selected experts do."""
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    heads = max(2, options.hidden // 64)
    common: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": options.hidden,
        "num_hidden_layers": options.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": options.hidden // heads,
        "intermediate_size": options.expert_size * options.top_k,
        "max_position_embeddings": MAX_LENGTH_TOKENS,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "orderproof_toy": True,  # whoever measures it says so beside the gain
    }
    if options.dense:
        return Qwen3ForCausalLM(Qwen3Config(**common))
    config = Qwen3MoeConfig(
        **common,
        num_experts=options.experts,
        num_experts_per_tok=options.top_k,
        moe_intermediate_size=options.expert_size,
        norm_topk_prob=True,
        router_aux_loss_coef=options.balance,
    )
    # transformers' other implementation of experts gives the same numbers, 20 times slower on CPUs
    config._experts_implementation = "grouped_mm"
    return Qwen3MoeForCausalLM(config)


def imbalance(router_logits: Sequence[torch.Tensor], top_k: int) -> torch.Tensor:
    """E × Σ f_e p_e averaged over the layers (Switch Transformer, arXiv 2101.03961, eq. 4): 1 when all experts share
    the work, E / top_k when the same top_k do all of it.

    f and p are taken over the whole batch, which holds every domain. So experts must share the work between domains
    and are free to specialise (arXiv 2501.11873). Layer by layer, since sums over layers hide a collapse of each.
    """
    import torch

    terms = []
    for logits in router_logits:
        experts = logits.shape[-1]
        probability = logits.softmax(-1)
        chosen = torch.bincount(probability.topk(top_k).indices.flatten(), minlength=experts)
        terms.append(experts * (chosen / chosen.sum() * probability.mean(0)).sum())
    return torch.stack(terms).mean()


def train(
    model: PreTrainedModel, data: Iterator[torch.Tensor], options: argparse.Namespace, say: Callable[[str], None]
) -> float:
    """Train in place; the language-modelling loss in nats per token, averaged over the last tenth of the steps."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _learning_rate(step, options.steps))
    losses: list[float] = []
    started = time.monotonic()
    model.train()
    for step in range(1, options.steps + 1):
        ids = next(data)
        output = model(input_ids=ids, use_cache=False, **({} if options.dense else {"output_router_logits": True}))
        loss = torch.nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        spread = None if options.dense else imbalance(output.router_logits, options.top_k)
        (loss if spread is None else loss + options.balance * spread).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 10 == 0 or step == options.steps:
            left_s = (time.monotonic() - started) / step * (options.steps - step)
            balance = "" if spread is None else f", imbalance {spread.item():.2f}"
            say(f"step {step}/{options.steps}: loss {losses[-1]:.3f}{balance}, {left_s:.0f} s left")
    tail = losses[-max(1, options.steps // 10) :]
    return sum(tail) / len(tail)


def _learning_rate(step: int, steps: int) -> float:
    """Share of the full rate: a linear warm-up, then a cosine down to a tenth."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    return warmup * (0.55 + 0.45 * math.cos(math.pi * step / steps))


# ------------------------------------------------------------------------------------------------------ the folder

CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# A toy {kind} model

A {architecture} of {millions:.0f} million parameters ({size}), trained from scratch for {steps} steps of
{sequences} sequences × {length} tokens on {prompts} sample prompts. It imitates the look of those prompts and knows
nothing: use it to try an engine, never for its answers.{routing}

| | |
|---|---|
| made by | `infra/demo/train_model.py` of orderproof, no pretrained weights |
| prompts | {sources} |
| domains | {domains} |
| tokenizer | byte-level BPE, {vocabulary} tokens, trained on the same prompts; ChatML template |
| seed, threads | {seed}, {threads} |
| final loss | {loss:.3f} nats per token on training text |
| versions | {versions} |
| weights | bfloat16 |
"""
ROUTING = """

{experts} experts per layer, {top_k} of them per token. The balancing term (coefficient {balance}) is taken over batches
that hold every domain, so the experts share the work and still specialise by domain."""


def model_card(
    options: argparse.Namespace, model: PreTrainedModel, domains: dict[str, list[tuple[str, str | None]]], loss: float
) -> str:
    """What the checkpoint is, for whoever finds the folder; nothing in it changes from one making to the next."""
    return CARD.format(
        kind="dense" if options.dense else "mixture-of-experts",
        architecture=type(model).__name__,
        millions=model.num_parameters() / 1e6,
        size=f"{options.layers} layers, hidden size {options.hidden}",
        steps=options.steps,
        sequences=options.sequences,
        length=options.length,
        prompts=sum(map(len, domains.values())),
        routing="" if options.dense else ROUTING.format(**vars(options)),
        sources=", ".join(f"`{path.name}`" for path in options.prompts),
        domains=", ".join(f"{label or 'unlabelled'} ({len(rows)})" for label, rows in sorted(domains.items())),
        vocabulary=model.config.vocab_size,
        seed=options.seed,
        threads=options.threads,
        loss=loss,
        versions=", ".join(
            f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "tokenizers")
        ),
    )


def save(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, card: str) -> None:
    """Write the checkpoint into a folder."""
    import torch
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id], pad_token_id=tokenizer.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")


def make(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Train and save; the output folder appears, or is replaced, only once it is whole."""
    domains = read_domains(options.prompts)
    unfinished = options.output.with_name(f".{options.output.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    _be_deterministic(options)
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = train_tokenizer((text for rows in domains.values() for text, _ in rows), options.vocabulary)
    model = build_model(options, tokenizer)
    say(f"{type(model).__name__}, {model.num_parameters() / 1e6:.0f} million parameters, {len(domains)} domains")
    data = batches(domains, tokenizer, (options.sequences, options.length), random.Random(options.seed))
    loss = train(model, data, options, say)
    try:
        unfinished.mkdir(parents=True)
        save(unfinished, model, tokenizer, model_card(options, model, domains, loss))
        shutil.rmtree(options.output, ignore_errors=True)
        os.replace(unfinished, options.output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    say(f"wrote {options.output}")


def _be_deterministic(options: argparse.Namespace) -> None:
    import torch

    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)  # sums are split by thread: another count, other last bits
    torch.use_deterministic_algorithms(True)


def parser() -> argparse.ArgumentParser:
    cli = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("prompts", nargs="*", type=Path, default=[DEFAULT_PROMPTS], help=f"default: {DEFAULT_PROMPTS}")
    cli.add_argument("-o", "--output", type=Path, required=True, help="folder to make, or to replace")
    cli.add_argument("--dense", action="store_true", help="a plain Qwen3 instead of a mixture of experts")
    numbers: dict[str, tuple[int, str]] = {
        "seed": (0, "of weights and batches"),
        "steps": (100, "of AdamW"),
        "sequences": (12, "per step"),
        "length": (128, "tokens per sequence"),
        "hidden": (256, "size, a multiple of 64, or 32"),
        "layers": (4, ""),
        "experts": (64, "per layer"),
        "top-k": (4, "experts per token"),
        "expert-size": (512, "hidden units of an expert"),
        "vocabulary": (2048, "tokens"),
        "threads": (2, "part of the recipe: another count, other last bits"),
    }
    for name, (value, text) in numbers.items():
        cli.add_argument(f"--{name}", type=int, default=value, help=f"{text} (default: {value})".strip())
    cli.add_argument("--learning-rate", type=float, default=1e-3, help="default: 0.001")
    cli.add_argument("--balance", type=float, default=0.01, help="weight of the balancing term (default: 0.01)")
    return cli


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        make(options, lambda line: print(line, flush=True))
    except TrainingError as error:
        print(f"train_model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
