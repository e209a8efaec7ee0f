"""Every setting of `headrace serve`: its name, type, default and description, and what contradicts what.

`reader.py` fills them in; the parts of the service receive the plain values of `config.py`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import ByteSize, Field, FiniteFloat, JsonValue, model_validator
from pydantic_settings import (
    BaseSettings,
    CliPositionalArg,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from service.config import (
    ApiConfig,
    CacheConfig,
    ConnectionLimits,
    ListenAddress,
    LoraConfig,
    ModelSource,
    ParallelConfig,
    SchedulerConfig,
)
from service.errors import ConfigError
from service.settings.api_key_file import read_api_keys
from service.settings.lists import AdapterFolders, HostNames, Keys, Names
from service.settings.loopback import is_loopback
from service.settings.service_links import is_service_link
from service.settings.token_count import TokenCount

ENV_PREFIX = "HEADRACE_"
QUICKSTART_MODEL = Path(__file__).parents[1] / "quickstart" / "model"
QUICKSTART_NAME = "headrace-quickstart"
QUICKSTART_ADAPTERS = Path(__file__).parents[1] / "quickstart" / "adapters"
MOST_LOGPROBS = 128
"""Most probable tokens that the executor tells at one place (service/sampling/logprobs.py)."""
SECRETS = frozenset({"api_key", "admin_api_key"})


class Settings(BaseSettings):
    """Start the service."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        extra="forbid",
        protected_namespaces=(),
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_exit_on_error=False,
    )

    model: CliPositionalArg[str] = Field(
        QUICKSTART_NAME,
        min_length=1,
        description="local folder or hub id; the model that comes with Headrace if left out",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a hub id")
    tokenizer: str | None = Field(None, description="folder or hub id of the tokenizer, if not the model's")
    chat_template: Path | None = Field(None, description="file with a chat template, if not the model's")
    default_chat_template_kwargs: dict[str, JsonValue] = Field(
        {}, description='variables of the chat template for requests that do not set them: {"enable_thinking": false}'
    )
    served_model_name: Names = Field(
        (), description="names that clients may use, comma-separated; the first one is in the answers"
    )
    load_format: Literal["auto", "pt", "dummy"] = Field(
        "auto",
        description="auto reads safetensors; pt torch's own files, pickles of somebody you trust; dummy makes random"
        " weights",
    )
    model_impl: Literal["auto", "native", "transformers"] = Field(
        "auto",
        description="whose modules compute the model: native ones, transformers', or auto: transformers' where there"
        " are no native ones",
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field("auto", description="type of weights and KV cache")
    quantization: Literal["fp8"] | None = Field(None, description="plain weights become these at load")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto is the GPU if there is one")
    tensor_parallel_size: int = Field(
        1, ge=1, le=64, description="GPUs that compute every layer together, each with its part of the weights"
    )
    max_model_len: TokenCount | None = Field(
        None, ge=2, description="context length in tokens (8192, 8k, 8K); the model's own if left out"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed of dummy weights")

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 for all")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    uds: Path | None = Field(None, description="Unix socket to listen on, instead of host and port")
    ssl_certfile: Path | None = Field(None, description="certificate chain (PEM); with it, only HTTPS is served")
    ssl_keyfile: Path | None = Field(None, description="its private key (PEM), if not in the same file")
    api_key: Keys = Field(
        (), description="accepted bearer keys, comma-separated, each KEY or NAME:KEY; open to all if left out"
    )
    api_key_file: Path | None = Field(
        None, description="file with accepted bearer keys, one a line, each KEY or NAME:KEY; read at the start"
    )
    admin_api_key: Keys = Field(
        (), description="bearer keys of operators, comma-separated, each KEY or NAME:KEY; no admin routes if left out"
    )
    admin_api_key_file: Path | None = Field(
        None, description="file with bearer keys of operators, one a line, each KEY or NAME:KEY; read at the start"
    )
    max_requests_per_key: int | None = Field(
        None, ge=1, description="requests of one key that run or wait at most; beyond, 429; no limit if left out"
    )
    guard_metrics: bool = Field(False, description="/metrics asks for a key too")
    allowed_hosts: HostNames = Field(
        (),
        description="names to be called by besides localhost and addresses, comma-separated; * for all, which it is by"
        " default with keys or beyond loopback",
    )
    allowed_origins: Names = Field(
        (), description="origins whose pages may call from a browser, comma-separated; * for all; none if left out"
    )
    strict_params: bool = Field(False, description="refuse unknown request fields instead of naming them in a header")
    max_stops: int = Field(16, ge=1, le=64, description="stop strings of one request at most")
    max_logprobs: int = Field(
        20,
        ge=-1,
        le=MOST_LOGPROBS,
        description="log probabilities at one place at most; -1: all that there can be, 128",
    )
    tool_call_parser: Literal["auto", "hermes", "llama3_json", "mistral", "pythonic"] = Field(
        "auto", description="how the model writes tool calls; auto reads it from the chat template"
    )
    reasoning_parser: Literal["auto", "none"] = Field(
        "auto", description="auto splits reasoning from content if the chat template speaks of it"
    )
    max_connections: int = Field(10_000, ge=1, description="open connections at most")
    max_body_bytes: ByteSize = Field(ByteSize(8 * 1024**2), gt=0, description="largest request body")
    max_total_body_bytes: ByteSize = Field(
        ByteSize(256 * 1024**2), gt=0, description="request bodies held at once while they are read; beyond, 503"
    )
    responses_store: bool = Field(
        False, description="keep responses in memory: previous_response_id, background, GET /v1/responses/{id}"
    )
    responses_store_size: ByteSize = Field(
        ByteSize(256 * 1024**2), gt=0, description="memory of the responses that are kept; the oldest go first"
    )
    shutdown_delay: FiniteFloat = Field(
        0.0,
        ge=0,
        description="seconds after SIGTERM in which /ready is 503 and new requests are still taken, so that a balancer"
        " can hear of it; shutdown-timeout begins behind them",
    )
    shutdown_timeout: FiniteFloat = Field(30.0, ge=0, description="seconds that running requests have after SIGTERM")
    metrics_compat: Literal["vllm", "none"] = Field("vllm", description="also export the vllm:* metric names")
    stream_interval_ms: FiniteFloat | None = Field(
        None,
        ge=0,
        description="least time between a stream's events; if left out, every token is sent at once while the event"
        " loop is less than half busy, and tokens go together beyond",
    )
    watchdog_timeout: FiniteFloat | None = Field(
        None,
        ge=2,
        description="seconds of an iteration after which the process ends itself (60 on a GPU, 600 on a CPU)",
    )
    access_log: bool = Field(False, description="log a line per request, without what was said in it")
    log_format: Literal["auto", "text", "json"] = Field(
        "auto",
        description="of the log's lines; auto: text, but for those of requests, which are JSON unless on a terminal",
    )
    kv_events_endpoint: str | None = Field(
        None, description="ZMQ address where the prefix cache's events are published; needs the extra kv-events"
    )
    kv_events_replay_endpoint: str | None = Field(None, description="ZMQ address to ask for missed ones at, if any")
    kv_events_topic: str | None = Field(None, description="what their messages begin with, for subscribers")
    otlp_endpoint: str | None = Field(
        None, description="URL of an OpenTelemetry collector that gets a trace of each request; needs the extra otel"
    )
    log_load_every: FiniteFloat = Field(
        10.0, ge=0, description="seconds between lines that tell the load, while there is any; 0: none"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe level logged")

    max_num_seqs: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="sequences in one iteration at most (256; 512 or 1024 on a GPU with much memory)",
    )
    max_num_batched_tokens: TokenCount | None = Field(
        None,
        ge=2,
        description="tokens in one iteration at most (2048 on a GPU, 4096 if it has much memory, 512 on a CPU);"
        " more than max-num-seqs",
    )
    overlap: bool | None = Field(None, description="launch an iteration while another runs; on a GPU if left out")
    inter_token_target_ms: FiniteFloat | None = Field(
        None, gt=0, description="prompt chunks shrink so that decodes wait no longer for a token; no target if left out"
    )
    finetuning_mode: Literal["deferred", "interleaved"] = Field(
        "deferred",
        description="when a fine-tuning job computes: while no request runs, or also between the tokens of those that"
        " run, as far as inter-token-target-ms leaves time",
    )
    deferral_bound: float = Field(
        0.1,
        ge=0,
        description="seconds that a request may be kept waiting for a fine-tuning job while none runs, if the mode is"
        " deferred; 0: requests first, inf: the job first",
    )
    scheduling_policy: Literal["fcfs", "priority", "fair", "shares"] = Field(
        "fcfs", description="who goes next: first come, the request's priority, AdaptiveLLM's fairness, or equal shares"
    )
    priority_order: Literal["higher-first", "lower-first"] = Field(
        "higher-first", description="which of two requests' priority goes first; lower-first is vLLM's"
    )
    admission_policy: Literal["on-demand", "reserve", "forecast"] = Field(
        "on-demand", description="when a request fits: its tokens now, all it may need (ORCA), or a forecast (LightLLM)"
    )
    preemption: Literal["recompute", "swap", "adaptive"] = Field(
        "recompute", description="how a preempted request returns: computed again, from host memory, or the cheaper"
    )
    max_preemptions: int = Field(
        8, ge=1, description="preemptions after which a request is spared as long as another can be preempted"
    )
    swap_space: ByteSize = Field(ByteSize(4 * 1024**3), ge=0, description="host memory for swapped requests, if any")
    swap_compression: Literal["none", "fp8"] = Field(
        "none", description="fp8 swaps half the bytes of bf16; keys and values come back off by up to 1/16"
    )
    watermark: float = Field(0.01, ge=0, lt=1, description="share of KV blocks that admissions leave free")
    max_waiting_requests: int = Field(1024, ge=1, description="waiting requests at most; beyond, 503")
    max_waiting_tokens: TokenCount | None = Field(
        None,
        ge=1,
        description="waiting prompt tokens at most, shared beginnings once; beyond, 503 (by the host's memory)",
    )
    max_waiting_seconds: FiniteFloat = Field(
        600.0, gt=0, description="a request that waits longer for its turn gets 503"
    )

    block_size: int = Field(16, ge=1, le=256, description="tokens in a KV block")
    enable_prefix_caching: bool = Field(True, description="reuse the KV blocks of prompts that begin alike")
    prefix_cache_scope: Literal["key", "all"] = Field(
        "key", description="who shares them: requests of one API key (of its name, if it has one), or all"
    )
    lora_modules: AdapterFolders = Field((), description="LoRA adapters served by name: NAME=FOLDER, with commas")
    lora_dir: Path | None = Field(
        None, description="folder of LoRA adapters; each is served by its folder's name when a request asks for it"
    )
    max_loras: int = Field(64, ge=1, le=1024, description="adapters on the device at once")
    max_lora_rank: int = Field(64, ge=1, le=256, description="highest rank of an adapter")
    max_cpu_loras: int = Field(256, ge=1, description="adapters of lora-dir in the host's memory at once")
    enable_finetuning: bool = Field(
        False, description="take OpenAI's fine-tuning jobs: LoRA adapters are trained here, beside the requests"
    )
    data_dir: Path | None = Field(
        None, description="directory of uploaded files and of jobs; below the user's own data if left out"
    )
    max_storage_gib: FiniteFloat = Field(10.0, gt=0, description="GiB that all files may take together; beyond, 507")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of the GPU's memory to use")
    enforce_eager: bool = Field(False, description="launch every kernel by itself, without CUDA graphs")
    choices: Path | None = Field(
        None, description="file that keeps what was chosen by timing; a later start computes by it and times nothing"
    )
    kv_cache_memory: ByteSize | None = Field(
        None, gt=0, description="size of the KV cache (4GiB); measured if left out"
    )

    profile_host: bool = Field(False, description="at the end, print where the host's time went")
    config: Path | None = Field(None, description="YAML file with any of these settings")

    _keys_of_file: tuple[str, ...] = ()
    _admin_keys_of_file: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _read_key_files(self) -> Settings:
        try:
            if self.api_key_file is not None:
                self._keys_of_file = read_api_keys(self.api_key_file, "api-key-file")
            if self.admin_api_key_file is not None:
                self._admin_keys_of_file = read_api_keys(self.admin_api_key_file, "admin-api-key-file")
        except ConfigError as fault:
            raise ValueError(str(fault)) from None
        return self

    @model_validator(mode="after")
    def _check_admin_keys(self) -> Settings:
        keys, admin_keys = ({entry.rpartition(":")[2] for entry in each} for each in (self._keys(), self._admin_keys()))
        if keys & admin_keys:
            raise ValueError("a key of admin-api-key is one of api-key, too: whoever calls would be an operator")
        return self

    @model_validator(mode="after")
    def _check_key_limit(self) -> Settings:
        if self.max_requests_per_key is not None and not self._keys():
            raise ValueError("max-requests-per-key means nothing without api-key or api-key-file")
        return self

    @model_validator(mode="after")
    def _check_finetuning_mode(self) -> Settings:
        if self.finetuning_mode == "interleaved" and self.inter_token_target_ms is None:
            raise ValueError("finetuning-mode interleaved needs inter-token-target-ms, to know what time there is")
        return self

    @model_validator(mode="after")
    def _check_ranks(self) -> Settings:
        if self.tensor_parallel_size > 1 and self.lora_config() is not None:
            names = "lora-modules, lora-dir and enable-finetuning"
            raise ValueError(f"tensor-parallel-size {self.tensor_parallel_size}: {names} need one rank, for now")
        return self

    @model_validator(mode="after")
    def _check_body_bytes(self) -> Settings:
        if self.max_total_body_bytes < self.max_body_bytes:
            raise ValueError("max-total-body-bytes must be at least max-body-bytes")
        return self

    @model_validator(mode="after")
    def _check_certificate(self) -> Settings:
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError("ssl-keyfile means nothing without ssl-certfile")
        return self

    @model_validator(mode="after")
    def _check_budget(self) -> Settings:
        num_seqs, budget = self.max_num_seqs, self.max_num_batched_tokens
        if num_seqs is not None and budget is not None and budget <= num_seqs:
            raise ValueError(
                f"max-num-batched-tokens ({budget}) must exceed max-num-seqs ({num_seqs}), or a prompt could not"
                " advance beside a full batch"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order of precedence after the command line. The file is named by either of the two before it."""
        if isinstance(env_settings, EnvSettingsSource):
            env_settings.env_vars = {
                name: value
                for name, value in env_settings.env_vars.items()
                if not is_service_link(name.upper(), value or "")
            }
        return init_settings, env_settings

    def model_source(self) -> ModelSource:
        return ModelSource(
            model=str(QUICKSTART_MODEL) if self.model == QUICKSTART_NAME else self.model,
            revision=self.revision,
            tokenizer=self.tokenizer,
            chat_template=self.chat_template,
            load_format=self.load_format,
            dtype=self.dtype,
            device=self.device,
            max_model_len=self.max_model_len,
            seed=self.seed,
            implementation=self.model_impl,
            quantization=self.quantization,
        )

    def cache_config(self) -> CacheConfig:
        memory_bytes = None if self.kv_cache_memory is None else int(self.kv_cache_memory)
        swap_bytes = 0 if self.preemption == "recompute" else int(self.swap_space)
        return CacheConfig(
            self.block_size, self.gpu_memory_utilization, memory_bytes, swap_bytes, self.swap_compression
        )

    def lora_config(self) -> LoraConfig | None:
        """None if no adapters are served."""
        if not self.lora_modules and self.lora_dir is None and not self.enable_finetuning:
            return None
        modules = tuple((name, Path(folder)) for name, _, folder in (each.partition("=") for each in self.lora_modules))
        return LoraConfig(
            self.max_loras,
            self.max_lora_rank,
            modules,
            self.lora_dir,
            self.max_cpu_loras,
            trains=self.enable_finetuning,
        )

    def parallel_config(self) -> ParallelConfig:
        return ParallelConfig(self.tensor_parallel_size)

    def scheduler_config(
        self, default_num_seqs: int, default_num_batched_tokens: int, default_waiting_tokens: int
    ) -> SchedulerConfig:
        """The first two defaults belong to the device; each gives way to the other if that was set."""
        if self.max_num_batched_tokens is not None:
            default_num_seqs = min(default_num_seqs, self.max_num_batched_tokens - 1)
        num_seqs = self.max_num_seqs or default_num_seqs
        budget = self.max_num_batched_tokens or max(default_num_batched_tokens, 2 * num_seqs)
        return SchedulerConfig(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=budget,
            watermark=self.watermark,
            max_waiting_requests=self.max_waiting_requests,
            max_waiting_tokens=self.max_waiting_tokens or default_waiting_tokens,
            max_waiting_s=self.max_waiting_seconds,
            max_preemptions=self.max_preemptions,
        )

    def hangs_after_s(self, *, is_gpu: bool) -> float:
        """Seconds after which an iteration counts as hanging. On a CPU one of a large model may take minutes."""
        return self.watchdog_timeout or (60.0 if is_gpu else 600.0)

    def policies(self) -> dict[str, str]:
        """The policies that decide, by name, for the metrics."""
        return {
            "scheduling": self.scheduling_policy,
            "admission": self.admission_policy,
            "preemption": self.preemption,
            "chunks": "token-budget" if self.inter_token_target_ms is None else "inter-token-target",
            "prefix_cache": "on" if self.enable_prefix_caching else "off",
            "training": self.finetuning_mode,
        }

    def api_config(self) -> ApiConfig:
        return ApiConfig(
            served_model_names=self.served_model_name or (self.public_model_name(),),
            model_aliases=self._model_aliases(),
            api_keys=self._keys(),
            admin_api_keys=self._admin_keys(),
            guard_metrics=self.guard_metrics,
            prefix_cache_scope=self.prefix_cache_scope,
            max_requests_per_key=self.max_requests_per_key,
            serves_adapters=self.lora_config() is not None,
            allowed_hosts=self._hosts(),
            allowed_origins=self.allowed_origins,
            strict_params=self.strict_params,
            default_chat_template_kwargs=self.default_chat_template_kwargs,
            max_stops=self.max_stops,
            max_logprobs=MOST_LOGPROBS if self.max_logprobs == -1 else self.max_logprobs,
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
            max_body_bytes=int(self.max_body_bytes),
            max_total_body_bytes=int(self.max_total_body_bytes),
            responses_store_bytes=int(self.responses_store_size) if self.responses_store else 0,
        )

    def _keys(self) -> tuple[str, ...]:
        return self.api_key + self._keys_of_file

    def _admin_keys(self) -> tuple[str, ...]:
        return self.admin_api_key + self._admin_keys_of_file

    def _hosts(self) -> tuple[str, ...]:
        """Behind a loopback address without keys there is one user, with a browser; elsewhere the server has names that
        only its owner knows."""
        if self.allowed_hosts or self._keys() or self.uds is not None or not is_loopback(self.host):
            return self.allowed_hosts or ("*",)
        return ()

    def data_folder(self) -> Path:
        """By the XDG base directory specification, unless it is set."""
        if self.data_dir is not None:
            return self.data_dir.expanduser()
        data_home = os.environ.get("XDG_DATA_HOME", "")
        base = Path(data_home) if Path(data_home).is_absolute() else Path("~/.local/share").expanduser()
        return base / "headrace"

    def max_storage_bytes(self) -> int:
        return int(self.max_storage_gib * 1024**3)

    def listen_address(self) -> ListenAddress:
        return ListenAddress(self.host, self.port, self.uds, self.ssl_certfile, self.ssl_keyfile)

    def connection_limits(self) -> ConnectionLimits:
        return ConnectionLimits(max_connections=self.max_connections, max_body_bytes=int(self.max_body_bytes))

    def public_model_name(self) -> str:
        """What clients may know of where the model comes from: a hub id, or a folder's name without its path."""
        folder = Path(self.model).expanduser()
        return folder.resolve().name if folder.is_dir() else self.model

    def _model_aliases(self) -> tuple[str, ...]:
        """A folder's path, as its owner wrote it: clients of servers that are called by it go on as they are. Not where
        names are set."""
        is_folder = not self.served_model_name and Path(self.model).expanduser().is_dir()
        return (self.model, self.model.rstrip("/")) if is_folder else ()

    def non_default(self) -> dict[str, str]:
        """Settings that differ from their defaults, as text, secrets hidden."""
        changed = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.default:
                changed[name] = "***" if name in SECRETS else str(value)
        return changed
