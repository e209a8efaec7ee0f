"""Command line of the load generator: `run`, `trace`, `report`, `workloads`.

Heavy modules are imported by the command that needs them, so that help is quick.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.cli_options import add_run_options, add_trace_options, arrival_name

if TYPE_CHECKING:
    from loadtest.arrivals import ArrivalProcess
    from loadtest.metrics import RunLabels
    from loadtest.prompts import BodyOptions
    from loadtest.runner import LoadPlan
    from loadtest.trace import TraceRequest

_FALLBACK_VOCAB_SIZE = 1000
_LATE_MS = 10.0
_RUN_EPILOG = "A key in OPENAI_API_KEY is sent. Progress goes to stderr; the last line of stdout is the result as JSON."


def main(argv: Sequence[str]) -> int:
    """Run one command. Returns the exit code: 0, 1 for a run in which a request failed, 2 for a usage error."""
    args = _parser().parse_args(argv)
    try:
        return int(args.command(args))
    except (ValueError, OSError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace loadtest", description="Send a workload to an OpenAI-compatible server and measure it."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="send load to a server and measure it", epilog=_RUN_EPILOG)
    add_run_options(run)
    run.set_defaults(command=_run)
    trace = commands.add_parser("trace", help="write the trace of a workload")
    add_trace_options(trace)
    trace.set_defaults(command=_trace)
    report = commands.add_parser("report", help="draw saved results as one HTML page")
    report.add_argument("results", nargs="+", type=Path)
    report.add_argument("--out", type=Path, default=Path("report.html"))
    report.set_defaults(command=_report)
    workloads = commands.add_parser("workloads", help="list the workloads and their sources")
    workloads.set_defaults(command=_workloads)
    return parser


def _run(args: argparse.Namespace) -> int:
    from loadtest.metrics import Objectives, summarize, without_long_arrays
    from loadtest.progress import ProgressBar
    from loadtest.runner import LoadError, run_load
    from loadtest.table import text_table

    objectives = Objectives.parse(args.goodput)
    if args.save and not args.save.parent.is_dir():  # say so before the run, not after it
        raise ValueError(f"--save: there is no folder {args.save.parent}")
    plan, labels = _plan(args)
    bar = ProgressBar(len(plan.requests))
    try:
        outcome = run_load(plan, bar)
    except LoadError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    finally:
        bar.close()
    result = summarize(outcome, labels, objectives, args.metric_percentiles)
    _warn(result, open_loop=not plan.closed_loop and not plan.max_concurrency)
    print(text_table([result], [args.label or args.backend]))
    print(json.dumps(without_long_arrays(result)), flush=True)
    if args.save:
        args.save.write_text(json.dumps(result), encoding="utf-8")
    return 1 if result["failed"] else 0


def _plan(args: argparse.Namespace) -> "tuple[LoadPlan, RunLabels]":
    from loadtest.metrics import RunLabels
    from loadtest.runner import LoadPlan, default_num_processes

    headers = _headers(os.environ)
    options = _body_options(args, headers)
    arrival = arrival_name(args)
    plan = LoadPlan(
        base_url=args.base_url,
        requests=tuple(_requests(args, arrival)),
        options=options,
        closed_loop=arrival == "closed",
        max_concurrency=args.max_concurrency or 0,
        num_processes=args.processes or default_num_processes(),
        timeout_s=args.timeout,
        warmup_requests=args.warmup,
        headers=headers,
    )
    labels = RunLabels(
        endpoint_type=args.endpoint_type,
        backend=args.backend,
        model_id=options.model,
        label=args.label,
        tokenizer_id=args.tokenizer,
        workload=args.trace.name if args.trace else args.workload,
        arrival=arrival,
        seed=args.seed,
        num_processes=plan.num_processes,
        request_rate=args.request_rate,
        burstiness=args.burstiness,
        max_concurrency=args.max_concurrency,
    )
    return plan, labels


def _body_options(args: argparse.Namespace, headers: Mapping[str, str]) -> "BodyOptions":
    from loadtest.prompts import BodyOptions

    model, vocab_size = args.model, args.vocab_size
    if model is None or vocab_size is None:
        from loadtest.server_facts import fetch_server_facts

        facts = fetch_server_facts(args.base_url, headers)
        model = model or facts.model_id
        vocab_size = vocab_size or facts.vocab_size
    if vocab_size is None:
        vocab_size = _FALLBACK_VOCAB_SIZE
        print(f"loadtest: vocabulary unknown, prompt ids stay below {vocab_size}", file=sys.stderr)
    return BodyOptions(
        model=model,
        endpoint_type=args.endpoint_type,
        vocab_size=vocab_size,
        min_token_id=args.min_token_id,
        ignore_eos=not args.no_ignore_eos,
        return_token_ids=args.return_token_ids,
        extra_body=args.extra_body,
        deterministic_share=args.deterministic_share,
    )


def _headers(environment: Mapping[str, str]) -> dict[str, str]:
    key = environment.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _requests(args: argparse.Namespace, arrival: str) -> "list[TraceRequest]":
    from loadtest.random_streams import random_stream
    from loadtest.trace import faster, read_trace, with_arrivals
    from loadtest.workload import draw, named

    if args.trace:
        requests = read_trace(args.trace, args.num_prompts)
    else:
        workload = named(args.workload)
        num = workload.num_requests if args.num_prompts is None else args.num_prompts
        requests = draw(workload, num, args.seed)
    if arrival == "trace":
        return faster(requests, args.trace_speed)
    process = _arrival_process(arrival, args.request_rate, args.burstiness)
    num_arrivals = sum(request.turn == 0 for request in requests)
    times = process.arrival_times(num_arrivals, random_stream(args.seed, "arrivals"))
    return with_arrivals(requests, times.tolist())


def _arrival_process(arrival: str, request_rate: float, burstiness: float) -> "ArrivalProcess":
    from loadtest.arrivals import AllAtOnce, ConstantArrivals, GammaArrivals, PoissonArrivals

    if arrival in ("at-once", "closed"):
        return AllAtOnce()
    if arrival == "constant":
        return ConstantArrivals(request_rate)
    if arrival == "gamma":
        return GammaArrivals(request_rate, burstiness)
    return PoissonArrivals(request_rate)


def _warn(result: Mapping[str, Any], open_loop: bool) -> None:
    for kind, count in result["errors_by_kind"].items():
        first = next((error for error in result["errors"] if error.startswith(kind)), "")
        print(f"loadtest: {count} x {first}", file=sys.stderr)
    if result["num_other_length"]:
        print(f"loadtest: {result['num_other_length']} answers not of the length asked for", file=sys.stderr)
    if result["total_cached_tokens"]:
        share = result["total_cached_tokens"] / result["total_input_tokens"]
        words = "of the prompt tokens were in the server's prefix cache; an earlier run's are not with another --seed"
        print(f"loadtest: {share:.0%} {words}", file=sys.stderr)
    lag = result["p99_schedule_lag_ms"]
    if open_loop and lag is not None and lag > _LATE_MS:
        print(
            f"loadtest: the client sent late, p99 {lag:.0f} ms: use more --processes or quieter cores", file=sys.stderr
        )


def _trace(args: argparse.Namespace) -> int:
    from loadtest.trace import write_trace

    requests = _requests(args, arrival_name(args))
    if args.vocab_size is not None:
        requests = _with_prompts(requests, args.vocab_size, args.min_token_id)
    write_trace(args.out, requests)
    tokens_in = sum(request.prefix_len + request.prompt_len for request in requests)
    tokens_out = sum(request.output_len for request in requests)
    print(json.dumps({"requests": len(requests), "input_tokens": tokens_in, "output_tokens": tokens_out}))
    return 0


def _with_prompts(requests: "Sequence[TraceRequest]", vocab_size: int, min_token_id: int) -> "list[TraceRequest]":
    import dataclasses

    from loadtest.prompts import BodyOptions, prompt_token_ids

    options = BodyOptions("", vocab_size=vocab_size, min_token_id=min_token_id)
    return [
        dataclasses.replace(request, prompt_token_ids=tuple(prompt_token_ids(request, options))) for request in requests
    ]


def _report(args: argparse.Namespace) -> int:
    from loadtest.report import html_report

    results = [_read_result(path) for path in args.results]
    names = [result.get("label") or path.stem for result, path in zip(results, args.results, strict=True)]
    args.out.write_text(html_report(results, names), encoding="utf-8")
    print(args.out)
    return 0


def _read_result(path: Path) -> Mapping[str, Any]:
    """Raises ValueError if the file was not written by `run --save`."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(result, dict) or "request_throughput" not in result:
        raise ValueError(f"{path}: not a result of `loadtest run --save`")
    return result


def _workloads(args: argparse.Namespace) -> int:
    from loadtest.workload import WORKLOADS, decode, fixed

    for name, factory in (*WORKLOADS.items(), ("decode-B", decode), ("fixed-IxO", fixed)):
        print(f"{name:18} {(factory.__doc__ or '').strip()}")
    return 0
