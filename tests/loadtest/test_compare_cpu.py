from pathlib import Path

import pytest

from loadtest.compare_cpu import HttpServer, Sizes, compare, compare_streams, over_http, summary
from loadtest.dummy_model import dummy_llama
from loadtest.measurements import Measurements
from loadtest.prompts import BodyOptions
from loadtest.workload import draw, fixed
from tests.loadtest.conftest import ITL_S, TTFT_S
from tests.loadtest.tiny_llama import LLAMA_TINY


@pytest.mark.parametrize("as_text", [False, True])
def test_rate_over_http_is_that_of_the_known_timings(stub_url: str, as_text: bool) -> None:
    server = HttpServer("stub", stub_url, "stub", as_text)
    requests = draw(fixed(8, 21), 3, seed=0)
    # Other work on the machine can only delay it.
    rate = max(over_http(server, requests, BodyOptions("", vocab_size=50)) for _ in range(3))
    assert rate == pytest.approx(3 * 21 / (TTFT_S + 20 * ITL_S), rel=0.1)


def test_a_failing_side_is_an_error(fast_stub_url: str) -> None:
    server = HttpServer("stub", fast_stub_url, "stub-503")
    with pytest.raises(Exception, match="http_503"):
        over_http(server, draw(fixed(8, 4), 1, seed=0), BodyOptions("", vocab_size=50))


def test_every_side_is_measured(fast_stub_url: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = dummy_llama(LLAMA_TINY, tmp_path)
    sizes = Sizes(prompt_len=8, output_len=4, num_streams=2, rounds=1)
    measured = Measurements()
    compare(folder, [HttpServer("headrace", fast_stub_url, "stub")], sizes, LLAMA_TINY.vocab_size, measured)
    rates = measured.medians
    assert len(rates) == 5
    ratios = summary(rates, 2)
    assert ratios["one_stream_over_faster_generate"] > 0
    assert ratios["streams_over_generate_in_turn"] > 0
    assert ratios["streams_over_transformers_serve"] is None


def test_servers_alone(fast_stub_url: str) -> None:
    servers = [HttpServer("headrace", fast_stub_url, "stub"), HttpServer("transformers serve", fast_stub_url, "stub")]
    measured = Measurements()
    compare_streams(servers, Sizes.parse("8x4", num_streams=2, rounds=2), LLAMA_TINY.vocab_size, measured)
    assert set(measured.medians) == {"headrace, 2 streams", "transformers serve, 2 streams"}
    assert summary(measured.medians, 2)["streams_over_transformers_serve"] > 0


@pytest.mark.parametrize("lengths", ["128", "128x0", "0x4", "axb", "1x2x3"])
def test_lengths_that_are_none(lengths: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Sizes.parse(lengths, num_streams=1, rounds=1)
