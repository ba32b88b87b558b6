"""What a reader of documents hands on, and what the store keeps: documents, their blocks, and chunks of them.

Offsets count characters (code points) of `Document.text`; pages count from 1. Nothing here raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

Kind = Literal["heading", "text", "list", "code", "table_row"]


@dataclass(frozen=True, slots=True)
class Block:
    """A slice of a document that is of one kind: `document.text[start:end] == text`."""

    kind: Kind
    text: str
    page: int | None  # None: the format has no pages
    headings: tuple[str, ...]  # the path above this block, outermost first
    start: int
    end: int


@dataclass(frozen=True)
class Document:
    """A document as its reader understood it."""

    title: str
    text: str  # the whole canonical text; blocks are slices of it
    blocks: tuple[Block, ...]
    pages_without_text: tuple[int, ...]  # scanned, most likely


@dataclass(frozen=True)
class Chunk:
    """What is embedded and found as one. `text` may carry a repeated table header that `text[start:end]` lacks."""

    text: str
    start: int
    end: int
    page: int | None
    page_end: int | None
    headings: tuple[str, ...]


def indexed(chunk: Chunk) -> str:
    """The text of a chunk as it is embedded and indexed: its headings, then itself."""
    return "\n".join([*chunk.headings, chunk.text])


def key(chunk: Chunk) -> str:
    """Equal for chunks whose vectors are equal."""
    return sha256(indexed(chunk).encode("utf-8", "surrogatepass")).hexdigest()
