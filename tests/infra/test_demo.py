"""The demo's makers: sample prompts and sample models."""

from __future__ import annotations

import collections
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import corpus
import make_prompts
import pytest
import train_model

from tests.conftest import ROOT, run_demo

DEMO = ROOT / "infra" / "demo"


LABELS = {"code", "math", "creative", "french", "arabic", "chinese"}
SMALL = ("--steps", "2", "--hidden", "64", "--layers", "2", "--experts", "16", "--expert-size", "64")


@pytest.fixture(scope="module")
def six_domains() -> list[dict[str, str]]:
    """The whole sample, as `make demo` makes it."""
    return make_prompts.make_sample("six-domains", seed=0)


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_six_domains_are_768_prompts_in_equal_parts(six_domains: list[dict[str, str]]) -> None:
    assert collections.Counter(row["label"] for row in six_domains) == dict.fromkeys(LABELS, 128)
    assert len({row["id"] for row in six_domains}) == 768
    assert all(re.fullmatch(rf"{row['label']}-\d{{3}}", row["id"]) for row in six_domains)


def test_one_domain_has_one_label() -> None:
    rows = make_prompts.make_sample("one-domain", seed=0, per_label=60)
    assert {row["label"] for row in rows} == {"creative"}
    assert len(rows) == 60


def test_the_file_is_shuffled(six_domains: list[dict[str, str]]) -> None:
    together = sum(a["label"] == b["label"] for a, b in itertools.pairwise(six_domains))
    assert 80 < together < 180  # of 767 neighbours a sixth, 127, is expected; four standard deviations are 41


def test_prompts_are_of_a_realistic_length(six_domains: list[dict[str, str]]) -> None:
    for row in six_domains:
        assert (24 if row["label"] == "chinese" else 40) <= len(row["text"]) <= 240, row


def test_no_slot_is_left_open(six_domains: list[dict[str, str]]) -> None:
    assert not [row for row in six_domains if make_prompts.SLOT.search(row["text"])]


def test_no_two_prompts_are_twins(six_domains: list[dict[str, str]]) -> None:
    """Another measure than the maker's: shared words, or characters where no spaces part the words."""
    by_label: dict[str, list[set[str]]] = collections.defaultdict(list)
    for row in six_domains:
        text = row["text"].casefold()
        by_label[row["label"]].append(set(text if row["label"] == "chinese" else re.findall(r"\w+", text)))
    alike = max(len(a & b) / len(a | b) for rows in by_label.values() for a, b in itertools.combinations(rows, 2))
    assert alike < 0.75


def test_only_maths_has_references(six_domains: list[dict[str, str]]) -> None:
    assert {row["label"] for row in six_domains if "reference" in row} == {"math"}
    assert all("reference" in row for row in six_domains if row["label"] == "math")


def test_every_reference_follows_from_the_numbers_in_its_text(six_domains: list[dict[str, str]]) -> None:
    templates = [(_reader(template.text), template.answer) for template in make_prompts.read_domain("math").templates]
    for row in six_domains:
        if row["label"] == "math":
            answers = {
                eval(answer, {}, {name: int(number) for name, number in match.groupdict().items()})
                for reader, answer in templates
                if answer and (match := reader.fullmatch(row["text"]))
            }
            assert answers == {int(row["reference"])}, row


def _reader(template: str) -> re.Pattern[str]:
    """A template as a pattern that reads its numbers, here every slot that is drawn or has no phrases."""
    phrases = make_prompts.read_domain("math").slots
    pattern, seen = "", set[str]()
    for literal, slot, limits in re.findall(r"([^{]*)(?:\{([a-z_]+)(?:#\d)?((?::\d+-\d+)?)\})?", template):
        pattern += re.escape(literal)
        if slot and (slot in phrases or slot == "first_name"):
            pattern += ".+?"
        elif slot:
            pattern += f"(?P={slot})" if slot in seen and not limits else rf"(?P<{slot}>\d+)"
            seen.add(slot)
    return re.compile(pattern)


def test_the_bytes_depend_on_the_seed_alone(tmp_path: Path) -> None:
    surroundings = [
        {"PYTHONHASHSEED": "1", "LC_ALL": "C"},
        {"PYTHONHASHSEED": "2", "LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo"},
    ]
    for name, seed, extra in (("a", "3", surroundings[0]), ("b", "3", surroundings[1]), ("c", "4", surroundings[0])):
        command = [sys.executable, DEMO / "make_prompts.py", "six-domains", "--per-label", "6", "--seed", seed]
        subprocess.run([*command, "-o", tmp_path / name], env=os.environ | extra, check=True)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_a_domain_without_enough_variety_is_an_error_not_a_file_of_twins() -> None:
    story = make_prompts.Template("Write a long and winding story about {pet}.")
    poor = make_prompts.Domain("poor", (story,), {"pet": ["a cat", "a cow"]}, locale=None, shortest=1)
    with pytest.raises(make_prompts.PromptsError, match="`poor` give 1 prompts that differ enough, not 5"):
        make_prompts.make_domain(poor, 5, seed=0)


@pytest.mark.parametrize("expression", ["a ** 2", "__import__('os')", "a / 2", "-a"])
def test_only_whole_number_arithmetic_is_computed(expression: str) -> None:
    with pytest.raises(make_prompts.PromptsError, match="is not whole-number arithmetic"):
        make_prompts.compute(expression, {"a": 3})


# -- models ------------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_checkpoint(models: dict[str, Path], prompts_file: Path, tmp_path: Path) -> None:
    run_demo("train_model.py", prompts_file, "-o", tmp_path / "again", *SMALL)
    run_demo("train_model.py", prompts_file, "-o", tmp_path / "other", *SMALL, "--seed", "1")
    again, other = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("again", "other")
    )
    assert again == {file.name: file.read_bytes() for file in models["moe"].iterdir()}
    assert again["model.safetensors"] != other["model.safetensors"]
    assert {path.name for path in tmp_path.iterdir()} == {"again", "other"}


def test_the_tokenizer_writes_any_text_and_adds_nothing(models: dict[str, Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models["moe"])
    for text in ("def f(x):\n    return x", "L'été à Besançon", "كيف حالك؟", "你好，世界。", "🦊\u2028\t", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.eos_token, tokenizer.pad_token) == (corpus.TURN_END, corpus.END_OF_TEXT)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(("kind", "architecture"), [("moe", "Qwen3MoeForCausalLM"), ("dense", "Qwen3ForCausalLM")])
def test_a_checkpoint_says_what_an_engine_must_know(models: dict[str, Path], kind: str, architecture: str) -> None:
    from safetensors import safe_open

    config = _json(models[kind] / "config.json")
    assert config["architectures"] == [architecture]
    assert config["dtype"] == "bfloat16"
    assert config["max_position_embeddings"] >= 2048
    stops = _json(models[kind] / "generation_config.json")["eos_token_id"]
    assert {config["eos_token_id"], config["pad_token_id"]} == set(stops)
    with safe_open(models[kind] / "model.safetensors", "pt") as weights:
        assert {str(weights.get_tensor(name).dtype) for name in weights.keys()} == {"torch.bfloat16"}  # noqa: SIM118


def test_the_model_card_says_that_it_is_a_toy_and_how_it_was_made(models: dict[str, Path]) -> None:
    card = (models["moe"] / "README.md").read_text()
    for said in ("toy mixture-of-experts", "on 96 sample prompts", "`prompts.jsonl`", "creative (16)", "2 AdamW steps"):
        assert said in card
    assert re.search(r"seed, threads \| 0, 1 \|\n\| final loss \| \d\.\d{3} nats", card)


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file|not found|does not exist"), (b"", "no prompts|empty"), (b"  \n \n", "")]
)
def test_a_file_without_text_is_one_clear_line(
    content: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert train_model.main([str(path), "-o", str(tmp_path / "model")]) == 1
    message = capsys.readouterr().err
    assert message.startswith("train_model: ")
    assert message.count("\n") == 1
    assert "bad.jsonl" in message
    assert re.search(said, message)
    assert not (tmp_path / "model").exists()


def test_a_folder_that_is_no_checkpoint_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")
    assert train_model.main(["-o", str(tmp_path)]) == 1
    assert "Name another folder" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", "0"], "--steps must be at least 1"),
        (["--top-k", "65"], "--top-k 65 must not be above --experts 64"),
        (["--hidden", "100"], "--hidden 100 must be 32 or a multiple of 64"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_before_training(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_model.main(["-o", str(tmp_path / "model"), *options]) == 1
    assert said in capsys.readouterr().err


def test_imbalance_is_one_when_shared_and_largest_when_each_layer_collapses_elsewhere() -> None:
    import torch

    shared = torch.eye(8).repeat(4, 1) * 20  # each token has an expert of its own
    assert train_model.imbalance([shared], top_k=1).item() == pytest.approx(1)
    collapsed = [torch.eye(8)[[expert] * 32] * 20 for expert in range(8)]  # all tokens on one expert, another per layer
    assert train_model.imbalance(collapsed, top_k=1).item() == pytest.approx(8, rel=1e-3)


def test_a_training_sequence_keeps_to_one_domain(models: dict[str, Path]) -> None:
    from transformers import AutoTokenizer

    sources = {letter: [corpus.Source(letter * n, None) for n in (3, 5, 7)] for letter in "xyz"}
    rows = next(corpus.batches(sources, AutoTokenizer.from_pretrained(models["moe"]), (6, 20), seed=0))
    tokenizer = AutoTokenizer.from_pretrained(models["moe"])
    found = [set(re.sub(r"<\|.*?\|>|user|assistant|\s", "", tokenizer.decode(row))) & set("xyz") for row in rows]
    assert collections.Counter(map(tuple, found)) == {("x",): 2, ("y",): 2, ("z",): 2}


@pytest.mark.long
def test_a_batch_of_one_domain_touches_fewer_experts_and_none_is_idle(tmp_path: Path) -> None:
    """The whole demo model, two minutes: sorting has something to gain, and the experts have not collapsed."""
    run_demo("make_prompts.py", "six-domains", "-o", tmp_path / "prompts.jsonl")
    run_demo("train_model.py", tmp_path / "prompts.jsonl", "-o", tmp_path / "moe")
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    ordered = sorted(rows, key=lambda row: row["label"])
    mixed, single = (_experts_per_batch(tmp_path / "moe", [row["text"] for row in order]) for order in (rows, ordered))
    assert single < 0.75 * mixed
    assert mixed > 24  # of 64


def _experts_per_batch(model: Path, texts: list[str], batch: int = 16) -> float:
    """Mean number of distinct experts per layer that the last tokens of 16 neighbouring prompts select."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    chosen = []
    with torch.no_grad():
        for text in texts:
            logits = network(tokenizer(text, return_tensors="pt").input_ids, output_router_logits=True).router_logits
            chosen.append(
                torch.stack([layer[-8:].topk(network.config.num_experts_per_tok).indices for layer in logits])
            )
    counts = [
        torch.stack(chosen[start : start + batch])[:, layer, token].unique().numel()
        for start in range(0, len(texts), batch)
        for layer in range(network.config.num_hidden_layers)
        for token in range(8)
    ]
    return sum(counts) / len(counts)


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content
