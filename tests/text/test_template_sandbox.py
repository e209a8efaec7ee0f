from __future__ import annotations

import jinja2
import pytest

from service.text.template_sandbox import TemplateSandbox


def render(source: str) -> str:
    return TemplateSandbox().from_string(source).render(messages=[])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(__init__=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(jinja2.exceptions.SecurityError):
        render(source)


@pytest.mark.parametrize("source", ["{{ 'a' * 10**9 }}", "{{ [1] * 99999999 }}", "{{ 9 ** 9 ** 9 }}"])
def test_small_operands_make_nothing_huge(source: str) -> None:
    with pytest.raises(jinja2.exceptions.SecurityError, match="too big"):
        render(source)
    assert render("{{ 'ab' * 3 }}{{ 2 ** 10 }}") == "ababab1024"


def test_a_namespace_keeps_what_a_loop_finds() -> None:
    assert (
        render("{% set ns = namespace(n=1) %}{% for _ in range(3) %}{% set ns.n = ns.n * 2 %}{% endfor %}{{ ns.n }}")
        == "8"
    )


def test_json_is_written_without_escapes_for_html() -> None:
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'


def test_a_template_may_refuse_in_its_own_words() -> None:
    with pytest.raises(jinja2.TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")
