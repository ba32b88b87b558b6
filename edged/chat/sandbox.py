"""A Jinja environment for templates that come with a model, and may be hostile.

`Sandbox().load(source) -> template` and `.run(template, variables) -> text`; both raise only BadTemplate.

A template reaches the filters, tests, globals and methods listed here and nothing else: no imports, no attributes of
Python objects, no formatting languages. What it may cost is metered (meter.py).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Namespace
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from edged.chat.meter import UNIT, Meter, Rounds, refuse_namespaces
from edged.errors import BadTemplate

LONGEST_SOURCE = 128 * 1024  # characters; the templates of large models have about 20 000


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FILTERS = _names("""
    abs capitalize count d default dictsort e escape first float groupby indent int items join last length list lower
    map max min reject rejectattr replace reverse safe select selectattr sort string sum title trim unique upper
""")
_TESTS = _names("""
    boolean defined divisibleby eq equalto == even false float ge gt greaterthan > >= in integer iterable le lt lessthan
    < <= lower mapping ne != none number odd sameas sequence string true undefined upper
""")
_METHODS: dict[type, frozenset[str]] = {
    str: _names("""
        capitalize count endswith find index isalnum isalpha isdecimal isdigit islower isnumeric isspace istitle isupper
        join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split
        splitlines startswith strip swapcase title upper
    """),
    dict: _names("get items keys values"),
    list: _names("count index"),
    tuple: _names("count index"),
    LoopContext: _names("""
        changed cycle depth depth0 first index index0 last length nextitem previtem revindex revindex0
    """),
}
_LARGEST_INDENT = 8
# ahead of what their operands cost, so that a unit is about a microsecond whatever it is spent on
_CALL = 8 * UNIT
_FILTER = 4 * UNIT
_CALL_VARIABLES = ("_loop_vars", "_block_vars")  # what jinja2 passes along
_NOT_ASCII = re.compile("[^\0-\x7f]")
# names of the filters that _Instrument puts into a template
_METERED, _PRINTED, _ROUNDS = "metered value", "printed value", "metered rounds"


class RefusedError(TemplateError):
    """The template called raise_exception."""


class GenerationTag(Extension):
    """`{% generation %}..{% endgeneration %}` marks training data in some templates; here it only shows its body."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body as it stands."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment; one rendering at a time."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants are computed while rendering, where they are metered
            finalize=_printed,
            extensions=[LoopControlExtension, GenerationTag],
        )
        self.globals = {
            "range": self.globals["range"],
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        filters: dict[str, Any] = {name: self.filters[name] for name in _FILTERS} | {"tojson": _tojson}
        self.filters = {name: self._metered(name, filter, is_filter=True) for name, filter in filters.items()}
        self.filters |= {_METERED: _metered, _PRINTED: _printed, _ROUNDS: _rounds}
        tests: dict[str, Any] = {name: self.tests[name] for name in _TESTS}
        self.tests = {name: self._metered(name, test, is_filter=False) for name, test in tests.items()}
        self.meter = Meter({})
        self.marks: Collection[str] = ()
        self._lock = threading.Lock()

    def load(self, source: str) -> Template:
        """Compile. Raises BadTemplate with the line."""
        if len(source) > LONGEST_SOURCE:
            raise BadTemplate(f"the chat template has {len(source)} characters; at most {LONGEST_SOURCE} are accepted")
        try:
            return self.from_string(_Instrument().visit(self.parse(source)))
        except TemplateError as e:
            where = f" (line {line})" if (line := getattr(e, "lineno", None)) else ""
            raise BadTemplate(f"the chat template cannot be compiled: {e.message}{where}") from e
        except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
            raise BadTemplate(f"the chat template cannot be compiled: {e}") from e

    def run(self, template: Template, variables: Mapping[str, Any], marks: Collection[str] = ()) -> str:
        """Render. `marks`: characters that JSON must not escape.

        Raises BadTemplate, with a RefusedError as its cause if the template itself refuses the conversation.
        """
        with self._lock:
            try:
                self.meter, self.marks = Meter(variables), marks
                return "".join(self.meter.output(template.root_render_func(template.new_context(dict(variables)))))
            except BadTemplate:
                raise
            except RefusedError as e:
                raise BadTemplate(f"the chat template refuses this conversation: {e.message}") from e
            except Exception as e:  # whatever an expression of a template can raise
                raise BadTemplate(f"the chat template failed: {str(e) or type(e).__name__}") from e

    # Called by compiled templates.

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Only listed methods, and what a template itself put into a namespace."""
        if isinstance(obj, Namespace):
            return not attr.startswith("_")
        return attr in _METHODS.get(type(obj), ())

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`: of an object of the conversation, a listed method or a key."""
        if isinstance(obj, dict) and attribute not in _METHODS[dict]:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """What is not listed."""
        raise BadTemplate(f"the chat template uses {attribute!r} of a {type(obj).__name__}, which is not supported")

    def wrap_str_format(self, value: Any) -> None:
        """str.format is not among the methods."""

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A macro, a global or a method."""
        meter, owner = self.meter, getattr(obj, "__self__", None)
        operands = (owner, *args, *(value for name, value in kwargs.items() if name not in _CALL_VARIABLES))
        meter.pay(_CALL)
        meter.charge(*operands)
        if not isinstance(obj, Macro) and obj is not Namespace:
            refuse_namespaces(operands)
        if isinstance(owner, str):
            meter.grow(obj.__name__, *((*args, owner) if obj.__name__ == "join" else (owner, *args)))
        return meter.kept(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An arithmetic operator."""
        self.meter.binary(operator, left, right)
        return self.meter.kept(super().call_binop(context, operator, left, right))

    def _metered(self, name: str, function: Callable[..., Any], *, is_filter: bool) -> Callable[..., Any]:
        """A filter or test that pays for its operands and its result."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            operands = args[first:]
            self.meter.pay(_FILTER)
            self.meter.charge(*operands, *kwargs.values())
            if is_filter:
                refuse_namespaces((*operands, *kwargs.values()))
            self.meter.grow(name, *operands, **kwargs)
            return self.meter.kept(function(*args, **kwargs))

        return metered


class _Instrument(NodeTransformer):
    """Shows the meter what jinja2 does without a call: loops, literals, slices, comparisons, `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise BadTemplate(f"the chat template has a recursive loop (line {node.lineno}), which is not supported")
        text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _ROUNDS, nodes.Const(text))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filtered(node.expr, _METERED)
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, _METERED)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes[:] = [_filtered(part, _PRINTED) for part in node.nodes]
        return _filtered(node, _METERED)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, _METERED) if isinstance(node.arg, nodes.Slice) else node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, _METERED) if node.ctx == "load" else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, _METERED)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, _METERED)


def _filtered(node: nodes.Node, name: str, *args: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


@pass_context
def _metered(context: Context, value: Any) -> Any:
    return context.environment.meter.kept(value)  # type: ignore[attr-defined]


@pass_context
def _printed(context: Context, value: Any) -> Any:
    refuse_namespaces((value,))
    return context.environment.meter.kept(value)  # type: ignore[attr-defined]


@pass_context
def _rounds(context: Context, value: Any, text: int) -> Rounds:
    return Rounds(value, context.environment.meter, text)  # type: ignore[attr-defined]


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, as the templates of Hugging Face models expect it."""
    if indent is not None:
        indent = max(0, min(int(indent), _LARGEST_INDENT))
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    if not ensure_ascii:
        return text
    marks = context.environment.marks  # type: ignore[attr-defined]
    return _NOT_ASCII.sub(lambda match: match[0] if match[0] in marks else json.dumps(match[0])[1:-1], text)


def _raise_exception(message: Any) -> NoReturn:
    raise RefusedError(str(message))


def _strftime_now(form: str) -> str:
    return time.strftime(str(form)[:256])
