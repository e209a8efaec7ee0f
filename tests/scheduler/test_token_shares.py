from __future__ import annotations

from tests.engine.harness import Harness


def test_a_flood_of_one_client_does_not_hold_up_another():
    harness = Harness(max_num_seqs=1, max_num_batched_tokens=16, policy="shares")
    for _ in range(6):
        harness.add(harness.request((1, 2, 3), 4, client="flood"))
    harness.step()
    harness.add(harness.request((1, 2, 3), 4, client="other"))
    harness.add(harness.request((1, 2, 3), 4, client="other"))
    harness.run()
    order = list(harness.finals)
    assert order.index("request-6") <= 1
    assert order.index("request-7") <= 3


def test_within_a_client_first_come_first_served():
    harness = Harness(max_num_seqs=1, max_num_batched_tokens=16, policy="shares")
    for _ in range(4):
        harness.add(harness.request((1, 2, 3), 4, client="one"))
    harness.run()
    assert list(harness.finals) == [f"request-{i}" for i in range(4)]
