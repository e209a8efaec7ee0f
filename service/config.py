"""What each part is told: frozen values, made once by `service/settings` from flags, environment and file.

A part receives its own dataclass, never the whole tree, and nothing is written back. Measured facts (number of
blocks, end-of-sequence ids) are not configuration: they are arguments of whoever needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

UPLOAD_PATH = "/v1/files"
FORM_BYTES = 64 * 1024
"""Of an upload besides its file: the form's other fields, and headers."""
UPLOAD_STEP_BYTES = 1024 * 1024
"""Of an upload: so many must come within the time that a whole body has otherwise."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the model comes from.

    model: a local folder or a hub id. load_format: `auto` reads safetensors, `pt` torch's own format, `dummy` makes
    seeded random weights from config.json alone.
    quantization: of plain weights, at load; None: weights are served as the checkpoint has them. deterministic: every
    request has the bits that it has alone, not only those that ask for it.
    dtype: `auto` picks per device. device: `auto` is cuda where there is one, else cpu.
    max_model_len: context length in tokens; None takes the model's own. implementation: whose modules compute it: ours,
    transformers', or (`auto`) transformers' where we have none.
    """

    model: str
    revision: str | None
    tokenizer: str | None
    chat_template: Path | None
    load_format: Literal["auto", "pt", "dummy"]
    dtype: Literal["auto", "bfloat16", "float32"]
    device: Literal["auto", "cpu", "cuda"]
    max_model_len: int | None
    seed: int
    implementation: Literal["auto", "native", "transformers"] = "auto"
    quantization: Literal["fp8"] | None = None
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The KV cache.

    block_size: tokens a block, 1 to 256 (1 is TokenAttention's allocation).
    memory_utilization: share of the GPU's memory that the process may use. memory_bytes: size of the KV cache;
    None measures on a GPU and takes a quarter of the free memory, at most 4 GiB, on a CPU.
    swap_bytes: host memory for blocks of preempted requests. swap_compression: fp8 rounds what is swapped.
    dtype: of keys and values: the model's, or fp8, which is swapped as it is. by_layer_groups: layers that see a window
    have blocks apart from those that see everything (core/layer_groups.py), which whoever writes plans has to know.
    """

    block_size: int
    memory_utilization: float
    memory_bytes: int | None
    swap_bytes: int = 0
    swap_compression: Literal["none", "fp8"] = "none"
    dtype: Literal["auto", "fp8"] = "auto"
    by_layer_groups: bool = False


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Adapters beside the model.

    num_slots: adapters that are on the device at once. max_rank: of each. modules: (name, folder) of those that are
    served from the start. folder: below which others are found by their names, and may be loaded from. max_host:
    adapters that were found by name and are kept in the host's memory. trains: adapters are trained here, too.
    """

    num_slots: int
    max_rank: int
    modules: tuple[tuple[str, Path], ...] = ()
    folder: Path | None = None
    max_host: int = 256
    trains: bool = False


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """tensor_size: ranks that compute every layer together (ORCA's intra-layer parallelism), each on a device and in a
    process of its own. num_stages: so many such groups, each with its share of the layers (inter-layer parallelism).
    Both 1: this process alone. num_nodes: hosts that the stages are divided among, equally and in their order."""

    tensor_size: int = 1
    num_stages: int = 1
    num_nodes: int = 1

    @property
    def num_ranks(self) -> int:
        return self.tensor_size * self.num_stages

    def stage_of(self, rank: int) -> int:
        """The first ranks are the last stage: what is drawn is rank 0's, which answers."""
        return (rank // self.tensor_size - 1) % self.num_stages

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """In order. Node 0, the head, has the last stages and rank 0; the last node has the first ones: so hidden
        states cross from one host to another num_nodes - 1 times."""
        of_node = self.num_stages // self.num_nodes
        first = self.num_stages - (node + 1) * of_node
        return tuple(rank for rank in range(self.num_ranks) if first <= self.stage_of(rank) < first + of_node)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One of several hosts that serve a model together. rank: its number; 0 is the head, which listens to the others at
    address and port. secret: without which it speaks to nobody."""

    num_nodes: int
    rank: int
    address: str
    port: int
    secret: str = field(repr=False)

    @property
    def is_head(self) -> bool:
        return self.rank == 0


ONE_PROCESS = ParallelConfig()


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """max_num_seqs: sequences in one iteration at most (ORCA's max batch size).

    max_num_batched_tokens: tokens in one iteration at most; long prompts are cut into chunks of it.
    watermark: share of the blocks that an admission leaves free, so that running sequences can grow.
    max_waiting_requests, max_waiting_tokens: beyond either a new request is refused as overloaded; a beginning that
    several waiting prompts share counts once. max_waiting_s: so is one that has waited so long for its first iteration.
    max_preemptions: after so many a request is spared as long as another can be preempted.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    watermark: float
    max_waiting_requests: int
    max_waiting_tokens: int
    max_preemptions: int = 8
    max_waiting_s: float = 600.0


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """The HTTP surface and its limits (sizes in bytes, times in seconds).

    served_model_names: the names clients may use; the first is the one in answers. model_aliases: names that requests
    may use, too, but that are told to nobody: the path of the folder that is served.
    api_keys: accepted bearer keys, each as KEY or NAME:KEY; none means that the API is open. Keys of one name are one
    client's.
    serves_adapters: whether other names may be those of LoRA adapters.
    admin_api_keys: likewise, of operators: these may call the routes that change the server, too. None: nobody may.
    guard_metrics: /metrics asks for a key too.
    root_path: what a proxy may have put before a path; empty: nothing.
    force_usage: every chunk of every stream has its usage. tokens_as_ids: every answer names tokens by their ids.
    prefix_cache_scope: who shares cached prefixes: requests of one key's name (`key`), or `all`.
    max_requests_per_key: requests of one key's name that run or wait at most; beyond, 429.
    allowed_origins: origins whose pages may call this server from a browser; `*` for all.
    tool_call_parser: how the model writes tool calls; `auto` reads it from the chat template.
    default_chat_template_kwargs: variables of the chat template for requests that do not set them.
    reasoning_parser: `auto` splits reasoning from content if the chat template speaks of it.
    max_total_body_bytes: what all requests together may hold of bodies that are being read or parsed; beyond, 503.
    max_logprobs: most probable tokens that a call may ask for beside each of its own.
    max_patterns_at_once: patterns that one text must match together (allOf, & of a grammar): the time to compile them
        doubles with each.
    max_file_bytes: of one uploaded file; max_line_bytes: of one of its lines. max_uploads: at a time.
    max_messages: of a chat; no more may be its content parts and calls of tools, of all messages together.
    max_arguments_characters: of the arguments of one call of a tool in a message; they are JSON, parsed in one step.
    max_logprob_entries: log probabilities that one call may return, over all its tokens; a default max_tokens is cut so
        that it keeps to this.
    deterministic: all requests have the bits that they have alone, not only those that ask for it. exact_swap: what is
        swapped comes back as it was; else none can ask for it.
    responses_store_bytes, responses_store_entries: what responses that are kept may take; 0 bytes: none is kept.
    strict_params: unknown request fields are refused instead of listed in `x-ignored-params`.
    """

    served_model_names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    admin_api_keys: tuple[str, ...] = ()
    guard_metrics: bool = False
    root_path: str = ""
    force_usage: bool = False
    tokens_as_ids: bool = False
    prefix_cache_scope: Literal["key", "all"] = "key"
    max_requests_per_key: int | None = None
    serves_adapters: bool = False
    model_aliases: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ("*",)
    allowed_origins: tuple[str, ...] = ()
    strict_params: bool = False
    tool_call_parser: Literal["auto", "hermes", "llama3_json", "mistral", "pythonic"] = "auto"
    default_chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    reasoning_parser: Literal["auto", "none"] = "auto"
    max_body_bytes: int = 8 * 1024 * 1024
    max_total_body_bytes: int = 256 * 1024 * 1024
    body_timeout_s: float = 30.0
    max_file_bytes: int = 512 * 1024 * 1024
    max_line_bytes: int = 8 * 1024 * 1024
    max_uploads: int = 16
    max_n: int = 128
    max_prompts_per_call: int = 128
    max_sequences_per_call: int = 256
    max_inputs_per_call: int = 2048
    max_stops: int = 16
    max_stop_bytes: int = 1024
    max_stop_token_ids: int = 1024
    max_best_of: int = 20
    max_beam_width: int = 20
    max_logprobs: int = 20
    max_logprob_entries: int = 4_000_000
    max_logit_bias: int = 1024
    max_bad_words: int = 128
    max_allowed_token_ids: int = 65_536
    max_logprob_token_ids: int = 128
    max_messages: int = 8192
    max_arguments_characters: int = 256 * 1024
    max_tools: int = 128
    max_documents: int = 128
    max_schema_bytes: int = 64 * 1024
    max_schema_depth: int = 64
    max_enum_values: int = 5000
    max_regex_bytes: int = 4096
    max_patterns_at_once: int = 12
    max_cache_salt_bytes: int = 1024
    responses_store_bytes: int = 0
    responses_store_entries: int = 10_000
    deterministic: bool = False
    exact_swap: bool = True
    stream_keepalive_s: float = 15.0
    stream_send_timeout_s: float = 30.0
    tokenizer_threads: int = 2


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where the HTTP server listens: on a Unix socket if `uds` is its path, else on host and port (0: a free one).

    certificate, private_key: files in PEM; with them only TLS is spoken. The key may be in the certificate's file.
    """

    host: str = "127.0.0.1"
    port: int = 0
    uds: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one HTTP connection may hold and how long it may take (sizes in bytes, times in seconds).

    header_timeout_s: from connecting, or from the first byte of a later request, to the end of the headers.
    body_timeout_s, send_timeout_s: as the app's own; the server's come a second later. max_body_bytes: as the app's
    own; looked at here where a chunk declares its size. max_upload_bytes: likewise, of what is sent to one of
    `upload_paths` with POST; body_timeout_s is for each UPLOAD_STEP_BYTES of it.
    """

    max_connections: int = 10_000
    max_body_bytes: int = 8 * 1024 * 1024
    max_upload_bytes: int = 512 * 1024 * 1024 + FORM_BYTES
    upload_paths: tuple[str, ...] = (UPLOAD_PATH,)
    max_header_bytes: int = 64 * 1024
    max_headers: int = 100
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    send_timeout_s: float = 30.0
