from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from service.errors import ModelLoadError
from service.text.chat_template import ChatTemplate, RenderLimits, TemplateRefusal, load_chat_template
from service.text.tool_calls import ToolStyle
from tests.text import tiny_tokenizers

LLAMA_2 = """{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}
{% set loop_messages = messages[1:] %}
{% else %}{% set system_message = '' %}{% set loop_messages = messages %}{% endif %}
{% for message in loop_messages %}
  {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
  {% endif %}
    {%- if message['role'] == 'user' -%}
{{ bos_token + '[INST] ' + (system_message if loop.first else '') + message['content'] | trim + ' [/INST]' }}
    {%- else -%}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{%- endif -%}
{% endfor %}
"""
QWEN_LIKE = """{%- if tools %}has tools{% endif %}
{%- set ns = namespace(last=0, found=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if not ns.found and message.role == "user" and message.content is string %}
        {%- set ns.found = true %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "system" and not loop.first %}{% continue %}{% endif %}
    {%- set content = message.content %}
    {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- generation %}{{ content }}{% endgeneration %}
    {{- '<|im_end|>' + '\\n' }}
    {%- if loop.index0 == ns.last %}{{ message | tojson }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
ODDITIES = """{{ bos_token }}{% for m in messages %}
    {% if m['role'] == 'tool' %}{% break %}{% endif %}
{{ loop.index }}: {{ m['content'] | upper | replace('A', 'é') }} {{ m | tojson(indent=2) }} {{ m.get('name', '?') }}
{% endfor %}{{ strftime_now('%Y') | length }}{{ dict(a=1)['a'] }}{{ undefined }}{{ tools is none }}{{ documents }}"""

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello <b>there</b> & \"you\" 'two'"}],
    [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": " Hi\n\n"}],
    [
        {"role": "user", "content": "one", "name": "Ann"},
        {"role": "assistant", "content": "<think>hm</think>\n\n你好"},
        {"role": "user", "content": "three"},
    ],
]
TEMPLATES = {"chatml": tiny_tokenizers.CHAT_TEMPLATE, "llama-2": LLAMA_2, "qwen": QWEN_LIKE, "oddities": ODDITIES}
SPECIAL = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}


@pytest.mark.pairwise
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_as_transformers_does(name: str, add_generation_prompt: bool, messages: list[dict[str, Any]]) -> None:
    oracle = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizers.byte_level(), **SPECIAL)
    expected = oracle.apply_chat_template(
        messages, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=add_generation_prompt
    )
    template = ChatTemplate(TEMPLATES[name], SPECIAL)
    assert template.render(messages, add_generation_prompt=add_generation_prompt) == expected


def test_a_template_can_refuse() -> None:
    messages = [{"role": "assistant", "content": "me first"}]
    with pytest.raises(TemplateRefusal, match="roles must alternate"):
        ChatTemplate(LLAMA_2, SPECIAL).render(messages, add_generation_prompt=True)


@pytest.mark.parametrize(
    "source",
    ["{{ messages[5].content.x }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ [].append(1) }}", "{{ messages.pop() }}"],
)
def test_a_template_that_cannot_cope_refuses(source: str) -> None:
    with pytest.raises(TemplateRefusal):
        ChatTemplate(source, {}).render([{"role": "user", "content": ""}], add_generation_prompt=True)


def test_syntax_errors_name_the_line() -> None:
    with pytest.raises(ModelLoadError, match="line 2"):
        ChatTemplate("ok\n{% if %}", {})


def test_knows_the_roles_that_it_names() -> None:
    assert ChatTemplate("{% if role == 'developer' %}{% endif %}", {}).knows_role("developer")
    assert not ChatTemplate("a developer's {{ role }}", {}).knows_role("developer")


def render(template: ChatTemplate | None) -> str:
    assert template is not None
    return template.render([], add_generation_prompt=True)


def test_finds_the_template_of_a_folder(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path) is None
    config = {"bos_token": {"content": "<b>"}, "eos_token": "<e>", "pad_token": None}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<old>", "unk_token": "<u>"}))

    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ bos_token }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
    assert render(load_chat_template(tmp_path)) == "<b>"

    template = "{{ bos_token + eos_token + unk_token }}{{ pad_token }}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    assert render(load_chat_template(tmp_path)) == "<b><e><u>"

    (tmp_path / "chat_template.jinja").write_text("beside {{ eos_token }}")
    assert render(load_chat_template(tmp_path)) == "beside <e>"

    (tmp_path / "mine.jinja").write_text("mine")
    assert render(load_chat_template(tmp_path, tmp_path / "mine.jinja")) == "mine"


def test_says_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="not a file"):
        load_chat_template(tmp_path, tmp_path / "gone.jinja")
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelLoadError, match=r"binary\.jinja cannot be read"):
        load_chat_template(tmp_path, tmp_path / "binary.jinja")


def test_named_templates_without_a_default_are_none(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "rag", "template": "x"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_chat_template(tmp_path) is None


def test_rendering_has_limits() -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
    with pytest.raises(TemplateRefusal, match="too long"):
        ChatTemplate(endless, {}, RenderLimits(max_characters=10_000)).render([], add_generation_prompt=True)
    with pytest.raises(TemplateRefusal, match="takes too long"):
        ChatTemplate(endless, {}, RenderLimits(max_s=0.05)).render([], add_generation_prompt=True)


def test_a_template_that_writes_nothing_keeps_to_its_time() -> None:
    gathers = (
        "{% set ns = namespace(a='') %}"
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set ns.a = ns.a[:9] + 'x' %}{% endfor %}{% endfor %}"
    )
    started_s = time.monotonic()
    with pytest.raises(TemplateRefusal, match="takes too long"):
        ChatTemplate(gathers, {}, RenderLimits(max_s=0.05)).render([], add_generation_prompt=True)
    assert time.monotonic() - started_s < 2


def test_tools_and_options_reach_the_template() -> None:
    template = ChatTemplate("{{ tools | tojson }}{{ enable_thinking }}{{ bos_token }}", {"bos_token": "<s>"})
    options = {"enable_thinking": False, "bos_token": "evil"}
    rendered = template.render([], add_generation_prompt=True, tools=[{"a": "<"}], options=options)
    assert rendered == '[{"a": "<"}]False<s>'


def test_knows_what_its_model_can_do() -> None:
    able = ChatTemplate(tiny_tokenizers.TOOL_TEMPLATE, {})
    assert (able.knows_tools, able.tool_style, able.knows_reasoning) == (True, ToolStyle.HERMES, True)
    plain = ChatTemplate(tiny_tokenizers.CHAT_TEMPLATE, {})
    assert (plain.knows_tools, plain.tool_style, plain.knows_reasoning) == (
        False,
        ToolStyle.HERMES,
        False,
    )
