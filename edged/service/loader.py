"""Load the models a configuration names: file, tokenizer, chat template, engine. Shared by the daemon and the commands.

Imports no asyncio: `edged run` goes through here too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edged.api.context import Loaded, LoadedEmbedder, LoadedModel
from edged.config import Config
from edged.engine.request import Event, Sink
from edged.errors import BadConfig, BadModel
from edged.store.folder import find

if TYPE_CHECKING:
    from edged.engine.machine import Machine
    from edged.gguf import Model

Post = Callable[[list[tuple[Sink, Event]]], None]


def load(config: Config, post: Post | None = None, machine: Machine | None = None) -> LoadedModel:
    """The model that generates, ready to answer; `post` as in Engine, `machine` if others are loaded too.

    Raises NotFound, BadModel, BadConfig, BadKernels or LimitTooLow.
    """
    path = find(config.model.path)
    with _opened(path, config) as model:
        from edged import chat, engine, tokenizers

        tokenizer = tokenizers.open(model.meta)
        template = chat.open(model.meta, tokenizer, _override(config.model.chat_template))
        running = engine.open(config.engine, model, post=post, machine=machine)

    def close() -> None:
        running.close()
        model.close()

    name = config.model.name or model.name or path.stem
    return LoadedModel(name, running, tokenizer, template, int(path.stat().st_mtime), model.n_params,
                       model.check_unchanged, close)  # fmt: skip


def load_embedder(config: Config, machine: Machine | None = None) -> LoadedEmbedder:
    """The embedding model; without embedding.model the one of the catalogue. Raises as `load`."""
    path = find(config.embedding.model) if config.embedding.model else find_embedder()
    with _opened(path, config) as model:
        from edged import tokenizers
        from edged.engine import embedder

        tokenizer = tokenizers.open(model.meta)
        made = embedder.open(config.engine, model, embedding=config.embedding, machine=machine)

    def close() -> None:
        made.close()
        model.close()

    name = config.embedding.name or model.name or path.stem
    return LoadedEmbedder(name, made, tokenizer, model.fingerprint().hex(), int(path.stat().st_mtime),
                          model.check_unchanged, close)  # fmt: skip


def load_all(config: Config, post: Post | None = None) -> Loaded:
    """What a daemon serves: the model that generates, the embedding model, or both, on one machine.

    With embedding.model and without model.path there is no model that generates. Raises as `load`, and BadModel if an
    embedding model is named where one that generates should be.
    """
    if not config.embedding.model:
        model = load(config, post)
        return Loaded(model, None, model.close)
    find(config.embedding.model)  # missing files are told before anything is loaded
    if config.model.path:
        find(config.model.path)

    from edged.engine.machine import Machine

    machine = Machine(config.engine)
    made: list[LoadedModel | LoadedEmbedder] = []

    def close() -> None:
        for each in made:
            each.close()
        machine.close()

    try:
        generator = load(config, post, machine) if config.model.path else None
        made += [generator] if generator else []
        embedder = load_embedder(config, machine)
        made.append(embedder)
    except BaseException:
        close()
        raise
    machine.start()
    return Loaded(generator, embedder, close)


def find_embedder() -> Path:
    """The file of the embedding model that is used where none is named: that of the catalogue. Raises NotFound."""
    from edged.store.catalogue import EMBEDDING

    return find(EMBEDDING)


@contextmanager
def _opened(path: Path, config: Config) -> Iterator[Model]:
    """The model of a file, mapped and locked as configured; closed again if what follows fails."""
    from edged import gguf  # numpy comes with it: not before the model is known to be there

    model = gguf.open(path)
    try:
        # the weights' pages are mapped while Python goes on importing
        threading.Thread(target=model.prefault, name="edged-prefault", daemon=True).start()
        model.lock(config.model.mlock)
        yield model
    except BadModel as error:
        model.close()
        if str(path) not in error.message:
            raise BadModel(f"{path}: {error.message}", hint=error.hint) from error
        raise
    except BaseException:
        model.close()
        raise


def _override(path: str) -> str | None:
    if not path:
        return None
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise BadConfig(f"model.chat_template: {path}: {e}") from e
