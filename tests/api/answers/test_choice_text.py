from __future__ import annotations

from service.api.answers.choice_text import ChoiceText
from service.core.events import TokenEvent
from service.core.request import FinishReason
from service.text.detokenizer import make_detokenizer
from service.text.stop_strings import StopRules
from service.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())


def choice_of(*stops: str) -> ChoiceText:
    return choice_by(StopRules(stops))


def choice_by(rules: StopRules) -> ChoiceText:
    return ChoiceText(0, 0, make_detokenizer(TOKENIZER), rules, None, rules.token_ids | {2})


def events_of(text: str, end: FinishReason | None = None) -> list[TokenEvent]:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    return [TokenEvent(0, token_id, end if index == len(ids) - 1 else None) for index, token_id in enumerate(ids)]


def test_text_comes_with_its_tokens() -> None:
    choice = choice_of()
    events = events_of("hello")
    piece = choice.take(choice.push(events))
    assert (piece.text, piece.is_first, piece.finish_reason) == ("hello", True, None)
    assert piece.token_ids == [event.token_id for event in events]
    assert not choice.take(choice.push(events_of(" you"))).is_first


def test_tokens_without_text_go_with_the_next_piece() -> None:
    choice = choice_of()
    first, *rest = events_of("你")
    assert choice.take(choice.push([first])) is None
    piece = choice.take(choice.push(rest))
    assert piece.is_first
    assert len(piece.token_ids) == 3


def test_a_stop_token_ends_without_text() -> None:
    choice = choice_of()
    piece = choice.take(choice.push([TokenEvent(0, 2, FinishReason.STOP)]))
    assert (piece.text, piece.token_ids, piece.finish_reason) == ("", [2], FinishReason.STOP)
    assert choice.num_tokens == 1


def test_what_was_held_back_comes_out_at_the_end() -> None:
    choice = choice_of("ends")
    assert choice.push(events_of("the en")) == "the "
    assert choice.push(events_of("d", FinishReason.LENGTH)) == "end"
    assert choice.finish_reason is FinishReason.LENGTH


def test_half_a_character_at_the_end_is_shown() -> None:
    choice = choice_of()
    half = events_of("你")[:1]
    assert choice.push([TokenEvent(0, half[0].token_id, FinishReason.LENGTH)]) == "\ufffd"


def test_a_stop_string_ends_it_and_what_follows_is_dropped() -> None:
    choice = choice_of("STOP")
    until = events_of("say STOP")
    assert choice.push([*until, *events_of(" and more", FinishReason.LENGTH)]) == "say "
    assert choice.finish_reason is FinishReason.STOP
    assert choice.num_tokens == len(until)
    assert choice.push(events_of("later")) == ""


def test_a_stop_string_that_the_last_token_completes_wins_over_length() -> None:
    choice = choice_of("end")
    assert choice.push(events_of("the end", FinishReason.LENGTH)) == "the "
    assert choice.finish_reason is FinishReason.STOP


def test_says_what_stopped_it() -> None:
    by_text = choice_of("END", "STOP")
    by_text.push(events_of("say STOP"))
    assert by_text.take("").stop_reason == "STOP"
    by_id = choice_by(StopRules(token_ids=frozenset({75})))
    assert by_id.push([TokenEvent(0, 75, FinishReason.STOP)]) == ""
    assert by_id.take("").stop_reason == 75
    by_end = choice_by(StopRules(token_ids=frozenset({75})))
    by_end.push([TokenEvent(0, 2, FinishReason.STOP)])
    assert by_end.take("").stop_reason is None


def test_what_stopped_it_is_shown_if_asked_for() -> None:
    rules = StopRules(("STOP",), frozenset({75}), include_stop=True)
    by_text = choice_by(rules)
    assert by_text.push(events_of("say STOP it")) == "say STOP"
    by_id = choice_by(rules)
    assert by_id.push([TokenEvent(0, 75, FinishReason.STOP)]) == TOKENIZER.decode([75])


def test_the_token_that_completes_a_grammar_has_its_text() -> None:
    choice = choice_of()
    assert choice.push(events_of("the end", FinishReason.STOP)) == "the end"
    assert choice.take("").stop_reason is None
