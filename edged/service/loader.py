"""Load the model a configuration names: file, tokenizer, chat template, engine. Shared by the daemon and the commands.

Imports no asyncio: `edged run` goes through here too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from edged.api.context import LoadedModel
from edged.config import Config
from edged.engine.request import Event, Sink
from edged.errors import BadConfig
from edged.store.folder import find

Post = Callable[[list[tuple[Sink, Event]]], None]


def load(config: Config, post: Post | None = None) -> LoadedModel:
    """The model, ready to answer; `post` as in Engine.

    Raises NotFound, BadModel, BadConfig, BadKernels or LimitTooLow.
    """
    path = find(config.model.path)

    from edged import gguf  # numpy comes with it: not before the model is known to be there

    model = gguf.open(path)
    try:
        # the weights' pages are mapped while Python goes on importing
        threading.Thread(target=model.prefault, name="edged-prefault", daemon=True).start()
        model.lock(config.model.mlock)

        from edged import chat, engine, tokenizers

        tokenizer = tokenizers.open(model.meta)
        template = chat.open(model.meta, tokenizer, _override(config.model.chat_template))
        running = engine.open(config.engine, model, post=post)
    except BaseException:
        model.close()
        raise

    def close() -> None:
        running.close()
        model.close()

    name = config.model.name or model.name or path.stem
    return LoadedModel(name, running, tokenizer, template, int(path.stat().st_mtime), model.check_unchanged, close)


def _override(path: str) -> str | None:
    if not path:
        return None
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise BadConfig(f"model.chat_template: {path}: {e}") from e
