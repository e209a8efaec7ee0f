"""Finds out how many replicas, of how many GPUs each, a given traffic needs. Uses no server, GPU or cluster.

    headrace plan --request-rate 100 --workload orca --ttft-ms 300 --tpot-ms 20
    headrace plan --profile mine.json --request-rate 5 --input-tokens 800 --output-tokens 200 --ttft-ms 1000

Runs the server's scheduler on the traffic, with Poisson arrivals and measured iteration times (--profile).
`python -m loadtest.capacity.measure MODEL --out mine.json` measures a model on your machine.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from loadtest.capacity.lane import ALL_REDUCE_S, Layout, lane_of
from loadtest.capacity.planner import Objectives, Plan, capacity_of, fewest_gpus, plan_for
from loadtest.capacity.replica_profile import ReplicaProfile, read_profile
from loadtest.capacity.simulation import requests_of
from loadtest.lengths import Lognormal
from loadtest.workload import Workload, named

DEFAULT_PROFILE = "llama-8b-h200"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, 1 if no layout meets the objectives, 2 for bad arguments."""
    args = _parser().parse_args(arguments)
    try:
        plans, missed = _planned(args)
    except ValueError as fault:
        print(f"headrace plan: {fault}", file=sys.stderr)
        return 2
    if args.json:
        best = fewest_gpus(plans) if plans else None
        print(json.dumps({"plans": [_facts(plan, args, plan is best) for plan in plans], "missed": missed}, indent=1))
    else:
        print("\n".join(_page(args, plans, missed)))
    return 0 if plans else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument("--request-rate", type=_above_zero, required=True, metavar="N", help="requests per second")
    traffic.add_argument(
        "--workload", metavar="NAME", help="workload with the lengths; see `headrace loadtest workloads`"
    )
    traffic.add_argument(
        "--input-tokens", type=_above_zero, metavar="N", help="instead: mean prompt length (lognormal)"
    )
    traffic.add_argument(
        "--output-tokens", type=_above_zero, metavar="N", help="instead: mean output length (lognormal)"
    )
    objectives = parser.add_argument_group("objectives")
    objectives.add_argument("--ttft-ms", type=_above_zero, metavar="MS", help="limit of the time to first token")
    objectives.add_argument("--tpot-ms", type=_above_zero, metavar="MS", help="limit of the time per further token")
    objectives.add_argument(
        "--percentile",
        type=_percentile,
        default=95.0,
        metavar="P",
        help="percentage of requests that must meet each objective (95)",
    )
    objectives.add_argument(
        "--spare-replicas",
        type=int,
        choices=range(17),
        default=0,
        metavar="N",
        help="replicas that may fail without missing the objectives (%(default)s)",
    )
    replica = parser.add_argument_group("replica")
    replica.add_argument(
        "--profile",
        action="append",
        metavar="FILE",
        help=f"measured profile of a replica; repeat it to compare several ({DEFAULT_PROFILE})",
    )
    replica.add_argument(
        "--layout",
        action="append",
        type=_layout,
        metavar="TxP",
        help="tensor parallel size x pipeline stages; repeatable (the profile's; for one GPU also 2x1, 4x1, 1x2)",
    )
    replica.add_argument(
        "--all-reduce-us",
        type=_above_zero,
        default=ALL_REDUCE_S * 1e6,
        metavar="US",
        help="time of a short all-reduce over T GPUs, including the cost of split GEMMs (%(default)g: two H200)",
    )
    parser.add_argument("--num-requests", type=_count, default=1000, metavar="N", help="requests to simulate (1000)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _planned(args: argparse.Namespace) -> tuple[list[Plan], dict[str, str]]:
    """The plans of layouts that meet the objectives; for each other layout, by name, why not. Raises ValueError."""
    traffic = _traffic(args)
    objectives = Objectives(args.percentile / 100, _seconds(args.ttft_ms), _seconds(args.tpot_ms))
    plans, missed = list[Plan](), dict[str, str]()
    for profile in map(read_profile, args.profile or [DEFAULT_PROFILE]):
        requests = requests_of(traffic, args.num_requests, profile.max_model_len)
        for layout in _layouts(args, profile):
            name = f"{profile.name}, {layout}"
            try:
                lane = lane_of(profile, layout, args.all_reduce_us / 1e6)
            except ValueError as fault:
                missed[name] = str(fault)
                continue
            capacity = capacity_of(profile, lane, requests, objectives)
            if capacity.requests_per_s == 0:
                missed[name] = f"misses {capacity.limit} even without load"
                continue
            plans.append(plan_for(profile, capacity, requests, args.request_rate, args.spare_replicas))
    return plans, missed


def _layouts(args: argparse.Namespace, profile: ReplicaProfile) -> list[Layout]:
    own = Layout(profile.tensor_parallel_size, profile.pipeline_parallel_size)
    if args.layout:
        return list(args.layout)
    if profile.divisible is None or own.num_gpus > 1:
        return [own]
    return [own, Layout(2, 1), Layout(4, 1), Layout(1, 2)]


def _traffic(args: argparse.Namespace) -> Workload:
    lengths = args.input_tokens, args.output_tokens
    if args.workload is not None:
        if lengths != (None, None):
            raise ValueError("workload: it already has lengths; do not give --input-tokens or --output-tokens too")
        return named(args.workload)
    if None in lengths:
        raise ValueError("lengths: give --input-tokens and --output-tokens, or --workload")
    prompt, output = (Lognormal(mean, 1.0, 1, int(4 * mean)) for mean in lengths)
    return Workload("lengths", prompt, output)


def _page(args: argparse.Namespace, plans: Sequence[Plan], missed: dict[str, str]) -> list[str]:
    lines = [_question(args), ""]
    if plans:
        lines += _table(plans)
        if not all(plan.capacity.lane.is_measured for plan in plans):
            lines.append("* derived from one GPU, not measured; all-reduces, stages as on two H200 (--all-reduce-us)")
        best = fewest_gpus(plans)
        layout = best.capacity.lane.layout
        lines += [
            "",
            f"Fewest GPUs: {best.num_replicas} x --tensor-parallel-size {layout.tensor_parallel_size}"
            f" with {layout.pipeline_parallel_size} stage{'s' * (layout.pipeline_parallel_size > 1)}"
            f": {best.num_gpus} in total.",
        ]
    lines += [f"{name}: {why}" for name, why in missed.items()]
    return lines


def _question(args: argparse.Namespace) -> str:
    lengths = args.workload or f"{args.input_tokens:g} tokens in, {args.output_tokens:g} out"
    asked = [f"{name} <= {ms:g} ms" for name, ms in (("TTFT", args.ttft_ms), ("TPOT", args.tpot_ms)) if ms]
    objective = f"; {args.percentile:g} % with {', '.join(asked)}" if asked else ""
    return f"{args.request_rate:g} requests/s ({lengths}){objective}"


def _table(plans: Sequence[Plan]) -> list[str]:
    rows = [("T x P", "requests/s a replica", "limit", "replicas", "GPUs", "TTFT p50, p95, ms", "TPOT p50, p95, ms")]
    for plan in plans:
        capacity, seen = plan.capacity, plan.seen
        rows.append(
            (
                f"{capacity.lane.layout}{'' if capacity.lane.is_measured else ' *'}",
                f"{capacity.requests_per_s:.3g}",
                capacity.limit,
                str(plan.num_replicas),
                str(plan.num_gpus),
                f"{seen.ttft_s(0.5) * 1e3:.3g}, {seen.ttft_s(0.95) * 1e3:.3g}",
                f"{seen.tpot_s(0.5) * 1e3:.3g}, {seen.tpot_s(0.95) * 1e3:.3g}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _facts(plan: Plan, args: argparse.Namespace, is_best: bool) -> dict[str, Any]:
    capacity, seen, share = plan.capacity, plan.seen, args.percentile / 100
    return {
        "tensor_parallel_size": capacity.lane.layout.tensor_parallel_size,
        "pipeline_parallel_size": capacity.lane.layout.pipeline_parallel_size,
        "measured": capacity.lane.is_measured,
        "requests_per_s_a_replica": capacity.requests_per_s,
        "limit": capacity.limit,
        "replicas": plan.num_replicas,
        "gpus": plan.num_gpus,
        "fewest_gpus": is_best,
        "ttft_ms": {"p50": seen.ttft_s(0.5) * 1e3, f"p{args.percentile:g}": seen.ttft_s(share) * 1e3},
        "tpot_ms": {"p50": seen.tpot_s(0.5) * 1e3, f"p{args.percentile:g}": seen.tpot_s(share) * 1e3},
        "mean_batch_size": seen.mean_batch_size,
        "preemptions": seen.num_preemptions,
    }


def _layout(text: str) -> Layout:
    sizes = text.lower().split("x")
    if len(sizes) != 2 or not all(size.isdecimal() and 1 <= int(size) <= 1024 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is not TxP, such as 2x1: T GPUs per layer, P stages")
    return Layout(int(sizes[0]), int(sizes[1]))


def _number(text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least < value < most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above {least:g} and below {most:g}")
    return value


def _above_zero(text: str) -> float:
    return _number(text, 0, 1e9)


def _percentile(text: str) -> float:
    return _number(text, 0, 100)


def _count(text: str) -> int:
    if not text.isdecimal() or not 20 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 20 to 100000")
    return int(text)


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000
