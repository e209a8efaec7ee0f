"""Settings of LoRA adapters, of the jobs that train them, and of the files that both need."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, Field, FiniteFloat

from service.config import LoraConfig
from service.settings.lists import AdapterFolders


class AdapterSettings(BaseModel):
    """One of the groups that `Settings` is made of."""

    lora_modules: AdapterFolders = Field((), description="LoRA adapters and their names, comma-separated: NAME=FOLDER")
    lora_dir: Path | None = Field(
        None,
        description="folder of LoRA adapters; each is served under its folder's name, and read when a request first"
        " uses it",
    )
    max_loras: int = Field(64, ge=1, le=1024, description="adapters on the device at once")
    max_lora_rank: int = Field(64, ge=1, le=256, description="highest adapter rank")
    max_cpu_loras: int = Field(
        256, ge=1, description="adapters in host memory at once, from lora-dir and from fine-tuning jobs"
    )
    enable_finetuning: bool = Field(
        False, description="accept OpenAI's fine-tuning jobs, which train LoRA adapters in this process"
    )
    data_dir: Path | None = Field(
        None, description="directory of uploaded files and jobs; below the user's data directory if not set"
    )
    max_storage_gib: FiniteFloat = Field(10.0, gt=0, description="limit for all files together, in GiB; beyond it, 507")

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

    def data_folder(self) -> Path:
        """The folder that is set, else the one of the XDG base directory specification."""
        if self.data_dir is not None:
            return self.data_dir.expanduser()
        data_home = os.environ.get("XDG_DATA_HOME", "")
        base = Path(data_home) if Path(data_home).is_absolute() else Path("~/.local/share").expanduser()
        return base / "headrace"

    def max_storage_bytes(self) -> int:
        return int(self.max_storage_gib * 1024**3)
