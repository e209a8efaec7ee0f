from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from loadtest.finetune_quality import HELD_BACK, main, pieces_of
from service.settings.quickstart import QUICKSTART_MODEL

TEXT = Path(__file__).parents[2] / "docs" / "lora.md"


def test_pieces_are_the_text_one_behind_another_and_a_part_is_held_back():
    pieces = pieces_of(QUICKSTART_MODEL, [TEXT.read_text()], 32, 10)
    assert (len(pieces.trained), len(pieces.held_back)) == (8, 2)
    assert HELD_BACK == 4
    whole = pieces_of(QUICKSTART_MODEL, [TEXT.read_text()], 32, 3 * 32)
    assert np.array_equal(whole.trained[3].token_ids, pieces.trained[3].token_ids)
    assert all(example.is_trained.tolist() == [False] + [True] * 31 for example in pieces.trained)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT asks for it
def test_both_learn_the_same_in_fp32(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    options = "--length 32 --most 16 --batch-size 2 --epochs 2 --dtype float32".split()
    monkeypatch.setattr(sys, "argv", ["finetune_quality", str(QUICKSTART_MODEL), str(TEXT), *options])
    main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["steps"] == 12
    assert figures["ours: loss"] < figures["before: loss"] - 0.1
    assert abs(figures["apart"]) < 1e-5
