"""What a store and its search say, as JSON: the same over HTTP and from the commands. Nothing here raises."""

from __future__ import annotations

from typing import Any

from edged.rag.answer import Answer, Quote
from edged.rag.ingest import Done
from edged.rag.search import Passage
from edged.rag.store import DocumentRow, Source

Object = dict[str, Any]


def passage_of(passage: Passage) -> Object:
    """A passage. The same content may stand in several documents: the first, and `also_in` the others."""
    return {
        **_place(passage),
        "also_in": [_source(source) for source in passage.sources[1:]],
        "text": passage.text,
        "start": passage.start,
        "end": passage.end,
        "score": float(passage.score),
        "cosine": float(passage.cosine),
    }


def quote_of(quote: Quote) -> Object:
    """A quote; the answer's text names it [n]."""
    return {"n": quote.n, "text": quote.text, **_place(quote.passage), "start": quote.start, "end": quote.end}


def answer_of(question: str, answer: Answer, passages: tuple[Passage, ...], dropped_passages: int = 0) -> Object:
    """An answer and what it is made of; `passages` are those that were found."""
    return {
        "object": "answer",
        "question": question,
        "answer": answer.text,
        "refused": answer.refused,
        "confidence": answer.confidence,
        "mode": answer.mode,
        "quotes": [quote_of(quote) for quote in answer.quotes],
        "passages": [passage_of(passage) for passage in passages],
        "dropped_sentences": answer.dropped,
        "dropped_passages": dropped_passages,
    }


def document_of(row: DocumentRow) -> Object:
    """A document in the store."""
    return {
        "id": row.id,
        "collection": row.collection,
        "path": row.path,
        "title": row.title,
        "product": row.product,
        "version": row.version,
        "sha256": row.sha256,
        "pages": row.pages,
        "pages_without_text": list(row.blank),
        "chunks": row.chunks,
    }


def done_of(done: Done) -> Object:
    """What became of a document that was ingested."""
    return {
        "path": done.path,
        "outcome": done.outcome,
        "chunks": done.chunks,
        "embedded": done.embedded,
        "pages": done.pages,
        "pages_without_text": list(done.pages_without_text),
        "error": done.error,
    }


def _place(passage: Passage) -> Object:
    return {
        "document": _source(passage.sources[0]),
        "page": passage.page,
        "page_end": passage.page_end,
        "section": passage.headings[-1] if passage.headings else "",
        "headings": list(passage.headings),
    }


def _source(source: Source) -> Object:
    return {
        "id": source.id,
        "collection": source.collection,
        "path": source.path,
        "title": source.title,
        "product": source.product,
        "version": source.version,
    }
