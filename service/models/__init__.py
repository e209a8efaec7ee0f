"""Architectures for inference on one device, their configuration and their weights. Made in the loading thread, then
used by the runner alone, on the engine's. `model_folder` finds the files, and needs no torch."""
