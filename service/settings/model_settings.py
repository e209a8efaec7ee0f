"""Settings of the model: its source, implementation, number formats and devices."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, JsonValue, field_validator
from pydantic_settings import CliPositionalArg

from service.config import ModelSource
from service.settings.lists import Names
from service.settings.quickstart import QUICKSTART_MODEL, QUICKSTART_NAME
from service.settings.token_count import TokenCount


class ModelSettings(BaseModel):
    """One of the groups that `Settings` is made of."""

    model: CliPositionalArg[str] = Field(
        QUICKSTART_NAME,
        min_length=1,
        description="local folder or Hugging Face id of the model; the bundled quickstart model if not set",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    tokenizer: str | None = Field(
        None, description="folder or Hugging Face id of the tokenizer; the model's if not set"
    )
    chat_template: Path | None = Field(None, description="file with a chat template; the model's if not set")
    default_chat_template_kwargs: dict[str, JsonValue] = Field(
        {}, description='chat template variables for requests that do not set them: {"enable_thinking": false}'
    )
    served_model_name: Names = Field(
        (), description="names that clients may use, comma-separated; answers show the first"
    )
    load_format: Literal["auto", "pt", "dummy"] = Field(
        "auto",
        description="auto: safetensors; pt: torch's format (pickles, only from authors you trust); dummy: random"
        " weights",
    )
    model_impl: Literal["auto", "native", "transformers"] = Field(
        "auto",
        description="native: Headrace's modules; transformers: transformers' modules; auto: native if there is a"
        " native file",
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="number format of weights and KV cache, unless these are quantized"
    )
    quantization: Literal["fp8"] | None = Field(
        None,
        description="round unquantized weights to this format while loading; quantized checkpoints need no setting",
    )

    @field_validator("quantization", mode="before")
    @classmethod
    def _made_at_load(cls, value: object) -> object:
        if value not in (None, "fp8"):
            raise ValueError(
                "only fp8 can be made of plain weights; serve a checkpoint that is already quantized without this"
                " setting, since its config.json names the format"
            )
        return value

    deterministic: bool = Field(
        False, description="every request gets the same bits as when it runs alone, not only requests that ask for it"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: the GPU if there is one")
    tensor_parallel_size: int = Field(
        1, ge=1, le=64, description="GPUs that compute every layer together, each with a part of the weights"
    )
    pipeline_parallel_size: int = Field(
        1,
        ge=1,
        le=64,
        description="pipeline stages, each with an equal number of layers and GPUs of its own",
    )
    max_model_len: TokenCount | None = Field(
        None, ge=2, description="context length in tokens (8192, 8k, 8K); the model's own if not set"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed of dummy weights")

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
            deterministic=self.deterministic,
        )

    def public_model_name(self) -> str:
        """What clients may know of the model's source: a hub id, or a folder's name without its path."""
        folder = Path(self.model).expanduser()
        return folder.resolve().name if folder.is_dir() else self.model

    def _model_aliases(self) -> tuple[str, ...]:
        """A folder's path as the owner wrote it, so that clients of servers that use it as the name keep working. Empty
        if names are set."""
        is_folder = not self.served_model_name and Path(self.model).expanduser().is_dir()
        return (self.model, self.model.rstrip("/")) if is_folder else ()
