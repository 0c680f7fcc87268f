"""Token ids are those that the model's own tokenizer and template give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.prompts.prompt import PromptError
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import TokenizedPrompts, tokenize
from tests.support.lfs import POINTER
from tests.support.prompt_files import CHAT, GOOD, line, write
from tests.support.tiny_tokenizer import MODEL_TOKENS, TEMPLATE, job_of, save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, TEMPLATE)
    return folder


def tokenized(model: Path, tmp_path: Path, content: bytes, **changes: Any) -> TokenizedPrompts:
    path = write(tmp_path, content)
    return tokenize(job_of(path, model, **changes), read_prompts(path))


def test_plain_text_gets_the_tokenizers_special_tokens(model: Path, tmp_path: Path) -> None:
    found = tokenized(model, tmp_path, line(id="a", text="hé", label="x", reference="r") + line(id="b", text="yo"))
    assert (len(found), found.ids, found.labels, found.references) == (2, ["a", "b"], ["x", None], ["r", None])
    assert found.lengths.tolist() == [4, 3]  # <s> h 0xc3 0xa9, <s> y o
    assert (found.tokens.dtype, found.offsets.dtype) == (np.int32, np.int64)
    assert found.token_ids(1)[0] == 0
    assert found.texts(0) == "hé"
    assert found.lines.tolist() == [1, 2]


def test_chat_is_rendered_by_the_models_template_which_brings_its_own_special_tokens(
    model: Path, tmp_path: Path
) -> None:
    content = line(id="a", text=CHAT) + line(id="b", text="plain")
    found = tokenized(model, tmp_path, content, chat_template_args={"mood": "calm"})
    assert found.texts(0) == "<s>[system]Be brief.[user]Hello[assistant]calm"
    assert found.token_ids(0).count(0) == 1
    assert found.lengths.tolist() == [len("[system]Be brief.[user]Hello[assistant]calm") + 1, 6]


def test_tokens_are_those_of_one_prompt_at_a_time(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    monkeypatch.setattr("orderproof.prompts.tokenization.BATCH_PROMPTS", 3)
    texts: list[Any] = [CHAT if i % 3 == 1 else "é" * (i + 1) for i in range(8)]
    found = tokenized(model, tmp_path, b"".join(line(id=i, text=text) for i, text in enumerate(texts)))
    alone = AutoTokenizer.from_pretrained(model)
    for i, text in enumerate(texts):
        expected = (
            alone(text)["input_ids"]
            if isinstance(text, str)
            else alone.apply_chat_template(text, add_generation_prompt=True, return_dict=False)
        )
        assert found.token_ids(i) == expected


def test_some_of_the_prompts_are_taken_whole_and_in_the_order_asked(model: Path, tmp_path: Path) -> None:
    rows = [line(id=i, text="x" * (i + 1), label=i, reference=i, sampling={"seed": i}) for i in range(6)]
    found = tokenized(model, tmp_path, b"".join(rows))
    taken = found.take(np.array([4, 0, 5]))
    assert (taken.ids, taken.labels, taken.references) == (["4", "0", "5"], ["4", "0", "5"], ["4", "0", "5"])
    assert taken.lines.tolist() == [5, 1, 6]
    assert taken.samplings[0] == {"seed": 4}
    assert [taken.token_ids(k) for k in range(3)] == [found.token_ids(i) for i in (4, 0, 5)]
    assert [taken.texts(k) for k in range(3)] == ["xxxxx", "x", "xxxxxx"]
    assert len(found.take(np.array([], np.int64))) == 0


def test_chat_for_a_tokenizer_without_a_template_is_refused_by_line(tmp_path: Path) -> None:
    save_model(tmp_path / "bare")
    with pytest.raises(PromptError, match=r"line 2 \(id 'b'\): .*no chat template\. Give plain text"):
        tokenized(tmp_path / "bare", tmp_path, GOOD + line(id="b", text=CHAT))


def test_messages_that_the_template_refuses_are_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"line 1 \(id 'b'\): the model's chat template refuses .*no tools here"):
        tokenized(model, tmp_path, line(id="b", text=[{"role": "tool", "content": "x"}]))


def test_a_missing_model_is_named_with_the_command_that_downloads_it(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"absent: the folder .* does not exist\. .*: hf download"):
        tokenized(tmp_path / "absent", tmp_path, GOOD)


@pytest.mark.parametrize(
    "files",
    [{}, {"config.json": '{"model_type": "qwen3_moe"}'}, {"config.json": "{}", "tokenizer.json": "{"}],
    ids=["nothing", "no tokenizer", "a broken tokenizer"],
)
def test_a_folder_without_a_usable_tokenizer_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "model").mkdir()
    for name, content in files.items():
        (tmp_path / "model" / name).write_text(content)
    with pytest.raises(PromptError, match=r"model: holds no .*tokenizer.*hf download"):
        tokenized(tmp_path / "model", tmp_path, GOOD)


def test_a_model_that_would_run_code_of_its_own_is_refused(tmp_path: Path) -> None:
    folder, proof = tmp_path / "model", tmp_path / "ran"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoTokenizer": ["own.Own", null]}}')
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["own.Own", null]}}')
    (folder / "own.py").write_text(f"open({str(proof)!r}, 'w')\nclass Own: pass\n")
    with pytest.raises(PromptError, match="holds no usable tokenizer"):
        tokenized(folder, tmp_path, GOOD)
    assert not proof.exists()


def test_a_tokenizer_that_git_lfs_has_not_fetched_is_to_be_pulled(model: Path, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "tokenizer.json").write_bytes(POINTER)
    with pytest.raises(PromptError, match=r"pointers in the place of tokenizer\.json.*git lfs pull"):
        tokenized(model, tmp_path, GOOD, tokenizer="t")


@pytest.mark.parametrize("text", ["word " * 100_000, [*CHAT[:1], {"role": "user", "content": "word " * 100_000}]])
def test_of_a_prompt_that_cannot_fit_only_a_beginning_is_tokenized(model: Path, tmp_path: Path, text: Any) -> None:
    prompts = tokenized(model, tmp_path, line(id="a", text=text) + line(id="b", text="x" * MODEL_TOKENS))
    assert prompts.lengths.tolist() == [prompts.lengths[0], MODEL_TOKENS + 1]
    assert 2 * MODEL_TOKENS < prompts.lengths[0] < 40 * MODEL_TOKENS
    assert len(prompts.texts(0)) < 40 * MODEL_TOKENS


def test_a_long_text_of_few_tokens_is_tokenized_as_a_whole(tmp_path: Path) -> None:
    save_model(tmp_path, spaces=False)
    content = line(id="a", text=" " * 10_000 + "x")
    prompts = tokenized(tmp_path, tmp_path, content)
    assert prompts.lengths.tolist() == [2]
    assert len(prompts.texts(0)) == 10_001


def test_a_text_that_begins_with_the_token_that_the_tokenizer_adds_is_told(tmp_path: Path) -> None:
    save_model(tmp_path / "m")
    path = write(tmp_path, b'{"id": "a", "text": "one"}\n{"id": "b", "text": "<s>two"}\n{"id": "c", "text": "<s>"}\n')
    prompts = tokenize(job_of(path, tmp_path / "m"), read_prompts(path))
    (notice,) = prompts.notices
    assert "begins with '<s>', which the tokenizer adds as well" in notice
    assert notice.endswith("(line 2 and 1 more)")
