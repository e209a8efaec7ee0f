from __future__ import annotations

from service.core.host_times import HostTimes, host_table


def test_the_table_adds_up():
    times = HostTimes(
        schedule=1, launch=2, wait=3, apply=4, device=5, commands=0.5, tokenize=0.25, detokenize=0.25, sse=2
    )
    table = host_table(times, process_s=12.0, wall_s=20.0, num_tokens=1_000_000)
    seconds = {line[:20].strip(): float(line[20:30]) for line in table.splitlines()[2:]}
    assert seconds == {
        "engine_step": 10,
        "generation_step": 5,
        "forward (host)": 2,
        "forward (device)": 5,
        "add/remove requests": 0.5,
        "tokenization": 0.25,
        "detokenization": 0.25,
        "SSE": 2,
        "other (CPU)": 2,
    }
    assert "  50.0%     10.00" in table.splitlines()[2]


def test_nothing_generated_is_no_fault():
    assert "engine_step" in host_table(HostTimes(), process_s=1.0, wall_s=1.0, num_tokens=0)


def test_parts_have_names():
    assert HostTimes(sse=2.0).by_part()["sse"] == 2.0
