"""LoRA adapters (Hu et al. 2021) for the base model: on disk, in host memory, in the device's slots."""
