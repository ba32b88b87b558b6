"""Templates for models that have none of their own.

The rule: the first row of BUILTIN whose control tokens the vocabulary has all of. Each folds a system message as the
model family's own template does.
"""

from __future__ import annotations

from typing import NamedTuple

from edged.tokenizers import Tokenizer


class Builtin(NamedTuple):
    """A named template and the control tokens it writes."""

    name: str
    tokens: tuple[str, ...]
    source: str


_CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

_GEMMA = """\
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- set ns.system = ns.system + message.content + '\\n\\n' %}
{%- else %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}
{{- ns.system + (message.content or '') | trim + '<end_of_turn>\\n' }}
{%- set ns.system = '' %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<start_of_turn>model\\n' }}
{%- endif %}"""

_LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + (message.content or '') | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

BUILTIN = (
    Builtin("chatml", ("<|im_start|>", "<|im_end|>"), _CHATML),
    Builtin("gemma", ("<start_of_turn>", "<end_of_turn>"), _GEMMA),
    Builtin("llama3", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), _LLAMA3),
)


def choose(tokenizer: Tokenizer) -> Builtin | None:
    """The template that fits a vocabulary, or None."""
    for builtin in BUILTIN:
        ids = [tokenizer.token_id(token) for token in builtin.tokens]
        if all(id is not None and tokenizer.is_control(id) for id in ids):
            return builtin
    return None
