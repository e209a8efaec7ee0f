"""A tokenizer for random weights (`--load-format dummy`) in a folder without a tokenizer."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from service.text.tokenizer import Tokenizer


def dummy_tokenizer(vocab_size: int) -> Tokenizer:
    """Byte-level: the first 256 ids are the bytes; id i above them reads " t<i>". Any text can be encoded."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:vocab_size]
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    vocabulary.update({f"Ġt{index}": index for index in range(len(letters), vocab_size)})
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return Tokenizer(inner)
