from __future__ import annotations

import pytest

from service.errors import StorageFull
from service.storage.storage_budget import StorageBudget


def test_what_is_taken_is_never_more_than_there_is() -> None:
    budget = StorageBudget(10)
    budget.take(10)
    for ask in (budget.take, budget.check_room):
        with pytest.raises(StorageFull, match=r"10 bytes of 10 .* 1 more"):
            ask(1)
    budget.give_back(4)
    budget.take(4)
    assert budget.num_bytes == 10


def test_there_are_no_more_files_than_may_be() -> None:
    budget = StorageBudget(10, max_files=2)
    budget.num_files = 1
    budget.check_files()
    budget.num_files = 2
    with pytest.raises(StorageFull, match="2 files"):
        budget.check_files()
