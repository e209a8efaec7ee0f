"""Workloads: distributions of lengths and who sends them, each with its source. Lengths in tokens.

A workload is a set of parameters; `draw` turns it into a trace. The same name, number and seed give the same trace on
every machine.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from loadtest.lengths import Fixed, LengthDistribution, Lognormal, Uniform
from loadtest.random_streams import random_stream
from loadtest.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Each request belongs to one of `num_groups` groups and starts with `tokens` tokens that its group shares."""

    tokens: int
    num_groups: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Each conversation has `turns` turns. Before each later one the user pauses for an exponentially distributed time
    with this mean.
    """

    turns: LengthDistribution
    mean_think_time_s: float


@dataclass(frozen=True, slots=True)
class PriorityShare:
    """This share of the requests is sent with this `priority` field (higher is served first)."""

    priority: int
    share: float


@dataclass(frozen=True, slots=True)
class Workload:
    """Parameters of a workload. num_requests: the default number."""

    name: str
    prompt: LengthDistribution
    output: LengthDistribution
    shared_prefix: SharedPrefix | None = None
    conversation: Conversation | None = None
    priorities: tuple[PriorityShare, ...] = ()
    tools: bool = False
    num_requests: int = 1000


def orca() -> Workload:
    """ORCA (OSDI 2022), section 6.2: prompt U(32, 512), output U(1, 128)."""
    return Workload("orca", Uniform(32, 512), Uniform(1, 128))


def sharegpt() -> Workload:
    """Lengths like ShareGPT's in the PagedAttention paper (means 161.31 in, 337.99 out); the spreads are our choice."""
    return Workload("sharegpt", Lognormal(161.31, 1.5, 4, 1024), Lognormal(337.99, 1.0, 4, 1024))


def alpaca() -> Workload:
    """Lengths like Alpaca's in the PagedAttention paper (means 19.31 in, 58.45 out); the spreads are our choice."""
    return Workload("alpaca", Lognormal(19.31, 0.7, 4, 256), Lognormal(58.45, 1.0, 4, 512))


def chat_history() -> Workload:
    """PagedAttention, section 6.5: chat history and query, cut to their last 1,024 tokens, which half of them have;
    answers as ShareGPT's. The spread is our choice.
    """
    return Workload("chat-history", Lognormal(1400, 1.0, 16, 1024), sharegpt().output)


def chatbot() -> Workload:
    """AdaptiveLLM, table 2: Chatbot, mean 17.02 in; output limit 64 (tables 3 and 4); the spread is our choice."""
    return Workload("chatbot", Lognormal(17.02, 0.7, 4, 256), Fixed(64))


def summary() -> Workload:
    """AdaptiveLLM, table 2: Summary, mean 340.48 in, large spread; output limit 64; the spread is our choice."""
    return Workload("summary", Lognormal(340.48, 1.2, 16, 2048), Fixed(64))


def prefill() -> Workload:
    """Prefill alone: 2048 in, 1 out (ours)."""
    return Workload("prefill", Fixed(2048), Fixed(1), num_requests=300)


def one_k_by_one_k() -> Workload:
    """1024 in, 1024 out: FineInfer's overhead measurement, and a common throughput setting."""
    return Workload("1kx1k", Fixed(1024), Fixed(1024), num_requests=100)


def long() -> Workload:
    """Long documents: prompt U(4096, 16384), output U(64, 512) (ours)."""
    return Workload("long", Uniform(4096, 16384), Uniform(64, 512), num_requests=100)


def long_prompts() -> Workload:
    """Prefill with long contexts: prompt U(4096, 16384), short answers, U(64, 256) (ours)."""
    return Workload("long-prompts", Uniform(4096, 16384), Uniform(64, 256), num_requests=100)


def multi_turn() -> Workload:
    """Conversations of U(2, 8) turns. Each prompt is the whole history so far; mean pause 2 s between turns (ours)."""
    return Workload(
        "multi-turn",
        Lognormal(60, 1.0, 4, 512),
        Lognormal(120, 0.8, 4, 512),
        conversation=Conversation(Uniform(2, 8), mean_think_time_s=2.0),
        num_requests=200,
    )


def shared_prefix() -> Workload:
    """Eight system prompts of 512 tokens, each followed by questions of U(16, 128) tokens; output U(16, 128) (ours)."""
    return Workload("shared-prefix", Uniform(16, 128), Uniform(16, 128), shared_prefix=SharedPrefix(512, num_groups=8))


def mixed_priorities() -> Workload:
    """ORCA's lengths; 10 % urgent (priority 10), 60 % ordinary (0), 30 % in the background (-10) (ours)."""
    shares = (PriorityShare(10, 0.1), PriorityShare(0, 0.6), PriorityShare(-10, 0.3))
    return dataclasses.replace(orca(), name="mixed-priorities", priorities=shares)


def tool_calls() -> Workload:
    """Chat requests that must call a tool: short question, up to 128 tokens out (ours); needs the chat endpoint."""
    return Workload("tool-calls", Uniform(16, 64), Fixed(128), tools=True, num_requests=200)


def decode(num_requests: int) -> Workload:
    """`decode-B`: B equal requests, 128 in, 512 out; sent at once they form a batch of constant size (ours)."""
    return Workload(f"decode-{num_requests}", Fixed(128), Fixed(512), num_requests=num_requests)


def fixed(prompt_len: int, output_len: int) -> Workload:
    """`fixed-IxO`: every request has I tokens in, O out; ORCA's microbenchmark is `fixed-32x32` and `fixed-128x32`."""
    return Workload(f"fixed-{prompt_len}x{output_len}", Fixed(prompt_len), Fixed(output_len))


WORKLOADS: Mapping[str, Callable[[], Workload]] = MappingProxyType(
    {
        "orca": orca,
        "sharegpt": sharegpt,
        "alpaca": alpaca,
        "chat-history": chat_history,
        "chatbot": chatbot,
        "summary": summary,
        "prefill": prefill,
        "1kx1k": one_k_by_one_k,
        "long": long,
        "long-prompts": long_prompts,
        "multi-turn": multi_turn,
        "shared-prefix": shared_prefix,
        "mixed-priorities": mixed_priorities,
        "tool-calls": tool_calls,
    }
)


def named(name: str) -> Workload:
    """The workload of that name: one of `WORKLOADS`, `decode-B` or `fixed-IxO`. Raises ValueError for other names."""
    if name in WORKLOADS:
        return WORKLOADS[name]()
    if match := re.fullmatch(r"decode-(\d+)", name):
        return decode(int(match[1]))
    if match := re.fullmatch(r"fixed-(\d+)x(\d+)", name):
        return fixed(int(match[1]), int(match[2]))
    raise ValueError(f"no workload {name!r}; there are {', '.join(WORKLOADS)}, decode-B, fixed-IxO")


def draw(workload: Workload, num_requests: int, seed: int, prompt_seed: int | None = None) -> list[TraceRequest]:
    """`num_requests` requests, all with arrival time 0 (`trace.with_arrivals` sets it).

    prompt_seed: seed of the prompts' ids; None: `seed`. Prompts of one seed begin alike whatever their lengths, so a
    server with a prefix cache already has those of an earlier run: use a different seed for each run against one
    server. In workloads with conversations every turn is a request; the last conversation may be cut short.
    """
    lengths_in = workload.prompt.draw(num_requests, random_stream(seed, "prompt lengths"))
    lengths_out = workload.output.draw(num_requests, random_stream(seed, "output lengths"))
    requests = [
        TraceRequest(
            i,
            prompt_len=int(lengths_in[i]),
            output_len=int(lengths_out[i]),
            prompt_seed=seed if prompt_seed is None else prompt_seed,
            tools=workload.tools,
        )
        for i in range(num_requests)
    ]
    requests = _with_shared_prefix(requests, workload.shared_prefix, seed)
    requests = _with_conversations(requests, workload.conversation, seed)
    return _with_priorities(requests, workload.priorities, seed)


def _with_shared_prefix(requests: list[TraceRequest], shared: SharedPrefix | None, seed: int) -> list[TraceRequest]:
    if shared is None:
        return requests
    groups = random_stream(seed, "prefix groups").integers(0, shared.num_groups, len(requests))
    return [
        dataclasses.replace(request, prefix_len=shared.tokens, prefix_group=int(group))
        for request, group in zip(requests, groups, strict=True)
    ]


def _with_conversations(
    requests: list[TraceRequest], conversation: Conversation | None, seed: int
) -> list[TraceRequest]:
    if conversation is None:
        return requests
    num = len(requests)
    turns = conversation.turns.draw(num, random_stream(seed, "turns"))
    pauses = random_stream(seed, "think times").exponential(conversation.mean_think_time_s, num)
    ids = np.repeat(np.arange(num), turns)[:num]
    starts = np.concatenate([[0], np.cumsum(turns)])
    return [
        dataclasses.replace(
            request,
            conversation_id=int(ids[i]),
            turn=(turn := int(i - starts[ids[i]])),
            think_time_s=float(pauses[i]) if turn else 0.0,
        )
        for i, request in enumerate(requests)
    ]


def _with_priorities(requests: list[TraceRequest], shares: tuple[PriorityShare, ...], seed: int) -> list[TraceRequest]:
    if not shares:
        return requests
    drawn = random_stream(seed, "priorities").choice(
        [share.priority for share in shares], len(requests), p=[share.share for share in shares]
    )
    return [
        dataclasses.replace(request, priority=int(priority)) for request, priority in zip(requests, drawn, strict=True)
    ]
