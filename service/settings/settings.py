"""All settings of `headrace serve`: name, type, default and description, and which of them contradict each other.

`reader.py` fills them in; the parts of the service receive the plain values of `config.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ByteSize, Field, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from service.config import ApiConfig, CacheConfig, ParallelConfig
from service.settings.adapter_settings import AdapterSettings
from service.settings.host_settings import HostSettings
from service.settings.http_settings import MOST_LOGPROBS, HttpSettings
from service.settings.model_settings import ModelSettings
from service.settings.operation_settings import OperationSettings
from service.settings.scheduler_settings import SchedulerSettings
from service.settings.service_links import is_service_link

ENV_PREFIX = "HEADRACE_"
SECRETS = frozenset({"api_key", "admin_api_key", "node_secret"})


class Settings(
    AdapterSettings, SchedulerSettings, OperationSettings, HttpSettings, HostSettings, ModelSettings, BaseSettings
):
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

    block_size: int = Field(16, ge=1, le=256, description="tokens per KV block")
    enable_prefix_caching: bool = Field(True, description="prompts with a common prefix share KV blocks")
    prefix_cache_scope: Literal["key", "all"] = Field(
        "key", description="who shares prefixes: requests of one API key (or of one key name), or all"
    )
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of the GPU's memory to use")
    enforce_eager: bool = Field(
        False, description="no CUDA graphs and no recorded steps: every kernel is launched separately"
    )
    choices: Path | None = Field(
        None, description="file that stores what startup chose by timing; a later start reads it and times nothing"
    )
    kv_cache_memory: ByteSize | None = Field(None, gt=0, description="size of the KV cache (4GiB); measured if not set")
    kv_cache_dtype: Literal["auto", "fp8"] = Field(
        "auto", description="fp8: keys and values in half the bytes of bf16, each rounded by up to 1/16"
    )

    profile_host: bool = Field(False, description="print a table of host time at exit")
    config: Path | None = Field(None, description="YAML file with any of these settings")

    @model_validator(mode="after")
    def _check_swap(self) -> Settings:
        if self.deterministic and self.swap_compression != "none" and self.preemption != "recompute":
            raise ValueError(
                f"deterministic cannot be combined with swap-compression {self.swap_compression}, which rounds values"
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
        """The order of precedence after the command line. The file is named by one of the two before it."""
        if isinstance(env_settings, EnvSettingsSource):
            env_settings.env_vars = {
                name: value
                for name, value in env_settings.env_vars.items()
                if not is_service_link(name.upper(), value or "")
            }
        return init_settings, env_settings

    @model_validator(mode="after")
    def _check_hosts(self) -> Settings:
        if self.node_rank >= self.nnodes:
            raise ValueError(
                f"node-rank must be at most {self.nnodes - 1} with nnodes {self.nnodes}, got {self.node_rank}"
            )
        if self.pipeline_parallel_size % self.nnodes:
            raise ValueError(
                f"pipeline-parallel-size ({self.pipeline_parallel_size}) must be a multiple of nnodes ({self.nnodes}):"
                " every host has the same number of stages"
            )
        if self.nnodes > 1 and self.node_secret is None:
            raise ValueError(f"nnodes {self.nnodes} needs a node-secret, the same on all hosts")
        return self

    @property
    def num_batches(self) -> int:
        """The number of batches in flight: one per stage; without overlap only one, and no two stages compute at the
        same time."""
        return 1 if self.overlap is False else self.pipeline_parallel_size

    def parallel_config(self) -> ParallelConfig:
        return ParallelConfig(self.tensor_parallel_size, self.pipeline_parallel_size, self.nnodes)

    def cache_config(self) -> CacheConfig:
        memory_bytes = None if self.kv_cache_memory is None else int(self.kv_cache_memory)
        swap_bytes = 0 if self.preemption == "recompute" else int(self.swap_space)
        return CacheConfig(
            self.block_size,
            self.gpu_memory_utilization,
            memory_bytes,
            swap_bytes,
            self.swap_compression,
            self.kv_cache_dtype,
            by_layer_groups=True,
        )

    def policies(self) -> dict[str, str]:
        """The names of the policies in use, for the metrics."""
        return {
            "scheduling": self.scheduling_policy,
            "admission": self.admission_policy,
            "preemption": self.preemption,
            "chunks": "token-budget" if self.inter_token_target_ms is None else "inter-token-target",
            "prefix_cache": "on" if self.enable_prefix_caching else "off",
            "training": self.finetuning_mode,
            "speculation": self.speculation,
        }

    def api_config(self) -> ApiConfig:
        return ApiConfig(
            served_model_names=self.served_model_name or (self.public_model_name(),),
            model_aliases=self._model_aliases(),
            api_keys=self._keys(),
            admin_api_keys=self._admin_keys(),
            guard_metrics=self.guard_metrics,
            root_path=self.root_path or "",
            prefix_cache_scope=self.prefix_cache_scope,
            max_requests_per_key=self.max_requests_per_key,
            serves_adapters=self.lora_config() is not None,
            allowed_hosts=self._hosts(),
            allowed_origins=self.allowed_origins,
            strict_params=self.strict_params,
            default_chat_template_kwargs=self.default_chat_template_kwargs,
            max_stops=self.max_stops,
            max_logprobs=MOST_LOGPROBS if self.max_logprobs == -1 else self.max_logprobs,
            force_usage=self.enable_force_include_usage,
            tokens_as_ids=self.return_tokens_as_token_ids,
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
            max_body_bytes=int(self.max_body_bytes),
            max_total_body_bytes=int(self.max_total_body_bytes),
            responses_store_bytes=int(self.responses_store_size) if self.responses_store else 0,
            deterministic=self.deterministic,
            exact_swap=self.swap_compression == "none" or self.preemption == "recompute",
        )

    def non_default(self) -> dict[str, str]:
        """Settings that differ from their defaults, as text, secrets hidden."""
        changed = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.default:
                changed[name] = "***" if name in SECRETS else str(value)
        return changed
