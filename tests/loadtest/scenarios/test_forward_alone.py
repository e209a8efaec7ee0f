import dataclasses

import pytest

from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.modelled_device import ModelledDevice, iteration_s
from loadtest.scenarios import forward_alone
from loadtest.scenarios.forward_alone import forward_seconds
from service.core.iteration import IterationPlan
from tests.loadtest.baselines.pools import pool


class _Device(ModelledDevice):
    """On the modelled device's clock; notes what is launched before what has been waited for."""

    def __init__(self) -> None:
        super().__init__(block_size=4)
        self.seconds = 0.0
        self.num_in_flight = self.most_in_flight = 0
        self.plans: list[IterationPlan] = []

    def launch(self, plan):
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        self.plans.append(plan)
        return super().launch(plan)

    def run(self, plan):
        self.num_in_flight -= 1
        self.seconds += iteration_s(plan)
        return super().run(plan)


def test_is_the_prompts_and_every_decode_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device()
    monkeypatch.setattr(forward_alone.time, "perf_counter", lambda: device.seconds)
    seconds = forward_seconds(dataclasses.replace(pool(), executor=device), 3, prompt_len=12, output_len=8)
    prompts, decode = device.plans[:2], next(plan for plan in device.plans if plan.num_scheduled_tokens == 3)
    assert [plan.num_scheduled_tokens for plan in prompts] == [24, 12], "32 tokens go into a plan"
    assert {item.num_computed_tokens for item in decode.scheduled} == {16}
    assert seconds == pytest.approx(sum(map(iteration_s, prompts)) + 7 * iteration_s(decode))
    assert device.most_in_flight == 2
    assert set(device.plans[-1].released) == {1, 2, 3}, "the rows"


def test_a_disturbance_is_no_part_of_a_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else slows down one run of the fewer decodes: their difference to the more says nothing then."""
    device, begun = _Device(), 0
    monkeypatch.setattr(forward_alone.time, "perf_counter", lambda: device.seconds)
    seconds_of = forward_alone._seconds

    def disturbed(of_pool: KvPool, plans: list[IterationPlan]) -> float:
        nonlocal begun
        begun += len(plans) == 24
        return seconds_of(of_pool, plans) + (1.0 if len(plans) == 24 and begun == 2 else 0.0)

    monkeypatch.setattr(forward_alone, "_seconds", disturbed)
    seconds = forward_seconds(dataclasses.replace(pool(), executor=device), 3, prompt_len=12, output_len=8)
    prompts, decode = device.plans[:2], next(plan for plan in device.plans if plan.num_scheduled_tokens == 3)
    assert seconds == pytest.approx(sum(map(iteration_s, prompts)) + 7 * iteration_s(decode))
