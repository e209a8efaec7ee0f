import dataclasses

import pytest

from loadtest.scenarios import pagedattention_fig19
from loadtest.scenarios.pagedattention_fig19 import MODELLED, ON_A_DEVICE, EndToEnd, end_to_end
from loadtest.scenarios.stage import FULL, SMALL, Form, Stage


@pytest.mark.parametrize(("load", "form"), [(MODELLED, SMALL), (ON_A_DEVICE, FULL)], ids=["small", "full"])
def test_each_way_has_somebody_to_preempt(load: EndToEnd, form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagedattention_fig19, "MODELLED", load._replace(block_sizes=(16,)))
    table, _ = end_to_end(Stage(dataclasses.replace(SMALL, request_divisor=form.request_divisor)))
    assert [way for _, way, *_ in table.rows] == ["recompute", "swap"]
    assert all(num_preemptions > 20 for *_, num_preemptions in table.rows), "or the two compare nothing"
