"""Functions that test ranks run: each rank has the whole engine, for its part of the model, in step with the others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from kernels import compile_processes
from kernels.one_shot_all_reduce import one_shot_all_reduce_reference
from service.config import CacheConfig, LoraConfig
from service.core.iteration import IterationPlan
from service.core.token_logprobs import TokenLogprobs
from service.engine.ports import Executor, PendingIteration
from service.layers.group_parallel import GroupParallel, memory_of_gpus
from service.layers.group_stage import GroupStage
from service.layers.pipeline_stage import RankPlace
from service.layers.tensor_parallel import TensorParallel
from service.runner import graph_step
from service.runner.graph_sizes import graph_sizes
from service.runner.load import LoadedModel, load_executor
from tests.engine.harness import Harness
from tests.runner import uncaptured
from tests.runner.loading import source

BLOCK_SIZE = 8
MAX_NUM_SEQS = 12
BUDGET = 48
"""Tokens per iteration: longer prompts are computed in chunks, beside decodes."""


NUM_SLOTS = 2
MAX_RANK = 8


class Asked(NamedTuple):
    """adapter: its name; "": none."""

    prompt: tuple[int, ...]
    sampling: dict[str, Any]
    adapter: str = ""


class Answered(NamedTuple):
    tokens: dict[tuple[str, int], list[int]]
    logprobs: dict[tuple[str, int], list[TokenLogprobs]]
    prompt_logprobs: dict[str, tuple[TokenLogprobs, ...]]
    num_preemptions: int
    num_blocks: int
    block_bytes: int


def load(parallel: TensorParallel, folder: Path, lora: LoraConfig | None = None, **how: Any) -> LoadedModel:
    kv_dtype = how.pop("kv_dtype", "auto")
    cache = CacheConfig(BLOCK_SIZE, 0.5, 4 << 20, swap_bytes=1 << 20, dtype=kv_dtype)
    return load_executor(source(folder, **how), folder, cache, MAX_NUM_SEQS, BUDGET, lora=lora, parallel=parallel)


def answer(
    parallel: TensorParallel,
    folder: Path,
    asked: list[Asked],
    max_tokens: int,
    num_blocks: int | None = None,
    device: str = "cpu",
    adapters: Mapping[str, Path] | None = None,
    kv_dtype: str = "auto",
) -> Answered:
    """Answer all requests at once. num_blocks: fewer than there are, so that some requests are preempted; blocks for
    the adapters in slots are added. adapters: folders by name."""
    parallel = over_gpus(parallel) if device == "cuda" else parallel
    loaded = load(
        parallel, folder, LoraConfig(NUM_SLOTS, MAX_RANK) if adapters else None, device=device, kv_dtype=kv_dtype
    )
    store = loaded.adapters
    read = {} if store is None or adapters is None else {name: store.read(name, at) for name, at in adapters.items()}
    while loaded.idle_work.do_some():
        pass
    of_adapters = sum(sorted(adapter.num_blocks for adapter in read.values())[-NUM_SLOTS:])
    harness = Harness(
        of_adapters + num_blocks if num_blocks else loaded.num_blocks,
        BLOCK_SIZE,
        MAX_NUM_SEQS,
        BUDGET,
        executor=loaded.runner,
        num_host_blocks=loaded.num_host_blocks,
        num_adapter_slots=NUM_SLOTS if read else 0,
    )
    for prompt, sampling, adapter in asked:
        assert harness.add(harness.request(prompt, max_tokens, adapter=read.get(adapter), **sampling))
    harness.run()
    assert len(harness.finals) == len(asked)
    return Answered(
        dict(harness.tokens),
        dict(harness.logprobs),
        harness.prompt_logprobs,
        sum(stats.num_preemptions for stats, *_ in harness.sink.requests),
        loaded.num_blocks,
        loaded.block_bytes,
    )


class ByGraphs(NamedTuple):
    """num_gathered: elements per rank in the largest gather after the graphs were captured."""

    tokens: dict[tuple[str, int], list[int]]
    num_replayed: int
    num_gathered: int


def answer_by_graphs(
    parallel: TensorParallel, folder: Path, asked: list[Asked], max_tokens: int, whole_bytes: int
) -> ByGraphs:
    """Answers with everything that CUDA graphs use except the capture itself. whole_bytes: see graph_step."""
    gathered, replayed = [0], list[bool]()
    with pytest.MonkeyPatch.context() as patch:
        uncaptured.without_capture(patch)
        patch.setattr(graph_step, "WHOLE_BYTES", whole_bytes)
        gather = GroupParallel.all_gather

        def noting(parallel: GroupParallel, x: torch.Tensor) -> torch.Tensor:
            gathered.append(x.numel())
            return gather(parallel, x)

        def sums(parallel: GroupParallel, x: torch.Tensor) -> torch.Tensor:
            return one_shot_all_reduce_reference(gather(parallel, x))

        patch.setattr(GroupParallel, "all_gather", noting)
        patch.setattr(GroupParallel, "all_reduce", sums)
        loaded = load(parallel, folder)
        runner = loaded.runner
        runner.replays.capture(graph_sizes(MAX_NUM_SEQS, BUDGET))
        gathered[1:] = []
        harness = Harness(loaded.num_blocks, BLOCK_SIZE, MAX_NUM_SEQS, BUDGET, executor=_Noting(runner, replayed))
        for prompt, sampling, _ in asked:
            assert harness.add(harness.request(prompt, max_tokens, **sampling))
        harness.run()
    return ByGraphs(dict(harness.tokens), sum(replayed), max(gathered))


class _Noting:
    """An executor that records for each plan whether it was replayed."""

    def __init__(self, executor: Executor, replayed: list[bool]) -> None:
        self._executor = executor
        self._replayed = replayed

    def launch(self, plan: IterationPlan) -> PendingIteration:
        pending = self._executor.launch(plan)
        self._replayed.append(pending.wait().is_replayed)
        return pending


def alone_and_among(
    parallel: TensorParallel, folder: Path, asked: list[Asked], others: list[Asked], max_tokens: int
) -> tuple[list[Any], list[Any]]:
    """Ids and log probabilities of `asked`, deterministic in bf16: each alone, and all together with `others`."""
    loaded = load(parallel, folder, dtype="bfloat16")

    def bits(requests: list[Asked], company: list[Asked]) -> list[Any]:
        harness = Harness(loaded.num_blocks, BLOCK_SIZE, MAX_NUM_SEQS, BUDGET, executor=loaded.runner)
        wanted = [harness.request(prompt, max_tokens, deterministic=True, **how) for prompt, how, _ in requests]
        beside = [harness.request(prompt, max_tokens, **how) for prompt, how, _ in company]
        for request in (*beside[::2], *wanted, *beside[1::2]):
            assert harness.add(request)
        harness.run()
        keys = [key for request in wanted for key in sorted(harness.tokens) if key[0] == request.request_id]
        return [(key[1], harness.tokens[key], harness.logprobs[key]) for key in keys]

    return [each for one in asked for each in bits([one], [])], bits(asked, others)


def agreed(parallel: TensorParallel, folder: Path, dtype: str) -> tuple[Any, ...]:
    """What ranks must agree on. Each rank measures with its own timer, if it has to choose."""
    loaded = load(parallel, folder, dtype=dtype)
    return loaded.dtype, loaded.choices, loaded.num_blocks, loaded.num_host_blocks, loaded.block_bytes


def over_gpus(parallel: TensorParallel) -> TensorParallel:
    """The same ranks with a GPU each, over NCCL and our all-reduce kernels. After that, these processes must not be
    used on a CPU again."""
    if parallel.size == 1:
        return parallel
    if not _OVER_GPUS:
        device = torch.device("cuda", parallel.rank)
        torch.cuda.set_device(device)
        os.environ["NCCL_NVLS_ENABLE"] = "0"  # no multicast
        if parallel.rank == 0:  # compiles for all
            compile_processes.start(8)
        group, host_group = dist.new_group(backend="nccl", device_id=device), dist.group.WORLD
        assert host_group is not None
        _OVER_GPUS.append(GroupParallel(group, host_group, memory_of_gpus(group, host_group, device)))
    return _OVER_GPUS[0]


def stage_over_gpus(parallel: TensorParallel) -> RankPlace:
    """This rank's place as one of two pipeline stages with a GPU each, over NCCL."""
    over_gpus(parallel)
    if not _STAGES:
        device, host_group = torch.device("cuda", parallel.rank), dist.group.WORLD
        assert host_group is not None
        group, other = dist.new_group(backend="nccl", device_id=device), 1 - parallel.rank
        _STAGES.append(GroupStage(other, 2, other, other, group, host_group))
    return RankPlace(stage=_STAGES[0])


_OVER_GPUS: list[TensorParallel] = []
_STAGES: list[GroupStage] = []
