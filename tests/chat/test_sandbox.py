"""Templates cannot escape, cannot run on, cannot fill memory; and what templates of real models use works."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.chat import meter
from edged.chat.sandbox import LONGEST_SOURCE, Sandbox
from edged.errors import BadTemplate

MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "  hi there  "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhello"},
]
SANDBOX = Sandbox()


def render(source: str, **variables: Any) -> str:
    return SANDBOX.run(SANDBOX.load(source), {"messages": MESSAGES, **variables})


NAMESPACE = "{% set ns = namespace(x='a', l=[], m=[], n=3) %}"
ROUNDS = "{% for i in range(99999) %}"
FOREVER = {
    "range": "{% for i in range(10**9) %}{% endfor %}",
    "nested ranges": ROUNDS * 3 + "{% endfor %}" * 3,
    "nested lists": "{% set l = range(1000)|list %}"
    "{% for a in l %}{% for b in l %}{% for c in l %}{% endfor %}{% endfor %}{% endfor %}",
    "loop variable": ROUNDS + "{% if loop.length %}{% endif %}" + ROUNDS + "{% endfor %}{% endfor %}",
    "lazy filters": ROUNDS + "{% for x in range(9999)|map('string')|map('upper') %}{% endfor %}{% endfor %}",
    "macro tree": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(100) }}",
    "macro recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "block recursion": "{% block b %}{{ self.b() }}{% endblock %}",
    "comparing trees": NAMESPACE + ROUNDS + "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}"
    "{{ ns.l == ns.m }}",
    "comparing text": "{% set s = 'a' * 9000000 %}{% set t = 'a' * 9000000 %}" + ROUNDS + "{{ s == t }}{% endfor %}",
    "searching text": "{% set s = 'a' * 9000000 %}" + ROUNDS + "{{ 'b' in s }}{% endfor %}",
    "slicing text": "{% set s = 'a' * 9000000 %}" + ROUNDS + "{% set t = s[1:] %}{% endfor %}",
    "sorting": "{% set l = ['a' * 1000] * 500 %}" + ROUNDS + "{% set z = l|sort %}{% endfor %}",
    "numbers": NAMESPACE + ROUNDS + "{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "power": "{{ 2 ** (10 ** 8) }}",
    "refund": "{% set x = range(9)|map('metered rounds', -10**12)|list %}" + ROUNDS * 2 + "{% endfor %}" * 2,
}
HUGE = {
    "times": "{{ 'a' * 10**9 }}",
    "times, reversed": "{{ 10**9 * 'a' }}",
    "list times": "{{ [1] * 10**9 }}",
    "doubled with ~": NAMESPACE + ROUNDS + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubled with +": NAMESPACE + ROUNDS + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "tree of lists": NAMESPACE + ROUNDS + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "tree of dicts": NAMESPACE + ROUNDS + "{% set ns.l = dict(a=ns.l, b=ns.l) %}{% endfor %}{{ ns.l|tojson }}",
    "namespace in itself": NAMESPACE + "{% set ns.l = [ns, ns] %}{{ ns }}",
    "printed namespace": NAMESPACE + "{% set ns.y = ns %}{{ ns }}",
    "joined namespace": NAMESPACE + "{{ ns ~ '' }}",
    "filtered namespace": NAMESPACE + "{{ ns|string }}",
    "format": "{{ '%1000000000d' % 1 }}",
    "str.format": "{{ '{:>1000000000}'.format(1) }}",
    "format filter": "{{ '%1000000000d'|format(1) }}",
    "center": "{{ 'x'|center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "zfill": "{{ 'x'.zfill(10**9) }}",
    "replace filter": "{% set s = 'a' * 60000 %}{{ s|replace('a', s)|length }}",
    "replace method": "{% set s = 'a' * 60000 %}{{ s.replace('a', s)|length }}",
    "replace nothing": "{% set s = 'a' * 60000 %}{{ s.replace('', s)|length }}",
    "join filter": "{% set s = 'a' * 1000000 %}{{ range(90000)|join(s)|length }}",
    "join method": "{% set s = 'a' * 1000000 %}{{ s.join(['b'] * 10000)|length }}",
    "indent": "{% set s = '\n' * 1000000 %}{{ s|indent(1000000)|length }}",
    "indented JSON": "{% set l = range(90000)|list %}{% for i in l %}{% set t = l|tojson(indent=100) %}{% endfor %}",
    "template text": ROUNDS + "x" * 90_000 + "{% endfor %}",
    "template text in a macro": "{% macro f() %}" + "x" * 90_000 + "{% endmacro %}" + ROUNDS + "{{ f() }}{% endfor %}",
    "template text in a variable": ROUNDS + "{% set z %}" + "x" * 90_000 + "{% endset %}{% endfor %}",
    "escaped": "{% set s = '&' * 1000000 %}{% for i in range(99999) %}{% set z = s|e %}{% endfor %}",
}
INSIDE = {
    "mro": "{{ ''.__class__.__mro__ }}",
    "mro by item": "{{ ''['__class__']['__mro__'] }}",
    "cycler": "{{ cycler.__init__.__globals__ }}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "namespace's globals": "{{ namespace.__init__.__globals__ }}",
    "range's globals": "{{ range.__globals__ }}",
    "self": "{{ self._TemplateReference__context.environment }}",
    "loop": "{% for x in [1] %}{{ loop._iterable.x }}{% endfor %}",
    "macro": "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
    "caller": "{% macro f() %}{{ caller._func.__globals__ }}{% endmacro %}{% call f() %}{% endcall %}",
    "attr": "{{ ''|attr('__class__') }}",
    "map attribute": "{{ (['']|map(attribute='__class__')|first).__mro__ }}",
    "changing a message": "{{ messages.append(1) }}",
    "changing a dict": "{{ messages[0].update(x=1) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "from": "{% from 'os' import path %}",
    "extends": "{% extends '/etc/passwd' %}",
}
MALFORMED = {
    "unknown tag": "{% foo %}",
    "unknown filter": "{{ 1|foo }}",
    "unclosed": "{% if 1 %}",
    "unclosed expression": "{{ 1",
    "parentheses": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "nots": "{{ " + "not " * 30_000 + "1 }}",
    "ifs": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "fors": "{% for a in [1] %}" * 40 + "{% endfor %}" * 40,
    "long": "x" * (LONGEST_SOURCE + 1),
}


@pytest.mark.parametrize("source", (cases := FOREVER | HUGE | INSIDE | MALFORMED).values(), ids=cases)
def test_c01_hostile_templates(source: str) -> None:
    with pytest.raises(BadTemplate):
        render(source)
    assert render("{{ messages|length }}") == "3"  # and the sandbox still works


def test_c01_nothing_is_written(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for source in INSIDE.values():
        with pytest.raises(BadTemplate):
            render(source)
    assert not list(tmp_path.iterdir())
    assert len(MESSAGES) == 3 and MESSAGES[0] == {"role": "system", "content": "be brief"}


def test_c01_the_budget_decides_not_the_clock() -> None:
    rounds = "{% for i in range(99999) %}{% endfor %}"
    assert render(rounds * (meter.BUDGET // 200_100)) == ""  # the range is paid for as a value and round by round
    with pytest.raises(BadTemplate, match="too many steps"):
        render(rounds * (meter.BUDGET // 199_998 + 1))


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(90000) %}{% set x = 0.5 in range(100000) %}{% endfor %}",
        "{% for i in range(90000) %}{% set x = range(100000)|sum %}{% endfor %}",
        "{% set r = range(100000) %}{% for i in range(90000) %}{% set x = r|max %}{% endfor %}",
        "{% for i in range(99999) %}{{ loop.cycle(*range(100000)) }}{% endfor %}",
        "{{ 'a'|indent(1000000000) }}",
    ],
)
def test_c01_nothing_is_free(source: str) -> None:
    """What is large without text or a list to show for it is paid for as well."""
    with pytest.raises(BadTemplate, match="too many steps"):
        render(source)


def test_a_long_conversation_is_affordable() -> None:
    messages = [{"role": "user", "content": "x" * 1000}] * 2000
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content|trim + '</' + m.role + '>' }}{% endfor %}"
    assert len(render(source, messages=messages)) == 2000 * (1000 + 2 * 4 + 5)
    assert len(render(source, messages=[{"role": "user", "content": "x" * 8_000_000}])) > 8_000_000


OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or"]
FILTERS = ["list", "join", "string", "length", "sort", "tojson", "first", "trim", "sum"]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of expressions such as none[0]
@given(
    st.recursive(
        st.sampled_from(
            ["''", "'ab'", "7", "none", "messages", "messages[0]", "x", "loop", "namespace(a=1)", "range(5)"]
        ),
        lambda inner: st.one_of(
            st.builds("({} {} {})".format, inner, st.sampled_from(OPERATORS), inner),
            st.builds("{}|{}".format, inner, st.sampled_from(FILTERS)),
            st.builds("{}[{}]".format, inner, st.sampled_from(["0", "1:", "::-1", "'a'", "-9"])),
            st.builds(
                "{}.{}".format, inner, st.sampled_from(["a", "items()", "split()", "__class__", "upper()", "get('a')"])
            ),
            st.builds("[{}, {}]".format, inner, inner),
        ),
        max_leaves=8,
    )
)
def test_any_expression_renders_or_raises_bad_template(expression: str) -> None:
    with suppress(BadTemplate):
        assert isinstance(render("{% for x in [1, 'a'] %}{{ " + expression + " }}{% endfor %}"), str)


C05 = {
    "strip blocks": ("  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
    "strftime_now": ("{{ strftime_now('%d %b %Y %H:%M') }}", time.strftime("%d %b %Y ")),
    "tojson": ("{{ {'a': 'é<', 'b': [1, none, true]}|tojson }}", '{"a": "é<", "b": [1, null, true]}'),
    "tojson indent": ("{{ {'a': 'é'}|tojson(indent=2, ensure_ascii=False) }}", '{\n  "a": "é"\n}'),
    "tojson ascii": ("{{ 'é😸'|tojson(ensure_ascii=True) }}", '"\\u00e9\\ud83d\\ude38"'),
    "tojson separators": ("{{ {'b': 1, 'a': 2}|tojson(separators=(',', ':'), sort_keys=True) }}", '{"a":2,"b":1}'),
    "namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "3",
    ),
    "namespace in a macro": ("{% macro f(n) %}{{ n.x }}{% endmacro %}{{ f(namespace(x=1)) }}", "1"),
    "macro": ("{% macro f(a, b=2) -%}{{ a }}-{{ b }}{%- endmacro %}{{ f(1) }} {{ f(1, b=3) }}", "1-2 1-3"),
    "call": ("{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}x{% endcall %}", "[x]"),
    "previtem": (
        "{% for m in messages %}{{ loop.previtem.role if loop.previtem else '-' }} {% endfor %}",
        "- system user ",
    ),
    "loop": (
        "{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ loop.nextitem is defined }} {% endfor %}",
        "1FalseTrue 2FalseTrue 3TrueFalse ",
    ),
    "split": ("{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}", "hello"),
    "str methods": ("{{ messages[1]['content'].strip().title().replace('Hi', 'Ho').startswith('Ho') }}", "True"),
    "reversed": ("{% for m in messages[::-1] %}{{ m.role }} {% endfor %}", "assistant user system "),
    "slice": ("{{ messages[1:]|length }} {{ messages[-1].role }} {{ 'abcd'[1:3] }}", "2 assistant bc"),
    "break": (
        "{% for m in messages %}{% if m.role == 'user' %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
        "system",
    ),
    "continue": (
        "{% for m in messages if m.role != 'x' %}{% if m.role == 'user' %}{% continue %}{% endif %}."
        "{% else %}none{% endfor %}",
        "..",
    ),
    "tests": (
        "{{ none is none }} {{ x is defined }} {{ messages[0] is mapping }} {{ 'a' is string }} {{ 1 is number }} "
        "{{ messages is iterable }} {{ messages is sequence }} {{ true is boolean }} {{ 3 is odd }}",
        "True False True True True True True True True",
    ),
    "namespace is defined": ("{% set ns = namespace() %}{{ ns is defined }} {{ ns.x is defined }}", "True False"),
    "selectattr": (
        "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }}",
        "['  hi there  ']",
    ),
    "rejectattr": ("{{ (messages|rejectattr('role', 'in', ['system', 'user'])|first).role }}", "assistant"),
    "filters": (
        "{{ '  a '|trim|upper }}{{ [3, 1]|sort|join(',') }}{{ x|default('d') }}{{ 'ab'|replace('a', 'c') }}",
        "A1,3dcb",
    ),
    "numbers as text": ("{{ 15|replace(5, 7) }}{{ [1, 2]|join(0) }}", "17102"),
    "items": (
        "{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}{{ {'b': 2}|items|list }}",
        "a=1[('b', 2)]",
    ),
    "key named like a method": ("{% set d = {'copy': 1, 'format': 2} %}{{ d.copy }}{{ d.format }}{{ d.pop }}", "12"),
    "dict": ("{{ dict(a=1).get('a') }} {{ {'b': 1, 'a': 2}|dictsort }}", "1 [('a', 2), ('b', 1)]"),
    "concatenation": ("{{ 'a' ~ 1 ~ none }}", "a1None"),
    "arithmetic": ("{{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 10 }} {{ 'ab' * 2 }} {{ [1] + [2] }}", "3 3 1024 abab [1, 2]"),
    "conditions": ("{{ 'a' if messages and 'user' in messages[1].role else 'b' }}{{ 'x' if false }}", "a"),
    "set block": ("{% set x %}a{{ 1 }}{% endset %}{{ x }}", "a1"),
    "filter block": ("{% filter upper %}a{% endfilter %}", "A"),
    "generation": ("{% generation %}a{% endgeneration %}b", "ab"),
    "safe": ("{{ '<a>'|safe + '&' }} {{ ('<'|e) + '<' }}", "<a>& &lt;<"),
    "comment": ("{# nothing #}a", "a"),
}


@pytest.mark.parametrize(("source", "expected"), C05.values(), ids=C05)
def test_c05_what_templates_use(source: str, expected: str) -> None:
    assert render(source).startswith(expected)
    if "strftime" not in source:
        assert render(source) == expected


# helpers that jinja2 has not, and what it does otherwise: HTML, and methods before keys
DIFFERENT = ("strftime_now", "generation", "safe", "key named like a method")


def test_c05_plain_jinja_says_the_same() -> None:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    plain.filters["tojson"] = lambda value, **kw: json.dumps(value, **{"ensure_ascii": False, **kw})
    for name, (source, expected) in C05.items():
        if name not in DIFFERENT:
            assert plain.from_string(source).render(messages=MESSAGES) == expected, name


def test_templates_are_told_apart_from_their_refusal() -> None:
    with pytest.raises(BadTemplate, match="refuses this conversation: no system") as caught:
        render("{{ raise_exception('no system') }}")
    assert "Refused" in type(caught.value.__cause__).__name__


def test_the_line_of_an_error_is_named() -> None:
    with pytest.raises(BadTemplate, match=r"Encountered unknown tag 'foo'.*line 3"):
        SANDBOX.load("a\nb\n{% foo %}")
