from loadtest.offline.work_clock import WorkClock


class _Source:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_time_passes_only_while_working() -> None:
    source = _Source()
    clock = WorkClock(source)
    source.seconds += 5
    assert clock.now_s() == 0
    with clock.working():
        source.seconds += 2
        assert clock.now_s() == 2
    source.seconds += 5
    assert clock.now_s() == 2


def test_skips_forward_and_never_back() -> None:
    clock = WorkClock(_Source())
    clock.skip_to(3.0)
    assert clock.now_s() == 3.0
    clock.skip_to(1.0)
    assert clock.now_s() == 3.0
