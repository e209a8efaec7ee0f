"""Headrace beside transformers on one CPU machine, in one run, the two taking turns.

`python -m loadtest.compare_cpu`. A dummy Llama of 135M shape, greedy; prompts of 128 token ids and 64 new tokens, or
other `--lengths` (several are measured one after another).
Rates are output tokens per second over the whole time, prompt processing included. For our server and for
`transformers serve`, HTTP and the client run on the same cores and are included. Medians over the rounds.

Measured: one stream, of transformers `generate` in bf16 and in fp32 and of our server over HTTP; then 16 `generate`
calls one after another (in the dtype that was faster in the first round) against 16 concurrent streams of our server
and of `transformers serve --continuous-batching`. That server runs with `--transformers-python`, since it needs
fastapi and accelerate; if it does not start, the result says why. It takes only text, so both servers load the folder
with a tokenizer whose word `t123` is token 123 (ours still gets token ids, and detokenizes its output).
"""

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.dummy_model import (
    LLAMA_135M,
    NUM_SPECIAL_TOKENS,
    default_cache,
    dummy_llama,
    with_word_tokenizer,
    word_prompt,
)
from loadtest.measurements import Measurements
from loadtest.prompts import BodyOptions, prompt_token_ids
from loadtest.runner import LoadPlan, run_load
from loadtest.server_process import ServerDidNotStartError, free_port, running_server
from loadtest.table import format_figure
from loadtest.trace import TraceRequest
from loadtest.workload import draw, fixed

_PLAIN_BODY = {"ignore_eos": None, "stream_options": None}
"""Removes the fields that `transformers serve` does not know."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much to measure. Lengths in tokens."""

    prompt_len: int = 128
    output_len: int = 64
    num_streams: int = 16
    rounds: int = 2
    first_seed: int = 0

    @classmethod
    def parse(cls, lengths: str, num_streams: int, rounds: int, first_seed: int = 0) -> "Sizes":
        """lengths: prompt and output tokens, such as 128x64. Raises ValueError. Round i draws its prompts with seed
        first_seed + i."""
        prompt_len, output_len = map(int, lengths.split("x"))
        if prompt_len < 1 or output_len < 1:
            raise ValueError(f"lengths must be at least 1, not {lengths}")
        return cls(prompt_len, output_len, num_streams, rounds, first_seed)

    @property
    def lengths(self) -> str:
        """In the form that `parse` takes."""
        return f"{self.prompt_len}x{self.output_len}"


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server to measure over HTTP. as_text: send prompts as text, in the word tokenizer's words."""

    name: str
    base_url: str
    model: str
    as_text: bool = False


def compare(folder: Path, servers: Sequence[HttpServer], sizes: Sizes, vocab_size: int, measured: Measurements) -> None:
    """Fill `measured` with one rate per side and round. Its keys are the rows of the table."""
    options = _options(vocab_size)
    generators = {dtype: _Generate(folder, dtype, sizes.output_len) for dtype in ("bfloat16", "float32")}
    for number in range(sizes.rounds):
        alone, many = _drawn(sizes, number)
        one, prompts = ([prompt_token_ids(request, options) for request in part] for part in (alone, many))
        for dtype, generate in generators.items():
            if number == 0:
                generate(one)
            measured.take(f"generate {dtype}, 1 stream", partial(generate, one))
        for server in servers:
            measured.take(f"{server.name}, 1 stream", partial(over_http, server, alone, options))
        faster = max(generators, key=lambda dtype: measured.first_rate(f"generate {dtype}, 1 stream"))
        measured.take(f"generate {faster}, {len(prompts)} in turn", partial(generators[faster], prompts))
        for server in servers:
            measured.take(f"{server.name}, {len(prompts)} streams", partial(over_http, server, many, options))


def compare_streams(servers: Sequence[HttpServer], sizes: Sizes, vocab_size: int, measured: Measurements) -> None:
    """Fill `measured` with the rates of the servers' concurrent streams only."""
    for number in range(sizes.rounds):
        _, many = _drawn(sizes, number)
        for server in servers:
            side = partial(over_http, server, many, _options(vocab_size))
            measured.take(f"{server.name}, {len(many)} streams", side)


def _options(vocab_size: int) -> BodyOptions:
    return BodyOptions("", vocab_size=vocab_size, min_token_id=NUM_SPECIAL_TOKENS)


def _drawn(sizes: Sizes, number: int) -> tuple[list[TraceRequest], list[TraceRequest]]:
    """The single request and the concurrent requests of a round.

    The prompts are new in every round, since a server may have cached those that it has seen.
    """
    lengths, seed = fixed(sizes.prompt_len, sizes.output_len), sizes.first_seed + number
    drawn = draw(lengths, 1 + sizes.num_streams, seed=seed)
    return drawn[:1], drawn[1:]


class _Generate:
    """transformers `generate`: greedy, one prompt per call, ignoring the end of sequence."""

    def __init__(self, folder: Path, dtype: str, output_len: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._output_len = output_len
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self._model.generation_config.eos_token_id = None

    def __call__(self, prompts: Sequence[list[int]]) -> float:
        """Output tokens per second over all prompts, one after another."""
        began = time.perf_counter()
        for prompt in prompts:
            ids = self._torch.tensor([prompt])
            made = self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=self._output_len,
                pad_token_id=0,
            )
            assert made.shape[1] == len(prompt) + self._output_len
        return len(prompts) * self._output_len / (time.perf_counter() - began)


def over_http(server: HttpServer, requests: Sequence[TraceRequest], options: BodyOptions) -> float:
    """Output tokens per second of all requests sent at once, after one warm-up request."""
    options = dataclasses.replace(options, model=server.model)
    if server.as_text:
        texts = [word_prompt(prompt_token_ids(request, options)) for request in requests]
        requests = [dataclasses.replace(r, prompt_text=text) for r, text in zip(requests, texts, strict=True)]
        options = dataclasses.replace(options, extra_body=_PLAIN_BODY)
    outcome = run_load(LoadPlan(server.base_url, tuple(requests), options))
    for record in outcome.records:
        if record.error or record.output_tokens != record.requested_tokens:
            raise RuntimeError(f"{server.name}: {record.output_tokens} tokens, {record.error or 'no error'}")
    return sum(record.output_tokens for record in outcome.records) / outcome.duration_s


@contextlib.contextmanager
def _headrace(folder: Path, extra: Sequence[str]) -> Iterator[HttpServer]:
    port = free_port()
    command = [sys.executable, "-m", "service", "serve", str(folder), "--port", str(port), *extra]
    base_url = f"http://127.0.0.1:{port}"
    with running_server(command, f"{base_url}/ready") as server:
        print(f"headrace: ready after {server.start_s:.1f} s", file=sys.stderr)
        yield HttpServer("headrace", base_url, _first_model(base_url))


@contextlib.contextmanager
def _transformers_serve(python: str, folder: Path) -> Iterator[HttpServer]:
    port = free_port()
    command = [python, "-m", "transformers.cli.transformers", "serve", str(folder), "--continuous-batching",
               "--device", "cpu", "--dtype", "bfloat16", "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
    base_url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with running_server(command, f"{base_url}/health", environment=environment):
        yield HttpServer("transformers serve", base_url, str(folder), as_text=True)


def _first_model(base_url: str) -> str:
    from loadtest.server_facts import fetch_server_facts

    return fetch_server_facts(base_url, {}).model_id


def summary(rates: dict[str, float], num_streams: int) -> dict[str, Any]:
    """The two ratios that are claimed; None where a side was not measured."""
    single = [rate for name, rate in rates.items() if name.startswith("generate") and name.endswith("1 stream")]
    in_turn = next((rate for name, rate in rates.items() if name.endswith(" in turn")), None)
    served = rates.get(f"transformers serve, {num_streams} streams")
    ours, ours_many = rates.get("headrace, 1 stream"), rates.get(f"headrace, {num_streams} streams")
    return {
        "one_stream_over_faster_generate": ours / max(single) if ours and single else None,
        "streams_over_generate_in_turn": ours_many / in_turn if ours_many and in_turn else None,
        "streams_over_transformers_serve": ours_many / served if ours_many and served else None,
    }


def _print_table(lengths: str, rates: dict[str, float]) -> None:
    name_of_first, reference = next(iter(rates.items()))
    width = max(map(len, (*rates, lengths)))
    print(f"{lengths:{width}}  tokens/s   x {name_of_first}")
    for name, rate in rates.items():
        print(f"{name:{width}}  {format_figure(rate):>8}  {rate / reference:>8.2f}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where the model folder is kept")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument(
        "--lengths", nargs="+", default=["128x64"], metavar="INxOUT", help="prompt and output tokens; default: 128x64"
    )
    parser.add_argument("--streams-only", action="store_true", help="measure only the servers' concurrent streams")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for other work to end")
    parser.add_argument("--base-url", help="measure this running server instead of starting one")
    parser.add_argument("--without-headrace", action="store_true")
    parser.add_argument("--server-args", nargs=argparse.REMAINDER, default=[], help="options for our server, last")
    parser.add_argument("--transformers-python", default=sys.executable, help="interpreter with fastapi and accelerate")
    return parser


def main() -> None:
    """Measure, print the table, and print one JSON object as the last line."""
    args = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    workloads = [
        Sizes.parse(lengths, args.streams, args.rounds, first_seed=i * args.rounds)
        for i, lengths in enumerate(args.lengths)
    ]
    folder = dummy_llama(LLAMA_135M, args.cache)
    words = with_word_tokenizer(folder)
    reasons: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        servers = []
        if args.base_url:
            servers.append(HttpServer("headrace", args.base_url, _first_model(args.base_url)))
        elif not args.without_headrace:
            servers.append(stack.enter_context(_headrace(words, args.server_args)))
        try:
            servers.append(stack.enter_context(_transformers_serve(args.transformers_python, words)))
        except ServerDidNotStartError as error:
            reasons["transformers serve"] = str(error).splitlines()[-1]
        results = []
        for sizes in workloads:
            measured = Measurements(args.patience, max_tries=3)
            if args.streams_only:
                compare_streams(servers, sizes, LLAMA_135M.vocab_size, measured)
            else:
                compare(folder, servers, sizes, LLAMA_135M.vocab_size, measured)
            _print_table(sizes.lengths, measured.medians)
            results.append(_result(sizes, measured))
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps({"workloads": results, "not_measured": reasons, **machine}))


def _result(sizes: Sizes, measured: Measurements) -> dict[str, Any]:
    rates = measured.medians
    return {
        "lengths": sizes.lengths,
        "tokens_per_s": rates,
        **summary(rates, sizes.num_streams),
        "greatest_share_of_others": measured.greatest_share_of_others,
    }


if __name__ == "__main__":
    main()
