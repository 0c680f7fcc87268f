"""Train a small real language model from scratch, so that the demo needs no download.

The result is a folder that vLLM and transformers load like any other checkpoint: a Qwen3 mixture-of-experts model, or
with --dense a plain Qwen3, in bfloat16, with its own tokenizer, chat template and model card. The same prompts,
options, versions and processor give the same bytes.

It is a toy: it learns the style of its prompts and which experts serve which domain, but no facts. That is enough for
its purpose: when an engine decodes with it, each batch reads the experts that it selects, as with a large model.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus import MAX_LENGTH_TOKENS, Domains, batches, read_domains, train_tokenizer

from orderproof.prompts.prompt import PromptError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

DEFAULT_PROMPTS = Path("data/six-domains/prompts.jsonl")
WARMUP_STEPS = 10
EXAMPLE = """example:
  python infra/demo/train_model.py -o data/models/demo-moe
  python infra/demo/train_model.py --dense -o data/models/demo-dense
  python infra/demo/train_model.py my-prompts.jsonl --steps 200 -o data/models/my-moe"""
CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# A toy {kind} model

A {architecture} of {millions:.0f} million parameters, trained from scratch on {prompts} sample prompts. It imitates
their look and knows nothing: use it to try an engine, never for its answers.{routing}

| | |
|---|---|
| made by | `infra/demo/train_model.py` of orderproof; no pretrained weights |
| prompts | {sources} |
| domains | {domains} |
| size | {layers} layers, hidden size {hidden} |
| training | {steps} AdamW steps of {sequences} sequences × {length} tokens, each sequence of one domain |
| seed, threads | {seed}, {threads} |
| final loss | {loss:.3f} nats per token, on the text it was trained on |
| tokenizer | byte-level BPE, {vocabulary_size} tokens, trained on the same prompts; ChatML template |
| weights | bfloat16 |
| versions | {versions} |
"""
ROUTING = """

Each layer has {experts} experts, of which a token uses {top_k}. Their load was balanced (coefficient {balance}) over
batches that hold every domain, so experts share the work and still specialise by domain."""

Log = Callable[[str], None]


class TrainingError(ValueError):
    """A model cannot be trained. The message says what to change."""


def build_model(options: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """An untrained model. The dense model computes as much per token as the selected experts of the other."""
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
        "initializer_range": options.hidden**-0.5,  # with the usual 0.02, many experts are never selected at this width
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "orderproof_toy": True,  # reports then mark the gain as that of a toy model
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
    # transformers' plain loop over the experts gives the same numbers, 20 times slower on CPUs
    config._experts_implementation = "grouped_mm"
    return Qwen3MoeForCausalLM(config)


def imbalance(router_logits: Sequence[torch.Tensor], top_k: int) -> torch.Tensor:
    """E × Σ f_e p_e averaged over the layers (Switch Transformer, arXiv 2101.03961, eq. 4): 1 when all experts share
    the work, E / top_k when the same top_k do all of it.

    f and p are means over the whole batch, which has every domain: experts must share the work but may specialise
    (arXiv 2501.11873). Each layer has its own term, because transformers' term sums f over the layers, which hides a
    collapse in one layer.
    """
    import torch

    terms = []
    for logits in router_logits:
        experts = logits.shape[-1]
        probability = logits.softmax(-1)
        chosen = torch.bincount(probability.topk(top_k).indices.flatten(), minlength=experts)
        terms.append(experts * (chosen / chosen.sum() * probability.mean(0)).sum())
    return torch.stack(terms).mean()


def train(model: PreTrainedModel, data: Iterator[torch.Tensor], options: argparse.Namespace, log: Log) -> float:
    """Train in place. Returns the loss in nats per token, averaged over the last tenth of the steps."""
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, options.steps))
    routing = {} if options.dense else {"output_router_logits": True}
    losses: list[float] = []
    started = time.monotonic()
    model.train()
    for step in range(1, options.steps + 1):
        ids = next(data)
        output = model(input_ids=ids, use_cache=False, **routing)
        loss = torch.nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        load = imbalance(output.router_logits, options.top_k) if routing else torch.zeros(())
        (loss + options.balance * load).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 10 == 0 or step == options.steps:
            left_s = (time.monotonic() - started) / step * (options.steps - step)
            balance = f", imbalance {load.item():.2f}" if routing else ""
            log(f"step {step}/{options.steps}: loss {losses[-1]:.3f}{balance}, {left_s:.0f} s left")
    tail = losses[-max(1, options.steps // 10) :]
    return sum(tail) / len(tail)


def _rate(step: int, steps: int) -> float:
    """Share of the full learning rate: a linear warm-up, and a cosine down to a tenth."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def model_card(options: argparse.Namespace, model: PreTrainedModel, domains: Domains, loss: float) -> str:
    """The README.md of the checkpoint. The same training gives the same text."""
    packages = ("torch", "transformers", "tokenizers")
    return CARD.format(
        **vars(options) | {"prompts": sum(map(len, domains.values()))},
        kind="dense" if options.dense else "mixture-of-experts",
        architecture=type(model).__name__,
        millions=model.num_parameters() / 1e6,
        routing="" if options.dense else ROUTING.format(**vars(options)),
        sources=", ".join(f"`{path.name}`" for path in options.prompts),
        domains=", ".join(f"{label or 'unlabelled'} ({len(sources)})" for label, sources in sorted(domains.items())),
        loss=loss,
        vocabulary_size=model.config.vocab_size,
        versions=", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages),
    )


def save(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, card: str) -> None:
    """Write the checkpoint; `folder` is created or replaced only when it is complete."""
    import torch
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id], pad_token_id=tokenizer.pad_token_id
    )
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        unfinished.mkdir(parents=True)
        model.to(torch.bfloat16).save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        (unfinished / "README.md").write_text(card, encoding="utf-8")
        mode = (unfinished / "README.md").stat().st_mode
        for file in unfinished.iterdir():
            file.chmod(mode)  # the weights are written with read permission only for the owner
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def make(options: argparse.Namespace, log: Log) -> None:
    """Check, train, save."""
    check(options)
    domains = read_domains(options.prompts)
    be_deterministic(options.seed, options.threads)
    tokenizer = train_tokenizer(domains, options.vocabulary)
    model = build_model(options, tokenizer)
    log(f"{type(model).__name__}, {model.num_parameters() / 1e6:.0f} million parameters, {len(domains)} domains")
    data = batches(domains, tokenizer, (options.sequences, options.length), options.seed)
    loss = train(model, data, options, log)
    save(options.output, model, tokenizer, model_card(options, model, domains, loss))
    log(f"wrote {options.output}")


def check(options: argparse.Namespace) -> None:
    """Refuse options that would fail only after minutes."""
    if options.output.exists() and not (options.output / "config.json").exists():
        raise TrainingError(f"{options.output} is not a checkpoint, so it is not replaced. Name another folder")
    for name in NUMBERS:
        if name != "seed" and getattr(options, name.replace("-", "_")) < 1:
            raise TrainingError(f"--{name} must be at least 1")
    if options.hidden % 64 and options.hidden != 32:
        raise TrainingError(f"--hidden {options.hidden} must be 32 or a multiple of 64")
    if options.top_k > options.experts:
        raise TrainingError(f"--top-k {options.top_k} must not be above --experts {options.experts}")


def be_deterministic(seed: int, threads: int) -> None:
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    torch.set_num_threads(threads)  # sums are split by thread, so another count changes the last bits
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # slow, finds bugs only


NUMBERS: dict[str, tuple[int, str]] = {
    "seed": (0, "of weights and batches"),
    "steps": (100, "of AdamW"),
    "sequences": (12, "per step"),
    "length": (128, "tokens per sequence"),
    "hidden": (256, "size: 32, or a multiple of 64"),
    "layers": (4, "of the model"),
    "experts": (64, "per layer"),
    "top-k": (4, "experts per token"),
    "expert-size": (512, "hidden units of an expert"),
    "vocabulary": (2048, "tokens at most"),
    # Training is limited by memory: a second thread gains little, and loses much if the cores are shared
    "threads": (1, "another count changes the last bits"),
}


def parser() -> argparse.ArgumentParser:
    cli = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cli.add_argument("prompts", nargs="*", type=Path, default=[DEFAULT_PROMPTS], help=f"default: {DEFAULT_PROMPTS}")
    cli.add_argument("-o", "--output", type=Path, required=True, help="folder to create or replace")
    cli.add_argument("--dense", action="store_true", help="a plain Qwen3 instead of a mixture of experts")
    for name, (value, text) in NUMBERS.items():
        cli.add_argument(f"--{name}", type=int, default=value, help=f"{text} (default: {value})")
    cli.add_argument("--learning-rate", type=float, default=0.002, help="maximum (default: 0.002)")
    cli.add_argument("--balance", type=float, default=0.02, help="weight of even expert load (default: 0.02)")
    return cli


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        make(options, lambda line: print(line, flush=True))
    except (TrainingError, PromptError, OSError) as error:
        print(f"train_model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
