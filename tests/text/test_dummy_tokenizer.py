from __future__ import annotations

from service.text.dummy_tokenizer import dummy_tokenizer


def test_any_text_survives_the_trip():
    tokenizer = dummy_tokenizer(300)
    text = "Grüße, 世界! \x00 tail"
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert tokenizer.decode(ids) == text
    assert max(ids) < 256


def test_every_id_of_the_vocabulary_has_a_text():
    tokenizer = dummy_tokenizer(300)
    assert tokenizer.num_tokens == 300
    assert tokenizer.decode([256, 299]) == " t256 t299"
