"""A store of manuals together with the model that fills and questions it.

    manuals = Manuals(path, embedding)
    manuals.ingest("/m/qv310.pdf", data)
    manuals.ask("What supply voltage is permitted?")

One thread uses a Manuals; several may be open on one file. The store is opened at the first use. Raises NotFound where
there is no store, BadStore, DiskFull, BadDocument, and what `embedding` raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Embedding(Protocol):
    """The embedding model, as far as manuals see it. n_ctx: most tokens of a text."""

    name: str
    fingerprint: str
    dim: int
    pooling: str
    n_ctx: int

    def embed(self, texts: Sequence[str], background: bool = False) -> np.ndarray:
        """f32 (texts, dim), rows of length 1; waits. background: gives way to all other work of the model."""

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, with those that the model puts around it."""


class Manuals:
    """See the module."""
