"""Fine-tuning in the serving process (FineInfer): jobs, their data, the trainer, checkpoints.

Jobs and data: any thread, without torch. The trainer: the engine's thread, in the executor.
"""
