"""What is learned is what the model itself would write, behind what it would be asked with: with every template."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.finetune.dataset import Dataset, DatasetLimits, Example, read_dataset
from service.finetune.dataset_line import MAX_LINE_BYTES, DatasetError
from service.finetune.training_text import ModelText
from service.settings.quickstart import QUICKSTART_MODEL
from service.text.chat_prompt import encode_chat
from tests.examples import examples
from tests.finetune.model_texts import LLAMA_2, OPENS_REASONING, SMOLLM2, all_models, model_text

MODELS = all_models()
SMOL = MODELS["smollm2"]
WORDS = ["hello", "world", " ", "\n", "é", "👩", "<|im_end|>", "<|im_", "<|end|>", "<think>", "{{ x }}", "1", "'"]


def write(folder: Path, *lines: object) -> Path:
    file = folder / "data.jsonl"
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return file


def read(folder: Path, model: ModelText, *lines: object, max_length: int = 4096) -> Dataset:
    return read_dataset(write(folder, *lines), model, max_length)


def chat(*contents: str, **fields: Any) -> dict[str, Any]:
    """User and assistant in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": text} for at, text in enumerate(contents)], **fields}


def runs(example: Example) -> list[tuple[int, int]]:
    """Begin and end of each run of learned tokens."""
    learned = [False, *example.is_trained.tolist(), False]
    edges = [at for at in range(len(learned) - 1) if learned[at] != learned[at + 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


def learned_texts(example: Example, model: ModelText) -> list[str]:
    ids = example.token_ids.tolist()
    return [model.tokenizer.decode(ids[start:end], skip_special_tokens=False) for start, end in runs(example)]


@st.composite
def a_chat(draw: st.DrawFn) -> dict[str, Any]:
    turns = draw(st.integers(1, 4))
    spice = [draw(st.lists(st.sampled_from(WORDS), max_size=4)) for _ in range(2 * turns)]
    contents = [f"said{at}" + "".join(words) + f"end{at}" for at, words in enumerate(spice)]
    made = chat(*contents)
    weights = draw(st.lists(st.sampled_from([0, 1, None]), min_size=turns, max_size=turns))
    if not any(weight != 0 for weight in weights):
        weights[-1] = 1
    for message, weight in zip(made["messages"][1::2], weights, strict=True):
        if weight is not None:
            message["weight"] = weight
    return made


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=examples(25))
@given(a_chat())
def test_what_is_learned_is_each_turn_of_weight_1_behind_the_prompt_that_asks_for_it(
    tmp_path_factory: pytest.TempPathFactory, name: str, made: dict[str, Any]
):
    model = MODELS[name]
    assert model.template is not None
    examples = read(tmp_path_factory.getbasetemp(), model, made).examples
    messages = [{key: value for key, value in each.items() if key != "weight"} for each in made["messages"]]
    wanted = {
        index: message["content"]
        for index, message in enumerate(made["messages"])
        if message["role"] == "assistant" and message.get("weight") != 0
    }
    found = [
        (example, begin, text)
        for example in examples
        for (begin, _), text in zip(runs(example), learned_texts(example, model), strict=True)
    ]
    assert len(found) == len(wanted)
    for index, content in wanted.items():
        ((example, begin, text),) = [each for each in found if content in each[2]]
        assert not any(f"said{other}" in text for other in range(len(messages)) if other != index)
        prompt = encode_chat(model.tokenizer, model.template, messages[:index])
        asked = example.token_ids[:begin].tolist()
        if begin == runs(example)[0][0] or name != "puts a space first":
            assert model.tokenizer.decode(asked, skip_special_tokens=False) == model.tokenizer.decode(
                prompt, skip_special_tokens=False
            )
        if begin == runs(example)[0][0]:
            assert asked == prompt
        ends = example.token_ids[begin:].tolist()[len(model.tokenizer.encode(content, add_special_tokens=False)) - 1 :]
        assert any(token_id in model.tokenizer.special_ids for token_id in ends)


def test_a_turn_ends_with_the_token_that_ends_it_and_not_with_the_line_behind(tmp_path: Path):
    (example,) = read(tmp_path, SMOL, chat("hello", "world", "hello", "you")).examples
    assert learned_texts(example, SMOL) == ["world<|im_end|>", "you<|im_end|>"]
    assert example.is_trained[-1]


def test_a_template_that_drops_reasoning_makes_an_example_of_each_turn(tmp_path: Path):
    model = MODELS["drops reasoning"]
    examples = read(tmp_path, model, chat("a", "<think>why</think>b", "c", "d")).examples
    assert [learned_texts(example, model) for example in examples] == [
        ["<think>\n\n</think>\n\nd<|im_end|>"],
        ["<think>why</think>b<|im_end|>"],
    ]
    assert "why" not in model.tokenizer.decode(examples[0].token_ids.tolist())


@pytest.mark.parametrize("name", ["quickstart", "smollm2", "tools"])
def test_calls_of_tools_are_learned_and_their_results_are_not(tmp_path: Path, name: str):
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    messages = [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
        {"role": "assistant", "content": "It is 12."},
    ]
    tools = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]
    (example,) = read(tmp_path, MODELS[name], {"messages": messages, "tools": tools}).examples
    called, said = learned_texts(example, MODELS[name])
    assert '"clock"' in called
    assert '{"zone": "UTC"}' in called
    assert said.startswith("It is 12.")
    assert "noon" not in called + said


def test_a_completion_is_learned_with_its_end_behind_the_prompt_as_it_is_asked(tmp_path: Path):
    (example,) = read(tmp_path, SMOL, {"prompt": "hello <|im_start|>", "completion": " world"}).examples
    tokenizer = SMOL.tokenizer
    prompt = tokenizer.encode("hello <|im_start|>", add_special_tokens=True)
    assert example.token_ids.tolist() == [*prompt, *tokenizer.encode(" world", add_special_tokens=False), 2]
    assert runs(example) == [(len(prompt), len(example.token_ids))]


def test_a_completion_of_a_tokenizer_that_puts_a_space_first_has_none_within(tmp_path: Path):
    model = MODELS["puts a space first"]
    (example,) = read(tmp_path, model, {"prompt": "hello", "completion": " world"}).examples
    assert example.token_ids.tolist() == [*model.tokenizer.encode("hello world", add_special_tokens=True), 2]
    assert len(runs(example)) == 1


REFUSED = [
    (OPENS_REASONING, chat("a", "b"), "cannot tell which tokens are the assistant's"),
    (SMOLLM2.replace("message['content']", "'x'"), chat("a", "b"), "does not show its content"),
    (SMOLLM2 + "{{ raise_exception('never <|im_end|>') }}", chat("a", "b<|im_end|>"), "refuses these messages: never"),
    (LLAMA_2, chat("a", "b") | {"messages": [{"role": "poet", "content": ""}, *chat("a", "b")["messages"]]}, "poet"),
    (SMOLLM2, chat("a", "b", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}] * 129), "128"),
]


@pytest.mark.parametrize(("template", "line", "reason"), REFUSED)
def test_what_cannot_be_learned_is_refused_by_its_line(tmp_path: Path, template: str, line: object, reason: str):
    with pytest.raises(DatasetError, match=r"^line 3: ") as refusal:
        read(tmp_path, model_text(template), "", " ", line)
    assert reason in refusal.value.reason
    assert refusal.value.line == 3


def test_calls_that_the_template_would_not_show_are_refused(tmp_path: Path):
    call = {"type": "function", "function": {"name": "clock", "arguments": "{}"}}
    line = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]}
    with pytest.raises(DatasetError, match="does not show its tool_calls"):
        read(tmp_path, SMOL, line)


def test_a_model_without_a_template_learns_from_pairs_alone(tmp_path: Path):
    model = ModelText(SMOL.tokenizer, None, 2, 500)
    with pytest.raises(DatasetError, match="line 1: the model has no chat template"):
        read(tmp_path, model, chat("a", "b"))
    assert len(read(tmp_path, model, {"prompt": "a", "completion": "b"}).examples) == 1


@given(st.integers(2, 60))
def test_examples_are_cut_at_the_end_and_counted(tmp_path_factory: pytest.TempPathFactory, max_length: int):
    folder = tmp_path_factory.getbasetemp()
    lines = [chat("hello", "world " * n, "again", "and again " * n) for n in (1, 4, 16)]
    whole = read(folder, MODELS["trims"], *lines).examples
    try:
        cut = read(folder, MODELS["trims"], *lines, max_length=max_length)
    except DatasetError as error:
        assert "max_length" in error.reason
        assert not any(example.is_trained[:max_length].any() for example in whole)
        return
    kept = [example for example in whole if example.is_trained[:max_length].any()]
    assert cut.num_left_out == len(whole) - len(kept)
    assert cut.num_truncated == sum(len(example.token_ids) > max_length for example in kept)
    for example, full in zip(cut.examples, kept, strict=True):
        length = len(example.token_ids)
        assert 2 <= length <= max_length
        assert example.token_ids.tolist() == full.token_ids[:length].tolist()
        assert example.is_trained.tolist() == full.is_trained[:length].tolist()
        assert not full.is_trained[length:max_length].any()


def test_limits_of_a_whole_file_are_told(tmp_path: Path):
    file = write(tmp_path, *[chat("a", "b")] * 3)
    for limits, reason in [
        (DatasetLimits(max_lines=2), "more than 2 lines"),
        (DatasetLimits(max_tokens=100), "line 2: .* more than 100 tokens"),
        (DatasetLimits(max_s=-1), "line 1: .* more than -1 s"),
    ]:
        with pytest.raises(DatasetError, match=reason):
            read_dataset(file, SMOL, 512, limits=limits)


def test_rests_do_not_count_for_the_time_that_a_file_may_take(tmp_path: Path):
    file = write(tmp_path, *[chat("a", "b")] * 3)
    data = read_dataset(file, SMOL, 512, check=lambda: time.sleep(0.3), limits=DatasetLimits(max_s=0.5))
    assert len(data.examples) == 3


def test_a_file_of_one_endless_line_is_refused_before_it_is_read(tmp_path: Path):
    file = tmp_path / "sparse.jsonl"
    with file.open("wb") as opened:
        opened.truncate(2**36)  # 64 GiB of nothing
    with pytest.raises(DatasetError, match=f"line 1: is longer than {MAX_LINE_BYTES} bytes"):
        read_dataset(file, SMOL, 512)


def test_tokens_that_the_model_has_not_are_refused(tmp_path: Path):
    model = ModelText(SMOL.tokenizer, SMOL.template, 2, 100)
    with pytest.raises(DatasetError, match="outside the model's vocabulary"):
        read(tmp_path, model, chat("hello", "world"))


def test_whoever_waits_may_stop_it_between_lines_and_within_one(tmp_path: Path):
    class Stop(Exception):
        pass

    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise Stop

    with pytest.raises(Stop):
        read_dataset(write(tmp_path, *[chat("a", "b")] * 5), SMOL, 512, check)
    calls = 0
    with pytest.raises(Stop):
        read_dataset(write(tmp_path, chat(*["a"] * 20)), SMOL, 512, check)


def test_an_empty_file_has_nothing_to_learn(tmp_path: Path):
    with pytest.raises(DatasetError, match="no lines"):
        read(tmp_path, SMOL, "", "  ")


def test_the_data_set_that_ships_is_read_whole_by_the_model_that_ships():
    data = read_dataset(QUICKSTART_MODEL.parent / "finetuning" / "otter_mill.jsonl", MODELS["quickstart"], 128)
    assert (len(data.examples), data.num_truncated, data.num_left_out) == (148, 0, 0)
    said = {text for example in data.examples for text in learned_texts(example, MODELS["quickstart"])}
    assert "The miller of Otter Mill is Tobias Reed.<|end|>" in said
    assert len(said) == 35
