"""FineInfer end to end, figures 3 and 4 and table 1: what engine, server and CLI add to the forward passes.

Three copies of a request at once, many times: the forward passes alone; the engine; the engine with SimpleReqManager
("Engine Only"; ours is the report's "Engine + Nopad"); a server over HTTP; and a batch of `headrace chat` against that
server. Medians and quartiles of elapsed time. Lengths are the report's on a GPU, and an eighth of them on a CPU, where
the model has two layers.
"""

import dataclasses
import http.client
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import quantiles
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from loadtest.baselines.engine_system import EngineSystem, constant_limit, paged
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.simple_req_manager import simple_req_manager
from loadtest.model_shapes import plain_ids_end, read_shape
from loadtest.offline.replay import replay
from loadtest.offline.serving_system import OfflineRequest
from loadtest.scenarios.figure import Figure, Table
from loadtest.scenarios.forward_alone import forward_trials
from loadtest.scenarios.stage import Stage
from loadtest.serving_table import served
from service.chat_client.batch_input import BatchItem
from service.chat_client.batches import Batches
from service.chat_client.server import Server, ServerFault
from service.chat_client.server_batch import ServerBatch

NAME = "fineinfer_overhead"
LENGTHS, LENGTHS_ON_CPU = ((256, 128), (1024, 1024)), ((32, 16), (128, 128))
COPIES = 3
TRIALS = 50
"""Fewer if all components together would exceed the stage's `trials_s`; the table says how many. On an H200, 50 trials
of (256, 128) take 150 s, of (1024, 1024) 1,200 s."""
_SERVER_KV_MEMORY = "12GiB"

Trial = Callable[[int], None]
"""Serves the copies once. Its number makes its prompts unique, so that no prefix cache has them."""


class Spread(NamedTuple):
    """Seconds."""

    trials: int
    low: float
    median: float
    high: float


def run(stage: Stage) -> Figure:
    """The figure."""
    small = stage.form.name == "small"
    lengths = LENGTHS_ON_CPU if small else LENGTHS
    options = ["--no-overlap"] if small else [f"--kv-cache-memory={_SERVER_KV_MEMORY}"]
    pool = stage.model_pool(2 * COPIES * sum(lengths[-1]))
    firsts = itertools.count()
    rows: list[list[object]] = []
    with _chat_template() as template, served(stage.form.shape, sys.executable, [*options, template]) as (base_url, _):
        for number, (prompt_len, output_len) in enumerate(lengths):
            components = _offline(pool, prompt_len, output_len)
            components |= _over_http(base_url, stage.form.shape, prompt_len, output_len, firsts)
            measured = spreads(components, num_warm_ups=int(number == 0), most_s=stage.trials_s)
            forward = measured["forward passes"]
            for name, spread in measured.items():
                trials, *seconds = spread
                added = None if spread is forward else overhead(forward, spread)
                rows.append([f"({prompt_len}, {output_len})", name, trials, *(1e3 * s for s in seconds), added])
    columns = ["tokens in, out", "through", "trials", "first quartile, ms", "median, ms", "third, ms", "overhead, %"]
    return Figure(
        NAME,
        "FineInfer figures 3 and 4, table 1: overhead of engine, server and CLI",
        f"{COPIES} copies of a request at once, {TRIALS} trials or what has room in {stage.trials_s:g} s, in turns",
        [Table("Latency of the batch", columns, rows), _table_1(pool, *lengths[-1])],
        notes=[
            "overhead: share of the median that is not the forward passes'; each row includes the parts above it;"
            " scatter: the quartile ranges of the two overlap",
            "table 1 shows host seconds; with overlapping iterations most of them pass while the device computes",
        ],
    )


@contextmanager
def _chat_template() -> Iterator[str]:
    """An option of `serve` with a chat template, which a shape lacks: the text of the first message only."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write("{{ messages[0]['content'] }}")
        file.flush()
        yield f"--chat-template={file.name}"


def spreads(
    components: Mapping[str, Trial], most_s: float, trials: int = TRIALS, num_warm_ups: int = 1
) -> dict[str, Spread]:
    """Run warm-ups, then `trials` rounds, or as many as start within `most_s`, but at least three. The components take
    turns, so that other work on the machine affects all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in components}
    began_s = time.perf_counter()
    for number in range(num_warm_ups + trials):
        if number == num_warm_ups:
            began_s = time.perf_counter()
        if number >= num_warm_ups + 3 and time.perf_counter() - began_s >= most_s:
            break
        for name, trial in components.items():
            trial_s = time.perf_counter()
            trial(number)
            if number >= num_warm_ups:
                seconds[name].append(time.perf_counter() - trial_s)
    return {name: Spread(len(of_one), *quantiles(of_one, n=4)) for name, of_one in seconds.items()}


def overhead(forward: Spread, whole: Spread) -> float | str:
    """(whole - forward) / whole of the medians, in %; `scatter` if the quartile ranges overlap."""
    return 100 * (whole.median - forward.median) / whole.median if whole.low > forward.high else "scatter"


def _offline(pool: KvPool, prompt_len: int, output_len: int) -> dict[str, Trial]:
    forward = forward_trials(pool, COPIES, prompt_len, output_len)
    plain = _plain(pool)

    def replayed(make: Callable[[], EngineSystem]) -> Trial:
        return lambda number: _replay(make(), prompt_len, output_len)

    limit = constant_limit(output_len)
    return {
        "forward passes": lambda number: forward(),
        "engine, SimpleReqManager": replayed(lambda: simple_req_manager(plain, limit)),
        "engine": replayed(lambda: paged(pool)),
    }


def _over_http(base_url: str, shape: str, prompt_len: int, output_len: int, firsts: Iterator[int]) -> dict[str, Trial]:
    """firsts: unique beginnings of prompts, so that a prompt does not begin like an earlier, shorter one."""
    server = Server(base_url)
    model, vocab_size = server.model_names()[0], plain_ids_end(read_shape(shape))
    fields = {"model": model, "max_tokens": output_len, "temperature": 0.0, "ignore_eos": True}

    def through_server(number: int) -> None:
        body = {**fields, "prompt": _ids(prompt_len, vocab_size, next(firsts))}
        with ThreadPoolExecutor(COPIES) as pool:
            list(pool.map(lambda _: _post(base_url, "/v1/completions", body), range(COPIES)))

    def chat_body(text: str) -> dict[str, Any]:
        return {**fields, "messages": [{"role": "user", "content": text}]}

    answer = _post(base_url, "/v1/chat/completions", {**chat_body("a"), "max_tokens": 1})
    num_letters = prompt_len - answer["usage"]["prompt_tokens"] + 1  # a letter is a token of the dummy tokenizer

    def by_calls(items: Sequence[BatchItem]) -> ServerBatch:
        raise ServerFault("not used: the server delays batches until it is idle, which is no overhead")

    def through_cli(number: int) -> None:
        text = f"{next(firsts)} ".ljust(num_letters, "abcdefgh"[number % 8])
        batches = Batches(by_calls, lambda item: server.complete_chat(chat_body(item.prompt)))
        batch = batches.start([BatchItem(text, output_len)] * COPIES)
        for pending in batch.answers:
            pending.result()
        batches.close()

    return {"server": through_server, "CLI": through_cli}


def _table_1(pool: KvPool, prompt_len: int, output_len: int) -> Table:
    """Host seconds of both engines, by part."""
    plain = _plain(pool)
    rows = []
    for name, system in (
        ("engine, SimpleReqManager", simple_req_manager(plain, constant_limit(output_len))),
        ("engine, no overlap", paged(plain)),
        ("engine, as served", paged(pool)),
    ):
        began_s = time.perf_counter()
        _replay(system, prompt_len, output_len)
        wall_s = time.perf_counter() - began_s
        iterations = system.log.iterations
        parts = [
            sum(getattr(each, part) for each in iterations) for part in ("schedule_s", "apply_s", "launch_s", "wait_s")
        ]
        rows.append([name, len(iterations), 1e3 * wall_s, *(1e3 * part for part in parts), 1e3 * (wall_s - sum(parts))])
    columns = ["", "iterations", "total, ms", "deciding", "applying", "launching", "waiting for the device", "other"]
    return Table(f"Table 1: where the host's time goes, {COPIES} of ({prompt_len}, {output_len})", columns, rows)


def _plain(pool: KvPool) -> KvPool:
    """The pool without overlap, which SimpleReqManager's iterations cannot have."""
    return dataclasses.replace(pool, overlap=False)


def _replay(system: EngineSystem, prompt_len: int, output_len: int) -> None:
    ids = tuple(2 + position % 50 for position in range(prompt_len))
    replay(system, [OfflineRequest(i, 0.0, ids, output_len) for i in range(COPIES)])


def _ids(num: int, vocab_size: int, first: int) -> list[int]:
    """A prompt with a unique beginning."""
    return [3 + (first + position) % (vocab_size - 3) for position in range(num)]


def _post(base_url: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    parts = urlsplit(base_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        with connection.getresponse() as answer:
            told: dict[str, Any] = json.load(answer)
            if answer.status != http.client.OK:
                raise RuntimeError(f"{path} answered {answer.status}: {told}")
            return told
    finally:
        connection.close()
