"""Bodies of the OpenAI routes -> checked values. Every refusal is a BadRequest that names the field.

A field that is not known is ignored, as other servers do; one whose meaning would be lost is refused (UNSUPPORTED).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edged.api.fields import Fields, integer, number, refuse, strings, token_ids, wrong_type
from edged.config import ServerConfig
from edged.engine.request import Request, Sampling
from edged.errors import BadRequest, ContextFull

MAX_CHOICES = 64
"""Answers of one call: prompts times n."""

MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_TOP_LOGPROBS = 20
MAX_DEADLINE = 86_400

_UNLIMITED = 2**53
_SEED_LOW, _SEED_HIGH = -(2**63), 2**64 - 1

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "json_schema": (),
    "grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "suffix": ("",),
    "best_of": (1,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "chat_template_kwargs": ({},),
    "mirostat": (0,),
    "typical_p": (1,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
}
"""Fields refused unless they have one of these values, with which they ask for nothing."""

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True)
class Options:
    """What both generating routes share."""

    n: int
    max_tokens: int | None
    sampling: Sampling
    stops: tuple[str, ...]
    ignore_eos: bool
    deterministic: bool
    speculate: bool | None
    stream: bool
    include_usage: bool
    deadline: float | None = None
    """Seconds after which what has come is the answer."""

    def requests(self, prompts: list[tuple[int, ...]], eog_ids: frozenset[int], top_logprobs: int | None,
                 prompt_logprobs: bool = False) -> list[Request]:
        """One request for each choice: n for the first prompt, n for the second... Choice j has the seed `seed + j`."""
        return [
            Request(
                prompt=prompt,
                max_tokens=self.max_tokens,
                sampling=self._sampling(j),
                stop_ids=frozenset() if self.ignore_eos else eog_ids,
                top_logprobs=top_logprobs,
                prompt_logprobs=prompt_logprobs,
                deterministic=self.deterministic,
                speculate=self.speculate,
            )
            for prompt in prompts
            for j in range(self.n)
        ]

    def _sampling(self, j: int) -> Sampling:
        seed = self.sampling.seed
        return self.sampling if seed is None else self.sampling._replace(seed=(seed + j) % 2**64)


def read_options(fields: Fields, limits: ServerConfig, n_vocab: int) -> Options:
    """The options of a generating route."""
    refuse(fields, UNSUPPORTED)
    fields.text("model")  # any name means the loaded model
    stream = fields.flag("stream")
    return Options(
        n=fields.integer("n", 1, 1, MAX_CHOICES),
        max_tokens=_max_tokens(fields, limits),
        sampling=_sampling(fields, n_vocab),
        stops=_stops(fields.get("stop")),
        ignore_eos=fields.flag("ignore_eos"),
        deterministic=fields.flag("deterministic"),
        speculate=fields.flag("speculate") if fields.present("speculate") else None,
        stream=stream,
        include_usage=_include_usage(fields, stream),
        deadline=fields.number("deadline", 0, 0.001, MAX_DEADLINE) if fields.present("deadline") else None,
    )


def read_messages(fields: Fields) -> list[dict[str, str]]:
    """`messages` as {"role", "content"} with plain text. Text parts are joined by newlines; `developer` is `system`."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise wrong_type("messages", "a list of messages", messages)
    if not messages:
        raise BadRequest("messages is empty; it must hold at least one message", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def read_prompts(fields: Fields, n_vocab: int) -> list[str | tuple[int, ...]]:
    """`prompt`: a string, a list of strings, a list of token ids, or a list of such lists."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise wrong_type("prompt", "a string, a list of strings or a list of token ids", prompt)
    if not prompt:
        raise BadRequest("prompt is empty; a list must hold at least one string or token id", param="prompt")
    if len(prompt) > MAX_CHOICES and not isinstance(prompt[0], int):
        raise BadRequest(f"prompt has {len(prompt)} prompts; at most {MAX_CHOICES} are answered in one call",
                         param="prompt")
    if isinstance(prompt[0], str):
        return [*strings(prompt, "prompt")]
    if isinstance(prompt[0], list):
        return [token_ids(item, f"prompt[{i}]", n_vocab) for i, item in enumerate(prompt)]
    return [token_ids(prompt, "prompt", n_vocab)]


def check_size(prompts: list[tuple[int, ...]], n: int, limits: ServerConfig) -> None:
    """Refuse what the configured limits do not allow; the context is the engine's to check."""
    if len(prompts) * n > MAX_CHOICES:
        raise BadRequest(f"{len(prompts)} prompts with n={n} ask for {len(prompts) * n} answers; "
                         f"at most {MAX_CHOICES} are made in one call", param="n")
    for prompt in prompts:
        if not prompt:
            raise BadRequest("the prompt has no tokens", param="prompt")
        if limits.max_prompt_tokens and len(prompt) > limits.max_prompt_tokens:
            raise ContextFull(f"the prompt has {len(prompt)} tokens; server.max_prompt_tokens allows "
                              f"{limits.max_prompt_tokens}", param="prompt")


def read_chat_logprobs(fields: Fields) -> int | None:
    """`logprobs` and `top_logprobs` of the chat route: None, or the number of alternatives."""
    wanted = fields.flag("logprobs")
    top = fields.integer("top_logprobs", 0, 0, MAX_TOP_LOGPROBS)
    if top and not wanted:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return top if wanted else None


def read_completion_logprobs(fields: Fields) -> int | None:
    """`logprobs` of the completions route: None, or the number of alternatives."""
    return fields.integer("logprobs", None, 0, MAX_TOP_LOGPROBS)


def _max_tokens(fields: Fields, limits: ServerConfig) -> int | None:
    """The smaller of both names and the server's cap. null and -1 mean no limit of the caller's own."""
    asked = [fields.integer(name, -1, -1, _UNLIMITED) for name in ("max_tokens", "max_completion_tokens")]
    bounds = [bound for bound in asked if bound >= 0]
    if limits.max_tokens:
        bounds.append(limits.max_tokens)
    return min(bounds, default=None)


def _sampling(fields: Fields, n_vocab: int) -> Sampling:
    """Defaults are those of Sampling; `repetition_penalty` is another name of `repeat_penalty`."""
    base = Sampling()
    penalty = "repeat_penalty" if fields.present("repeat_penalty") else "repetition_penalty"
    seed = fields.get("seed")
    return Sampling(
        temperature=fields.number("temperature", base.temperature, 0, 1000),
        top_k=fields.integer("top_k", base.top_k, 0, 2**31 - 1),
        top_p=fields.number("top_p", base.top_p, 0, 1),
        min_p=fields.number("min_p", base.min_p, 0, 1),
        repeat_penalty=fields.number(penalty, base.repeat_penalty, 0.01, 100),
        presence_penalty=fields.number("presence_penalty", base.presence_penalty, -2, 2),
        frequency_penalty=fields.number("frequency_penalty", base.frequency_penalty, -2, 2),
        repeat_last_n=fields.integer("repeat_last_n", base.repeat_last_n, -1, 2**31 - 1),
        logit_bias=_logit_bias(fields.get("logit_bias"), n_vocab),
        seed=None if seed is None else integer(seed, "seed", _SEED_LOW, _SEED_HIGH) % 2**64,
    )


def _logit_bias(value: Any, n_vocab: int) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise wrong_type("logit_bias", "an object of token ids and numbers", value)
    biases = {}
    for key, bias in value.items():
        token = int(key) if key.isascii() and key.isdecimal() and len(key) < 10 else -1
        if not 0 <= token < n_vocab:
            raise BadRequest(f"logit_bias has the key {key[:40]!a}; a token id must be an integer between 0 and "
                             f"{n_vocab - 1}", param="logit_bias")
        if token in biases:
            raise BadRequest(f"logit_bias has token {token} twice", param="logit_bias")
        biases[token] = number(bias, f"logit_bias[{token}]", -100, 100)
    return tuple(biases.items())


def _stops(value: Any) -> tuple[str, ...]:
    """Up to MAX_STOPS strings. An empty string stops nothing: some clients send it for an empty input field."""
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list):
        raise wrong_type("stop", "a string or a list of strings", value)
    stops = strings(stops, "stop")
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"stop has {len(stops)} strings; at most {MAX_STOPS} are possible", param="stop")
    if any(len(stop) > MAX_STOP_LENGTH for stop in stops):
        raise BadRequest(f"a stop string is longer than {MAX_STOP_LENGTH} characters", param="stop")
    return tuple(stop for stop in stops if stop)


def _include_usage(fields: Fields, stream: bool) -> bool:
    value = fields.get("stream_options")
    if value is None:
        return False
    if not isinstance(value, dict):
        raise wrong_type("stream_options", "an object", value)
    if not stream:
        raise BadRequest("stream_options needs stream to be true", param="stream_options")
    return Fields(value).flag("include_usage")


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise wrong_type(where, "an object", message)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong_type(f"{where}.role", f"one of {', '.join(ROLES)}", role)
    if message.get("tool_calls") or message.get("function_call"):
        raise BadRequest(f"{where} calls a tool; tools are not supported", param=where, code="unsupported_parameter")
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""  # so clients send back an answer that had no text
    return {"role": ROLES[role], "content": _content(content, f"{where}.content")}


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(where, "a string or a list of text parts", content)
    for i, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text":
            raise BadRequest(f"{where} may hold only parts of the type text", param=where,
                             code="unsupported_parameter")
        if not isinstance(part.get("text"), str):
            raise wrong_type(f"{where}[{i}].text", "a string", part.get("text"))
    return "\n".join(part["text"] for part in content)
