"""What a route needs from the daemon around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from edged.config import RagConfig, ServerConfig
from edged.engine.request import EmbedderLike, EngineLike
from edged.errors import ContextFull

if TYPE_CHECKING:
    from edged.chat import ChatTemplate
    from edged.tokenizers import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True)
class LoadedModel:
    """A model that answers. `created`: seconds since 1970, of its file. `n_params`: its weights.

    `check` raises ModelChanged if the file did."""

    name: str
    engine: EngineLike
    tokenizer: Tokenizer
    chat: ChatTemplate
    created: int = 0
    n_params: int = 0
    check: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None

    def check_text(self, *texts: str) -> None:
        """Raise ContextFull for text that no tokens can make short enough: to tokenise it would take long."""
        _check_text(texts, self.tokenizer, self.engine.info.n_ctx, "shorten the text or raise engine.context")


@dataclass(frozen=True)
class LoadedEmbedder:
    """A model that makes vectors. `fingerprint` tells it from every other; the rest as in LoadedModel."""

    name: str
    engine: EmbedderLike
    tokenizer: Tokenizer
    fingerprint: str
    created: int = 0
    check: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None

    def check_text(self, *texts: str, param: str | None = None) -> None:
        """As LoadedModel.check_text. param: the field that holds the text."""
        _check_text(texts, self.tokenizer, self.engine.info.n_ctx, "split the text", param)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, with what the model puts around it."""
        ids = self.tokenizer.encode(text, add_special=True)
        eos = self.tokenizer.eos_id
        if self.engine.info.pooling == "last" and eos is not None and (not ids or ids[-1] != eos):
            ids.append(eos)  # what its vector is taken from
        return ids


@dataclass(frozen=True)
class Loaded:
    """The models of a daemon; at least one. `close` closes both and what they share."""

    model: LoadedModel | None
    embedder: LoadedEmbedder | None = None
    close: Callable[[], None] = lambda: None

    @property
    def all(self) -> list[LoadedModel | LoadedEmbedder]:
        """Those that are there, the one that generates first."""
        return [each for each in (self.model, self.embedder) if each is not None]


def _check_text(texts: tuple[str, ...], tokenizer: Tokenizer, n_ctx: int, hint: str, param: str | None = None) -> None:
    n_chars, most = sum(map(len, texts)), n_ctx * tokenizer.longest
    if n_chars > most:
        raise ContextFull(f"{param or 'the text'} has {n_chars} characters; the context of {n_ctx} tokens holds at "
                          f"most {most}", hint=hint, param=param)


@dataclass(frozen=True)
class Health:
    """`ready` only when requests are answered; otherwise `reasons` say why not. `warnings`: what slows answers down."""

    status: str
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        return self.status == "ok"


class Context(Protocol):
    """The daemon, as far as a route may see it."""

    limits: ServerConfig
    rag: RagConfig

    def model(self) -> LoadedModel:
        """The model that answers. Raises NotReady while it is loading or when the daemon is stopping, and NotFound
        (code model_not_found) if the daemon has none."""

    def embedder(self) -> LoadedEmbedder:
        """The model that makes vectors. Raises as `model`."""

    def loaded(self) -> list[LoadedModel | LoadedEmbedder]:
        """Both, the one that answers first, or the one there is. Raises NotReady."""

    async def manuals(self, work: Callable[..., T], *args: Any, writing: bool = False) -> T:
        """Run work(manuals, *args) in the thread that searches the store, or in the one that ingests, in order.

        Raises as `embedder`, and what `work` raises.
        """

    def health(self) -> Health:
        """How the daemon is; never waits."""

    def counters(self) -> dict[str, float]:
        """Figures of the HTTP side, for /metrics."""

    def machine(self) -> dict[str, float]:
        """Figures of the process and the board, for /metrics."""

    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        """Run work that takes long, such as tokenising, beside the event loop, in order."""


@dataclass
class Reply:
    """An answer: a whole `body`, or `parts` that come one by one. `cancel` is called when it is over in any way."""

    status: int
    body: bytes = b""
    parts: AsyncIterator[bytes] | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    cancel: Callable[[], None] = lambda: None
