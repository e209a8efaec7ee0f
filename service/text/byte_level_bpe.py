"""GPT-2's tokenizer from its two files, `vocab.json` and `merges.txt`, which are all that OPT's published models
have."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from service.text.tokenizer_config import read_tokenizer_config

VOCABULARY, MERGES = "vocab.json", "merges.txt"
_DEFAULT_SPECIAL = "<|endoftext|>"
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def has_byte_level_bpe(folder: Path) -> bool:
    return (folder / VOCABULARY).is_file() and (folder / MERGES).is_file()


def byte_level_bpe(folder: Path) -> tokenizers.Tokenizer:
    """Byte-level BPE with the special tokens of the folder's tokenizer config, and a BOS if the config asks for one.

    Raises what the library raises for a broken file.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE.from_file(str(folder / VOCABULARY), str(folder / MERGES)))
    config = read_tokenizer_config(folder)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.options.get("add_prefix_space") is True)
    tokenizer.decoder = decoders.ByteLevel()
    known = [config.special_tokens[role] for role in _ROLES if role in config.special_tokens]
    if tokenizer.token_to_id(_DEFAULT_SPECIAL) is not None:
        known.append(_DEFAULT_SPECIAL)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in dict.fromkeys(known)])
    bos = config.special_tokens.get("bos_token")
    if config.options.get("add_bos_token") is True and bos is not None:
        token = (bos, tokenizer.token_to_id(bos))
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[token])
    return tokenizer
