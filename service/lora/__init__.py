"""LoRA adapters (Hu et al. 2021) beside the base: on disk, in the host's memory, in the device's slots."""
