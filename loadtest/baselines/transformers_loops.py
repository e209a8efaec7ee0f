"""transformers' own loops as compared systems: `generate` on padded batches, and `generate_batch`.

Both take whole batches: requests that arrive meanwhile wait. `generate` pads prompts on the left and runs to the
longest answer. `generate_batch` (its continuous batching) has one output limit for all, so it gets only equal requests.
"""

from collections import deque
from typing import Any

from loadtest.model_shapes import read_shape
from loadtest.offline.serving_system import Completion, IterationFacts, OfflineRequest
from loadtest.offline.work_clock import WorkClock


def random_model(shape_name: str, dtype: str, device: str) -> Any:
    """A transformers model of that shape with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    make: Any = AutoModelForCausalLM.from_config
    shape = read_shape(shape_name)
    fields = {name: value for name, value in shape.items() if name not in ("architectures", "model_type")}
    config = AutoConfig.for_model(shape["model_type"], **fields)
    with torch.device(device):
        model = make(config, dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = None
    return model.eval()


class TransformersGenerate:
    """A `ServingSystem`: request-level batching by `generate`."""

    def __init__(self, model: Any, clock: WorkClock, max_batch_size: int) -> None:
        self.name = f"transformers generate ({max_batch_size})"
        self._model = model
        self.clock = clock
        self._max_batch_size = max_batch_size
        self._queue: deque[OfflineRequest] = deque()
        self._completions: list[Completion] = []
        self._batch_size = 0

    @property
    def has_work(self) -> bool:
        """See `ServingSystem`."""
        return bool(self._queue)

    def submit(self, request: OfflineRequest) -> None:
        """See `ServingSystem`."""
        self._queue.append(request)

    def step(self) -> None:
        """Run one whole batch."""
        batch = [self._queue.popleft() for _ in range(min(self._max_batch_size, len(self._queue)))]
        self._batch_size = len(batch)
        started_s = self.clock.now_s()
        self._generate(batch)
        now_s = self.clock.now_s()
        self._completions += [
            Completion(request.request_id, request.arrival_s, started_s, now_s, request.output_len) for request in batch
        ]

    def take_completions(self) -> list[Completion]:
        """See `ServingSystem`."""
        taken, self._completions = self._completions, []
        return taken

    def facts(self) -> IterationFacts:
        """See `ServingSystem`."""
        return IterationFacts(self._batch_size, len(self._queue), 0.0)

    def close(self) -> None:
        """See `ServingSystem`."""

    def _generate(self, batch: list[OfflineRequest]) -> None:
        import torch

        longest = max(len(request.prompt_token_ids) for request in batch)
        padding = [longest - len(request.prompt_token_ids) for request in batch]
        ids = [[0] * num + list(request.prompt_token_ids) for num, request in zip(padding, batch, strict=True)]
        mask = [[0] * num + [1] * (longest - num) for num in padding]
        device = self._model.device
        made = self._model.generate(
            torch.tensor(ids, device=device),
            attention_mask=torch.tensor(mask, device=device),
            do_sample=False,
            max_new_tokens=max(request.output_len for request in batch),
            pad_token_id=0,
        )
        made[:, -1].tolist()  # wait for the device


class TransformersGenerateBatch(TransformersGenerate):
    """A `ServingSystem`: all waiting requests in one call of `generate_batch`. Their lengths must be equal.

    num_blocks: its KV memory, in its own blocks of 256 tokens.
    """

    def __init__(self, model: Any, clock: WorkClock, num_blocks: int) -> None:
        super().__init__(model, clock, max_batch_size=1 << 30)
        self.name = "transformers generate_batch"
        self._num_blocks = num_blocks

    def _generate(self, batch: list[OfflineRequest]) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        lengths = {request.output_len for request in batch}
        if len(lengths) > 1:
            raise ValueError("generate_batch takes one output length for all")
        options: Any = GenerationConfig
        answers = self._model.generate_batch(
            inputs=[list(request.prompt_token_ids) for request in batch],
            generation_config=options(max_new_tokens=lengths.pop(), do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(num_blocks=self._num_blocks),
            persistent_manager=True,
            warmup=False,
        )
        for answer in answers.values():
            if answer.error:
                raise RuntimeError(f"{self.name}: {answer.error}")
