"""`python -m loadtest.dashboard_run --out docs/images`: pictures of the dashboards during a run that fills every panel.

Starts two servers with the quickstart model, a real Prometheus (Debian's) that scrapes both every second, and traffic:
clients come and go, some use the adapter, some disconnect, some ask for an unknown model; a batch runs, and a
fine-tuning job trains in the pauses. The first server has a small KV cache, so it swaps. The second has two pipeline
stages of two ranks each. `loadtest.png_picture` writes a PNG beside each SVG.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from loadtest.dashboard_picture import Window, ask_prometheus, draw
from loadtest.direct_http import opened
from loadtest.headrace_server import headrace_server
from loadtest.png_picture import write_png
from loadtest.server_process import free_port, running_server

_ROOT = Path(__file__).parents[1]
_DEPLOY = _ROOT / "deploy"
_QUICKSTART = _ROOT / "service" / "quickstart"
_MODEL, _ADAPTER = "headrace-quickstart", "pirate"
_SMALL = (
    *("--enable-finetuning", "--preemption", "swap", "--kv-cache-memory", "8MiB", "--swap-space", "64MiB"),
    *("--lora-modules", f"{_ADAPTER}={_QUICKSTART / 'adapters' / _ADAPTER}"),
)
_STAGES = ("--pipeline-parallel-size", "2", "--tensor-parallel-size", "2", "--kv-cache-memory", "12MiB")
_CLIENTS, _BUSY_S, _PAUSE_S = 28, 20.0, 25.0
_STEADY_CLIENTS = 2
_VISIT_EVERY_S = 1.0
"""One client also calls during the pauses, so that the training is deferred."""
_RATE_INTERVAL = "10s"
_PICTURES = {"headrace": "dashboard", "headrace-engine": "dashboard-engine", "headrace-capacity": "dashboard-capacity"}


@contextlib.contextmanager
def _prometheus(ports: list[int], folder: Path) -> Iterator[str]:
    """Yields the URL of a Prometheus that scrapes these ports of this machine."""
    config = yaml.safe_load((_DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s"}
    config.pop("rule_files", None)
    job = config["scrape_configs"][0]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command = ["prometheus", *flags, f"--web.listen-address={address}"]
    with (
        (folder / "prometheus.log").open("wb") as log,
        running_server(command, f"http://{address}/-/ready", output=log),
    ):
        yield f"http://{address}"


def _post(url: str, body: dict[str, Any] | bytes, content_type: str = "application/json") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with opened(urllib.request.Request(url, data, {"Content-Type": content_type}), 120.0) as answer:
        return json.load(answer)


def _upload(url: str, purpose: str, content: bytes) -> str:
    """Returns the file's id."""
    parts = f'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
    parts += '--x\r\nContent-Disposition: form-data; name="file"; filename="lines.jsonl"\r\n\r\n'
    body = parts.encode() + content + b"\r\n--x--\r\n"
    return str(_post(f"{url}/v1/files", body, "multipart/form-data; boundary=x")["id"])


def _start_batch(url: str) -> None:
    def line(i: int) -> str:
        body = {"model": _MODEL, "prompt": f"Line {i}: a headrace is", "max_tokens": 40}
        return json.dumps({"custom_id": f"{i}", "method": "POST", "url": "/v1/completions", "body": body})

    lines = _upload(url, "batch", "\n".join(map(line, range(60))).encode())
    order = {"input_file_id": lines, "endpoint": "/v1/completions", "completion_window": "24h"}
    _post(f"{url}/v1/batches", order)


def _start_job(url: str) -> None:
    examples = _upload(url, "fine-tune", (_QUICKSTART / "finetuning" / "otter_mill.jsonl").read_bytes())
    parameters = {"n_epochs": 50}
    _post(
        f"{url}/v1/fine_tuning/jobs",
        {"model": _MODEL, "training_file": examples, "suffix": "mill", "hyperparameters": parameters},
    )


def _call(url: str, chance: random.Random) -> None:
    """One random call: long or short, some with the adapter, some for an unknown model, some disconnecting early."""
    model = chance.choices([_MODEL, _ADAPTER, "not-there"], [16, 3, 1])[0]
    prompt = f"{chance.randrange(6)} is the number of this beginning, which some have. " * chance.randrange(1, 7)
    body = {"model": model, "prompt": prompt, "max_tokens": chance.randrange(20, 160), "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"}
    )
    with contextlib.suppress(urllib.error.HTTPError), opened(request, 120.0) as answer:
        num_reads = 2 if chance.random() < 0.05 else 10**6
        for _ in range(num_reads):
            if not answer.read1(65536):
                break


def _clients(
    url: str, count: int, over: threading.Event, is_now: Callable[[], bool] = lambda: True, pause_s: float = 0.1
) -> list[threading.Thread]:
    """Starts `count` client threads. While `is_now()` each calls, waits `pause_s` after its answer, and calls again."""

    def call_on(number: int) -> None:
        chance = random.Random(number)
        while not over.is_set():
            if is_now():
                _call(url, chance)
            over.wait(pause_s)

    threads = [threading.Thread(target=call_on, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def _run(seconds: float, out: Path) -> list[str]:
    """Draws the pictures. Returns the queries that have no data."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((folder / "servers.log").open("wb"))
        small, stages = (
            stack.enter_context(headrace_server([*flags, "--data-dir", str(folder / name)], log))
            for name, flags in (("small", _SMALL), ("stages", _STAGES))
        )
        prometheus = stack.enter_context(_prometheus([small.port, stages.port], folder))
        over = threading.Event()
        stack.callback(over.set)
        began_s = time.time()
        url = f"http://127.0.0.1:{small.port}"
        threads = _clients(url, _CLIENTS, over, lambda: (time.time() - began_s) % (_BUSY_S + _PAUSE_S) < _BUSY_S)
        threads += _clients(url, 1, over, pause_s=_VISIT_EVERY_S)
        threads += _clients(f"http://127.0.0.1:{stages.port}", _STEADY_CLIENTS, over)
        time.sleep(5)
        _start_batch(url)
        _start_job(url)
        time.sleep(seconds - 5)
        over.set()
        for thread in threads:
            thread.join()
        silent: list[str] = []
        ask = ask_prometheus(prometheus, Window(began_s, began_s + seconds), _RATE_INTERVAL)
        for name, picture in _PICTURES.items():
            dashboard = json.loads((_DEPLOY / "grafana" / "dashboards" / f"{name}.json").read_text())
            drawn = draw(dashboard, (), ask)
            (out / f"{picture}.svg").write_text(drawn, encoding="utf-8")
            write_png(drawn, out / f"{picture}.png")
            targets = itertools.chain.from_iterable(
                [(panel["title"], target) for target in panel.get("targets", ())] for panel in dashboard["panels"]
            )
            silent += [
                f"{name}: {title}: {target['legendFormat']}"
                for title, target in targets
                if not ask(target["expr"], target["legendFormat"])
            ]
        return silent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.dashboard_run", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--seconds", type=float, default=150.0)
    options = parser.parse_args()
    silent = _run(options.seconds, options.out)
    print("\n".join(f"no data: {each}" for each in silent) or "every query has data")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
