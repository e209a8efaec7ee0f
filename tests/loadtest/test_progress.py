import io

from loadtest.progress import ProgressBar


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_draws_on_a_terminal() -> None:
    stream = _Terminal()
    bar = ProgressBar(10, stream)
    bar(5)
    bar.close()
    assert "5/10" in stream.getvalue()
    assert stream.getvalue().endswith("\n")


def test_is_silent_elsewhere() -> None:
    stream = io.StringIO()
    bar = ProgressBar(10, stream)
    bar(5)
    bar.close()
    assert stream.getvalue() == ""
