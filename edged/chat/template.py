"""Messages to prompt ids: a chat template, and the guard that keeps its control tokens its own.

Rules:
- Control tokens come from the template only. Every other string of a request is text, whatever it spells; its ids are
  those of plain text. See `_Guard` for how.
- Roles: system, user, assistant, tool; developer is another word for system. Anything else is refused.
- A list of text parts as content is joined by newlines.
- If the template refuses a conversation with a system message, that message is put before the first user's text, with
  an empty line between, and the template is asked again.
- BOS is put in front if the model asks for it and the template has not written it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edged.errors import BadRequest, BadTemplate
from edged.tokenizers import Tokenizer
from edged.tokenizers.base import as_text

if TYPE_CHECKING:
    from edged.chat.sandbox import Sandbox

ROLES = ("system", "user", "assistant", "tool")
_DEEPEST = 60  # lists and objects inside each other


class ChatTemplate:
    """The chat template of one model. `name` says which it is; `source` is None if there is none.

    Compiled when first rendered, so that a faulty template hinders nothing but chat.
    """

    def __init__(self, name: str, source: str | None, tokenizer: Tokenizer) -> None:
        self.name = name
        self.source = source
        self._tokenizer = tokenizer

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        fold_system: bool = True,
    ) -> list[int]:
        """Prompt ids of a conversation.

        Raises BadTemplate if there is no template, or it is faulty, or refuses the conversation; BadRequest for
        messages that are not as described above.
        """
        checked = [_checked(message, f"messages[{i}]") for i, message in enumerate(messages)]
        variables = {"tools": _json(tools, "tools") if tools else None, "add_generation_prompt": add_generation_prompt}
        try:
            return self._render(checked, variables)
        except BadTemplate as refusal:
            folded = _folded(checked) if fold_system and self._is_refusal(refusal) else None
            if folded is None:
                raise
            try:
                return self._render(folded, variables)
            except BadTemplate:
                raise refusal from None

    def _render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> list[int]:
        guard = _Guard(self._tokenizer, self._first_characters, {"messages": messages, **variables})
        if not guard.needed:
            return self._encode(guard, guard.variables)
        partly = self._encode(guard, guard.partly())
        wholly = self._encode(guard, guard.wholly())
        return partly if self._control(partly) == self._control(wholly) else wholly

    def _encode(self, guard: _Guard, variables: dict[str, Any]) -> list[int]:
        sandbox, template = self._compiled
        text = sandbox.run(template, {**self._token_texts, **variables}, guard.marks)
        tokenizer = self._tokenizer
        ids = tokenizer.encode(text, special=True, literal=guard.literal)
        if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
            ids.insert(0, tokenizer.bos_id)
        return ids

    @cached_property
    def _compiled(self) -> tuple[Sandbox, Any]:
        if self.source is None:
            raise BadTemplate(
                "the model has no chat template, and its vocabulary fits none of the built-in ones",
                hint="give one with --chat-template, or use completions",
            )
        from edged.chat.sandbox import Sandbox  # jinja2 takes 50 ms to import

        sandbox = Sandbox()
        return sandbox, sandbox.load(self.source)

    @cached_property
    def _token_texts(self) -> dict[str, str]:
        """Variables such as bos_token."""
        vocab = self._tokenizer.vocab
        ids = {"bos_token": vocab.bos_id, "eos_token": vocab.eos_id, "unk_token": vocab.unk_id}
        return {name: "" if id is None else vocab.piece(id).decode("utf-8", "replace") for name, id in ids.items()}

    @cached_property
    def _first_characters(self) -> frozenset[str]:
        return self._tokenizer.control_beginnings()

    def _control(self, ids: Iterable[int]) -> list[int]:
        return [id for id in ids if self._tokenizer.is_control(id)]

    @staticmethod
    def _is_refusal(error: BadTemplate) -> bool:
        from edged.chat.sandbox import RefusedError

        return isinstance(error.__cause__, RefusedError)


class _Guard:
    """Keeps the strings of a request from becoming control tokens.

    A control token can only be found where its first character stands. So that character is replaced, in the strings of
    the request, by a mark that occurs nowhere else; the template is rendered; control tokens are found; and then marks
    become characters again, before the text between control tokens is encoded. Templates may trim, cut, join or escape
    strings as they like.

    Templates also look into strings ("if '</think>' in content"), which replacing every such character would blind.
    Therefore only whole control tokens are marked at first (`partly`). That leaves pieces from which a template could
    put one together, so the stricter form (`wholly`) is rendered as well, and the first counts only if it has the same
    control tokens.
    """

    def __init__(self, tokenizer: Tokenizer, first_characters: frozenset[str], variables: dict[str, Any]) -> None:
        self.variables = variables
        self._tokenizer = tokenizer
        present = set().union(*_strings(variables))
        characters = sorted(first_characters & present)
        # U+E000..: private use; 6400 of them, for one or two characters
        unused = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in present)
        self._marks = dict(zip(characters, unused, strict=False))
        if len(self._marks) < len(characters):
            raise BadRequest("the messages use every private-use character", param="messages")
        self.needed = bool(characters)
        self.marks = tuple(self._marks.values())
        self.literal = {ord(mark): character for character, mark in self._marks.items()}

    def partly(self) -> dict[str, Any]:
        """Variables with the first character of every whole control token marked."""
        return self._replaced(self._mark_tokens)

    def wholly(self) -> dict[str, Any]:
        """Variables with every character marked that a control token may begin with."""
        table = str.maketrans(self._marks)
        return self._replaced(lambda text: text.translate(table))

    def _replaced(self, replace: Callable[[str], str]) -> dict[str, Any]:
        return {name: _map_strings(value, replace) for name, value in self.variables.items()}

    def _mark_tokens(self, text: str) -> str:
        out = []
        for part in self._tokenizer.special_parts(text):
            if isinstance(part, str):
                out.append(part)
            else:
                piece = self._tokenizer.vocab.piece(part).decode("utf-8", "replace")
                out.append(self._marks[piece[0]] + piece[1:] if self._tokenizer.is_control(part) else piece)
        return "".join(out)


def _strings(value: Any) -> Iterator[str]:
    """All strings of a request that a template may print, keys too; not the roles, which are from a fixed set."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key != "role" or item not in ROLES:
                yield key
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _map_strings(value: Any, replace: Callable[[str], str]) -> Any:
    """The same with each of those strings replaced."""
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, dict):
        return {
            replace(key): item if key == "role" and item in ROLES else _map_strings(item, replace)
            for key, item in value.items()
        }
    return [_map_strings(item, replace) for item in value] if isinstance(value, list) else value


def _checked(message: Any, where: str) -> dict[str, Any]:
    """A message with its role known and its content text or None. Raises BadRequest."""
    message = _json(message, where)
    if not isinstance(message, dict):
        raise BadRequest(f"{where} is not an object", param=where)
    role = message.get("role")
    if role == "developer":
        role = message["role"] = "system"
    if role not in ROLES:
        raise BadRequest(f"{where}.role is {role!r}", param=f"{where}.role", hint="one of " + ", ".join(ROLES))
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = "\n".join(_text_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    elif content is not None and not isinstance(content, str):
        raise BadRequest(f"{where}.content is neither text nor a list of text parts", param=f"{where}.content")
    return message


def _text_part(part: Any, where: str) -> str:
    if isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
        return part["text"]
    raise BadRequest(f"{where} is not a text part; this model reads text only", param=where)


def _json(value: Any, where: str, depth: int = 0) -> Any:
    """A copy in plain dicts, lists and scalars, without lone surrogates. Raises BadRequest."""
    if isinstance(value, str):
        return as_text(value)
    if value is None or isinstance(value, int | float):
        return value
    if depth == _DEEPEST:
        raise BadRequest(f"{where} nests deeper than {_DEEPEST}", param=where)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {as_text(key): _json(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item, where, depth + 1) for item in value]
    raise BadRequest(f"{where} holds a {type(value).__name__}, which is not JSON", param=where)


def _folded(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """System messages put before the first user's text; None if there is no such pair."""
    system = [message["content"] or "" for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    first = next((i for i, message in enumerate(others) if message["role"] == "user"), None)
    if not system or first is None:
        return None
    content = "\n\n".join([*system, others[first]["content"] or ""])
    return [*others[:first], {**others[first], "content": content}, *others[first + 1 :]]
