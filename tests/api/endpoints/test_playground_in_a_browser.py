"""What the playground does, as a person with a mouse and keys sees it: in a real Chromium, the page as it is served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.browser import Page, Screen
from tests.api.endpoints.conftest import DESKTOP, PHONE, Visit
from tests.api.running_server import RunningServer

LONG = "\n\n".join(f"Paragraph {number} of an answer that fills the page." for number in range(24))
ANSWER, QUESTION = ".turn.assistant:last-child", ".turn.user:last-child"
IS_DONE = f"document.querySelector('{ANSWER} .foot').textContent.includes('Regenerate')"
DISTANCE_TO_END = "(box => box.scrollHeight - box.scrollTop - box.clientHeight)(document.querySelector('#talk'))"


def ask(page: Page, text: str) -> None:
    page.write("#message", text)
    page.press("Enter")
    page.wait_for(f"document.querySelector('.turn.user:nth-last-child(2) .text').textContent === {json.dumps(text)}")


def ask_and_wait(page: Page, text: str) -> None:
    ask(page, text)
    page.wait_for(IS_DONE)


def is_visible(page: Page, selector: str) -> bool:
    """Whether all of the last such element lies within the talk's window."""
    return bool(
        page.value(
            f"(() => {{ const box = document.querySelector('#talk').getBoundingClientRect();"
            f" const it = [...document.querySelectorAll({json.dumps(selector)})].at(-1).getBoundingClientRect();"
            " return it.height > 0 && it.top >= box.top && it.bottom <= box.bottom; })()"
        )
    )


def endless(server: RunningServer, text: str, delay_s: float = 0.005) -> None:
    """From now on answers repeat `text` until somebody stops them."""
    ids = server.tokenizer.encode(text, add_special_tokens=False)
    server.play(lambda prompt, so_far, seed: ids[len(so_far) % len(ids)])
    server.executor.delay_s = delay_s


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_end_of_every_answer_is_in_sight(server: RunningServer, visit: Visit, screen: Screen) -> None:
    """Also when the page has long overflowed, and when the end is an error."""
    with visit(screen, refusals=1) as page:
        for number in range(2):
            server.say(LONG)
            ask_and_wait(page, f"question {number}")
            assert page.value("document.querySelector('#talk').scrollHeight") > 1.5 * screen.height
            assert is_visible(page, ".turn.assistant .foot")
        page.value("document.querySelector('#max_tokens').value = 99999999")
        page.write("#message", "and more?")
        page.press("Enter")
        page.wait_for("document.querySelector('.error')")
        assert "maximum context" in page.text(".error")
        assert is_visible(page, ".error")


def test_an_answer_is_followed_while_it_comes_until_the_reader_goes_up(server: RunningServer, visit: Visit) -> None:
    with visit() as page:
        server.say(LONG)
        ask_and_wait(page, "fill the page")
        endless(server, "a line of it\n\n")
        ask(page, "go on")
        page.wait_for(f"document.querySelectorAll('{ANSWER} p').length > 12")
        assert page.value(f"new Promise(done => requestAnimationFrame(() => done({DISTANCE_TO_END} < 2)))")
        page.scroll("#talk", -300)
        page.wait_for(f"{DISTANCE_TO_END} > 200")
        top = page.value("document.querySelector('#talk').scrollTop")
        lines = page.value(f"document.querySelectorAll('{ANSWER} p').length")
        page.wait_for(f"document.querySelectorAll('{ANSWER} p').length > {lines + 5}")
        assert page.value("document.querySelector('#talk').scrollTop") == top, "who reads is left in peace"
        page.click("#to-end")
        page.wait_for(f"{DISTANCE_TO_END} < 2")
        page.wait_for("document.querySelector('#to-end').hidden")
        page.press("Escape")
        page.wait_for(IS_DONE)
        assert is_visible(page, ".turn.assistant .foot")
        assert "ended by stopped" in page.text(f"{ANSWER} .foot")


def test_an_answer_is_told_with_its_speed(server: RunningServer, visit: Visit) -> None:
    server.say("<b>four</b> **bold**")
    server.executor.delay_s = 0.005
    with visit() as page:
        ask_and_wait(page, "two and two?")
        assert page.text(f"{ANSWER} .text") == "<b>four</b> bold"
        assert all(fact in page.text(f"{ANSWER} .foot") for fact in ("first token", "tokens/s", "in, "))
        assert page.value("document.querySelector('#talk').getAttribute('aria-busy')") == "false"
        assert page.value("document.querySelector('#announce').textContent") == "The answer is complete."


def test_what_a_refused_question_was_is_not_lost(server: RunningServer, visit: Visit) -> None:
    """It stands there with what the server said, is no part of later prompts, and can be asked again."""
    with visit(refusals=1) as page:
        page.value("document.querySelector('#max_tokens').value = 99999999")
        page.write("#message", "too much")
        page.press("Enter")
        page.wait_for("document.querySelector('.error')")
        assert page.value("document.querySelector('.error').getAttribute('role')") == "alert"
        assert page.text(f"{QUESTION} .text") == "too much"
        page.value("document.querySelector('#max_tokens').value = ''")
        server.say("fine")
        ask_and_wait(page, "another")
        assert [message["content"] for message in page.sent[-1]["messages"]] == ["another"]
        page.click(".turn.user .foot button")
        page.wait_for(f"document.querySelectorAll('.turn').length === 2 && {IS_DONE}")
        assert [message["content"] for message in page.sent[-1]["messages"]] == ["too much"]


def test_a_question_is_edited_and_an_answer_made_again(server: RunningServer, visit: Visit) -> None:
    with visit() as page:
        server.say("one")
        ask_and_wait(page, "first")
        ask_and_wait(page, "second")
        server.say("two")
        page.click(f"{ANSWER} .foot button:last-child")
        page.wait_for(f"document.querySelector('{ANSWER} .text').textContent.trim() === 'two' && {IS_DONE}")
        assert [message["content"] for message in page.sent[-1]["messages"]] == ["first", "one", "second"]
        page.click(".turn.user .foot button")
        page.write(".turn.user textarea", "first, but better")
        page.click(".turn.user form .main")
        page.wait_for(f"document.querySelectorAll('.turn').length === 2 && {IS_DONE}")
        assert [message["content"] for message in page.sent[-1]["messages"]] == ["first, but better"]


def test_copied_is_what_the_model_wrote(server: RunningServer, visit: Visit) -> None:
    with visit() as page:
        server.say("**all** of\n\n```py\nprint(4)\n```")
        ask_and_wait(page, "code?")
        page.click(f"{ANSWER} .code button")
        page.wait_for(f"document.querySelector('{ANSWER} .code button').textContent === 'Copied'")
        assert page.value("navigator.clipboard.readText()") == "print(4)\n"
        page.click(f"{ANSWER} .foot button")
        page.wait_for(f"document.querySelector('{ANSWER} .foot button').textContent === 'Copied'")
        assert page.value("navigator.clipboard.readText()") == "**all** of\n\n```py\nprint(4)\n```"


def test_chats_are_kept_and_opened_and_deleted(server: RunningServer, visit: Visit) -> None:
    with visit() as page:
        server.say("an **answer**")
        ask_and_wait(page, "the first chat")
        page.click("#new-chat")
        page.wait_for("!document.querySelector('#empty').hidden")
        ask_and_wait(page, "the second chat")
        page.reload()
        page.wait_for("document.querySelectorAll('#chat-list li').length === 2")
        page.wait_for("document.querySelector('.turn.user .text').textContent === 'the second chat'")
        page.click("#chat-list li:nth-child(2) .open")
        page.wait_for("document.querySelector('.turn.user .text').textContent === 'the first chat'")
        assert page.text(f"{ANSWER} .text strong") == "answer"
        assert page.text("#chat-list [aria-current]") == "the first chat"
        page.click("#chat-list li:nth-child(2) .remove")
        page.wait_for("document.querySelectorAll('#chat-list li').length === 1")
        assert page.value("document.querySelectorAll('.turn').length") == 0
        page.reload()
        page.wait_for("document.querySelector('#chat-list').innerText.includes('second')")
        assert "first" not in page.text("#chat-list")


KEEP = """import('/playground/chat_store.js').then(({ ChatStore, MAX_CHATS, MAX_CHARACTERS }) => {
  const store = new ChatStore(localStorage), sizes = [];
  const chat = (number, length) => (
    { id: String(number), title: "t", changedMs: number, messages: [{ role: "user", content: "x".repeat(length) }] });
  const kept = () => store.list().map(({ id }) => Number(id));
  localStorage.setItem("headrace.chat.broken", "{");
  localStorage.setItem("another page's", "1");
  for (let number = 1; number <= MAX_CHATS + 20; number++) store.save(chat(number, 10));
  const many = kept();
  const isLargeKept = store.save(chat(1000, MAX_CHARACTERS * 0.6)) && store.save(chat(1001, MAX_CHARACTERS * 0.6));
  const size = store.list().reduce((sum, { size }) => sum + size, 0);
  const full = { length: 0, getItem: () => null, setItem() { throw new Error("full"); } };
  return {
    many, isLargeKept, large: kept(), isWithin: size <= MAX_CHARACTERS,
    isTooLargeKept: store.save(chat(2000, MAX_CHARACTERS)), isKeptWhenFull: new ChatStore(full).save(chat(1, 1)),
    others: localStorage.getItem("another page's"), most: MAX_CHATS,
  };
})"""


def test_kept_chats_are_bounded_and_the_oldest_make_room(visit: Visit) -> None:
    with visit() as page:
        kept = page.value(KEEP)
        assert kept["many"] == list(range(kept["most"] + 20, 20, -1))
        assert kept["isLargeKept"] and kept["isWithin"]
        assert kept["large"] == [1001]
        assert not kept["isTooLargeKept"]
        assert not kept["isKeptWhenFull"]
        assert kept["others"] == "1"


def test_fields_are_sent_as_the_api_names_them_and_empty_ones_are_not(server: RunningServer, visit: Visit) -> None:
    numbers = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.05,
        "presence_penalty": -1,
        "frequency_penalty": 0.5,
    }
    numbers |= {"repetition_penalty": 1.1, "seed": 3, "max_tokens": 9}
    server.say("x")
    with visit() as page:
        ask_and_wait(page, "plain")
        assert page.sent[-1].keys() == {"model", "messages", "stream", "stream_options"}
        for name, value in numbers.items():
            page.write(f"#{name}", str(value))
        page.write("#system", "Be brief.")
        page.write("#stop", "END\n\\n\\n")
        page.click("#new-chat")
        page.wait_for("!document.querySelector('#empty').hidden")
        ask_and_wait(page, "with all")
        assert {name: page.sent[-1][name] for name in numbers} == numbers
        assert page.sent[-1]["stop"] == ["END", "\n\n"]
        assert page.sent[-1]["messages"][0] == {"role": "system", "content": "Be brief."}
        assert server.executor.last_sampling.min_p == 0.05
        page.reload()
        page.wait_for("document.querySelector('#min_p').value === '0.05'")
        page.click("#reset")
        page.wait_for(
            "document.querySelector('#min_p').value === '' && !localStorage['headrace.settings'].includes('min_p')"
        )


def open_settings(page: Page) -> None:
    page.value("document.querySelectorAll('#settings details').forEach(each => { each.open = true; })")


def choose(page: Page, select: str, value: str) -> None:
    page.value(
        f"(() => {{ const e = document.querySelector('{select}'); e.value = '{value}';"
        " for (const type of ['input', 'change']) e.dispatchEvent(new Event(type, {bubbles: true})); })()"
    )


def test_json_is_asked_for_by_a_schema_and_shown_as_code(server: RunningServer, visit: Visit) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    with visit() as page:
        open_settings(page)
        choose(page, "#format", "json_schema")
        page.write("#schema", "{not JSON")
        page.write("#message", "one?")
        page.press("Enter")
        page.wait_for("document.activeElement.id === 'schema'")
        assert page.value("document.activeElement.getAttribute('aria-invalid')") == "true"
        assert "The schema cannot be read as JSON" in page.text("#status")
        assert page.sent == []
        assert page.value("document.querySelector('#message').value") == "one?"
        page.write("#schema", json.dumps(schema))
        ask_and_wait(page, "one?")
        response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        assert page.sent[-1]["response_format"] == response_format
        assert json.loads(page.text(f"{ANSWER} .code pre")) == {"a": 1}


def frames(*deltas: dict[str, Any], reason: str) -> str:
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    return "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices) + "data: [DONE]\n\n"


def test_a_tool_is_called_and_gets_its_result(visit: Visit) -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    pieces = [{"index": 0, "function": {"arguments": part}} for part in ('{"city": ', '"Rome"}')]
    canned = frames(
        {"role": "assistant", "content": ""}, {"reasoning_content": "They ask of Rome."},
        *({"tool_calls": [each]} for each in (call, *pieces)), reason="tool_calls",
    )  # fmt: skip
    tools = [{"type": "function", "function": {"name": "weather"}}]
    with visit(canned={"/v1/chat/completions": canned}) as page:
        open_settings(page)
        page.write("#tools", json.dumps(tools))
        choose(page, "#tool_choice", "required")
        ask_and_wait(page, "weather in Rome?")
        assert page.sent[-1]["tools"] == tools
        assert page.sent[-1]["tool_choice"] == "required"
        assert page.value(f"document.querySelector('{ANSWER} details').textContent") == "ReasoningThey ask of Rome."
        assert json.loads(page.text(f"{ANSWER} .code pre")) == {"city": "Rome"}
        page.write(f"{ANSWER} form textarea", "sunny")
        page.click(f"{ANSWER} form .main")
        page.wait_for(f"document.querySelectorAll('.turn').length === 4 && {IS_DONE}")
        made = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
        assert page.sent[-1]["messages"][1:] == [
            {"role": "assistant", "content": "", "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        ]


def test_a_token_tells_what_else_might_have_stood_there(server: RunningServer, visit: Visit) -> None:
    ids = server.say("Some tokens")
    with visit() as page:
        open_settings(page)
        page.click("#logprobs")
        ask_and_wait(page, "say it")
        page.click(f"{ANSWER} .foot button[aria-pressed]")
        assert page.text(".tokens") == "Some tokens<|im_end|>"
        page.hover(".tokens span:nth-child(2)")
        card = page.text("#token-card")
        assert page.value("document.querySelectorAll('#token-card tr').length") == 6, "five alternatives, and itself"
        assert json.dumps(server.tokenizer.decode([ids[1]])) in card
        assert "100.00 %" in card  # id 0 has the log probability 0
        page.value("document.querySelector('.tokens').focus()")
        page.press("End")
        last = page.value("document.querySelector('.tokens .chosen').textContent")
        page.press("Home")
        assert page.text(".tokens .chosen") == "S"
        assert last == "<|im_end|>"
        page.click(f"{ANSWER} .foot button[aria-pressed]")
        assert page.value("document.querySelector('.tokens')") is None
        assert page.text(f"{ANSWER} .text") == "Some tokens"


def card(name: str, parent: str | None, temperature: float) -> dict[str, Any]:
    return {"id": name, "parent": parent, "max_model_len": 2048, "default_sampling": {"temperature": temperature}}


def test_adapters_stand_below_their_model_and_can_be_chosen(visit: Visit) -> None:
    cards = [card("base", None, 0.7), card("sql", "base", 0.7), card("poems", "base", 1.5)]
    said = frames({"role": "assistant", "content": "SELECT"}, reason="stop")
    canned = {"/v1/models": json.dumps({"data": cards}), "/v1/chat/completions": said}
    with visit(canned=canned) as page:
        assert page.value("document.querySelector('#model optgroup').label") == "Adapters of base"
        options = page.value("[...document.querySelectorAll('#model optgroup option')].map(each => each.value)")
        assert options == ["sql", "poems"]
        page.value(
            "(e => { e.value = 'poems'; e.dispatchEvent(new Event('change')); })(document.querySelector('#model'))"
        )
        assert page.value("document.querySelector('#temperature').placeholder") == "1.5"
        ask_and_wait(page, "a poem")
        assert page.sent[-1]["model"] == "poems"
        assert page.text(f"{ANSWER} h2") == "poems"


def test_the_strip_shows_what_the_server_does(server: RunningServer, visit: Visit) -> None:
    with visit() as page:
        page.wait_for("document.querySelector('#strip').innerText.includes('running 0')")
        endless(server, "word ")
        ask(page, "for ever")
        page.wait_for("document.querySelector('#strip').innerText.includes('running 1')")
        page.wait_for("Number(document.querySelector('#strip span:last-child b').textContent) > 1")
        page.press("Escape")
        page.wait_for("document.querySelector('#strip').innerText.includes('running 0')")


def test_keys_alone_are_enough(server: RunningServer, visit: Visit) -> None:
    server.say("yes")
    with visit(PHONE) as page:
        assert page.value("document.activeElement.id") == "message"
        page.value("document.querySelector('#settings-toggle').focus()")
        page.press("Enter")
        page.wait_for("document.activeElement.id === 'model'")
        assert page.value("document.querySelector('#settings-toggle').getAttribute('aria-expanded')") == "true"
        page.press("Escape")
        assert page.value("document.activeElement.id") == "settings-toggle"
        assert page.value("getComputedStyle(document.querySelector('#settings')).display") == "none"
        ask_and_wait(page, "by keys?")
        assert page.value("document.activeElement.id") == "message"


UNNAMED = """[...document.querySelectorAll("button, input, select, textarea, [tabindex]")].filter(element => {
  const label = element.closest("label")?.innerText || element.getAttribute("aria-label");
  return !(label || (element.tagName === "BUTTON" && element.textContent.trim()));
}).map(element => element.outerHTML.slice(0, 80))"""
FAINT = """(() => {
  const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (...colours) => {
    pixel.clearRect(0, 0, 1, 1);
    for (const colour of colours) { pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1); }
    return [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (colour) => colour.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const groundOf = (element) => getComputedStyle(element).backgroundColor;
  const grounds = (element) => element ? [...grounds(element.parentElement), groundOf(element)] : [];
  return [...document.querySelectorAll("body *")].filter(element => element.checkVisibility()
      && [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())).map(element => {
    const ground = grounds(element);
    const [a, b] = [light(rgb(...ground)), light(rgb(...ground, getComputedStyle(element).color))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.outerHTML.slice(0, 80)];
  }).filter(([ratio]) => ratio < 4.5);
})()"""
RICH = """# Title

> quoted `code` [link](https://a.example)

```py
# why
def f(): return 'x' + str(4)
```

|a|
|-|
|1|"""


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_everything_has_a_name_and_can_be_read(server: RunningServer, visit: Visit, is_dark: bool) -> None:
    """Contrast of at least 4.5 (WCAG 2.2 AA) for every text."""
    with visit(Screen(1200, 800, is_dark), refusals=1) as page:
        open_settings(page)
        page.click("#logprobs")
        server.say(RICH)
        ask_and_wait(page, "all of it")
        page.wait_for("document.querySelector('.hljs-keyword')")
        assert page.value(UNNAMED) == []
        assert page.value(FAINT) == []
        page.click(f"{ANSWER} .foot button[aria-pressed]")
        page.value("document.querySelector('#max_tokens').value = 99999999")
        page.write("#message", "too much")
        page.press("Enter")
        page.wait_for("document.querySelector('.error')")
        assert page.value(FAINT) == []
        assert page.value("matchMedia('(prefers-color-scheme: dark)').matches") is is_dark


@pytest.mark.parametrize("screen", [PHONE, Screen(320, 560, is_phone=True)], ids=["phone", "narrow"])
def test_a_phone_scrolls_up_and_down_only(server: RunningServer, visit: Visit, screen: Screen) -> None:
    with visit(screen) as page:
        server.say(
            "```\n" + "x" * 300 + "\n```\n\n|" + "a wide column|" * 30 + "\n|" + "-|" * 30 + "\n\n" + "word" * 100
        )
        ask_and_wait(page, "something wide" * 10)
        for wide in ("document.documentElement", "document.querySelector('#talk')"):
            assert page.value(f"{wide}.scrollWidth <= {wide}.clientWidth"), wide
