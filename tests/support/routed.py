"""A served model with captured routes, made in a moment: prompts of two kinds that use experts of two kinds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orderproof.job.hashing import md5_of
from orderproof.job.model import fingerprint
from orderproof.orders.view import PromptView, view_of
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from orderproof.routing.routes import Routes, RoutesRecord, text_digest
from orderproof.routing.routes_writer import write_routes
from orderproof.signals.predictor import Predictor, fit
from orderproof.signals.predictor_file import write_predictor
from orderproof.signals.served_model import ROUTES_FILE, ServedModel, predictor_path
from tests.support.checkpoint_file import save_tensors
from tests.support.tiny_tokenizer import TEMPLATE, job_of, save_model

LAYERS, EXPERTS, TOP_K = 2, 16, 2
PROMPT_TOKENS, DECODE_TOKENS = 6, 12
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "max_position_embeddings": 512,
    "num_hidden_layers": LAYERS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
}
KINDS = ("aeiou", "bcdfg")  # of what letters a kind's words are made


@dataclass(frozen=True)
class Routed:
    """A folder with a model, prompts, their routes and the predictor fitted on them."""

    served: ServedModel
    prompts: list[dict[str, Any]]

    @property
    def view(self) -> PromptView:
        return view_of(self.prompts, self.served)

    def routes(self) -> Routes:
        assert self.served.routes is not None
        return Routes(self.served.routes)


def make_routed(
    folder: Path, captured: int = 80, others: int = 20, seed: int = 0, chat_template_args: dict[str, Any] | None = None
) -> Routed:
    """Half of the prompts is of each kind, in random order; a kind keeps to its half of the experts, mostly.

    The folder also gets them as prompts.jsonl.

    Args:
        chat_template_args: the prompts are chats, captured as the model's template renders them with these.
    """
    random = np.random.default_rng(seed)
    save_tensors(
        folder / "model" / "model.safetensors", model__embed_tokens__weight=random.normal(size=(300, 16)).astype("f4")
    )
    save_model(folder / "model", None if chat_template_args is None else TEMPLATE)
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    kinds = random.permutation(np.arange(captured + others) % 2).tolist()
    prompts = [{"id": f"p{i}", "text": _text(kind, random), "label": KINDS[kind]} for i, kind in enumerate(kinds)]
    if chat_template_args is not None:
        prompts = [{**prompt, "text": [{"role": "user", "content": prompt["text"]}]} for prompt in prompts]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    served = ServedModel(folder / "model", None, folder / ROUTES_FILE)
    record = RoutesRecord(
        model=fingerprint(folder / "model"),
        dataset_md5=md5_of(folder / "prompts.jsonl"),
        layers=LAYERS,
        experts=EXPERTS,
        top_k=TOP_K,
        texts={prompt_id: text_digest(text) for prompt_id, text in _rendered(folder, chat_template_args).items()},
        capture={"chat_template_args": chat_template_args or {}},
    )
    with write_routes(folder / ROUTES_FILE, record) as writer:
        for i in range(captured):
            writer.add(f"p{i}", PROMPT_TOKENS, _experts(kinds[i], random))
    routed = Routed(served, prompts)
    write_predictor(predictor_path(folder / ROUTES_FILE), fitted(routed))
    return routed


def _rendered(folder: Path, chat_template_args: dict[str, Any] | None) -> dict[str, str]:
    """Each prompt as a job's engine meets it, by id."""
    job = job_of(folder / "prompts.jsonl", folder / "model", chat_template_args=chat_template_args or {})
    tokenized = tokenize(job, read_prompts(job.prompts_path))
    return dict(zip(tokenized.ids, tokenized.rendered, strict=True))


def fitted(routed: Routed) -> Predictor:
    with routed.routes() as routes:
        return fit(routed.view, routes, routed.served)


def _text(kind: int, random: np.random.Generator) -> str:
    return " ".join("".join(random.choice(list(KINDS[kind]), 4)) for _ in range(random.integers(4, 12)))


def _experts(kind: int, random: np.random.Generator) -> np.ndarray:
    weights = np.where(np.arange(EXPERTS) // (EXPERTS // 2) == kind, 9.0, 1.0)
    tokens = (PROMPT_TOKENS + DECODE_TOKENS, LAYERS)
    scores = np.log(weights) + random.gumbel(size=(*tokens, EXPERTS))
    return np.argsort(-scores, axis=-1)[..., :TOP_K].astype(np.uint8)
