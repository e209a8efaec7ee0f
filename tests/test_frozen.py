"""What tests unfreeze is frozen again once they have ended (tests/conftest.py). In the order of this file."""

from __future__ import annotations

import gc


def test_a_test_may_unfreeze():
    gc.unfreeze()
    assert gc.get_freeze_count() < 1000


def test_the_next_one_finds_frozen_what_there_is():
    assert gc.get_freeze_count() > 10_000
