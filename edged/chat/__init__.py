"""Chat templates: messages to prompt ids, with the model's own Jinja template in a sandbox.

`open(meta, tokenizer, override=None) -> ChatTemplate`. Neither opening nor importing this loads jinja2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edged.chat.builtin import choose
from edged.chat.template import ChatTemplate
from edged.tokenizers import Tokenizer

__all__ = ["ChatTemplate", "open"]


def open(meta: Mapping[str, Any], tokenizer: Tokenizer, override: str | None = None) -> ChatTemplate:
    """The template to use: `override` (Jinja text), else the model's own, else a built-in one that its vocabulary fits.

    Raises nothing: what is wrong with a template is told by `render`.
    """
    if override:
        return ChatTemplate("override", override, tokenizer)
    own = meta.get("tokenizer.chat_template")
    if isinstance(own, str) and own.strip():
        return ChatTemplate("model", own, tokenizer)
    builtin = choose(tokenizer)
    return ChatTemplate(builtin.name, builtin.source, tokenizer) if builtin else ChatTemplate("none", None, tokenizer)
