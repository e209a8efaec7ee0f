"""The devices, the memory and the sizes that the scenarios of a run share.

There are two forms. Full: everything is measured with the Llama-8B shape on one GPU. Small: takes minutes on two CPU
cores. Figures about policies are drawn at full size on a modelled device. Figures about the engine's own time are
measured with a two-layer model, in CPU seconds of the process, so that other work on the machine hardly matters.
"""

import dataclasses
import gc
import os
import platform
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from loadtest.arrivals import PoissonArrivals
from loadtest.baselines.engine_system import paged
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.modelled_device import ModelledDevice
from loadtest.baselines.modelled_training import ModelledTraining
from loadtest.model_shapes import LLAMA_2_LAYERS, LLAMA_8B, kv_bytes_per_token, read_shape, shape_folder
from loadtest.offline.replay import offline_requests, replay
from loadtest.offline.serving_system import OfflineRequest
from loadtest.offline.work_clock import WorkClock
from loadtest.random_streams import random_stream
from loadtest.trace import with_arrivals
from loadtest.workload import draw, named
from service.core.training import Training

if TYPE_CHECKING:
    from service.models.causal_lm import CausalLM

POOL_TOKENS = 49_152
"""KV memory of comparisons in which memory is scarce: 6.4 GB for the Llama-8B shape, what a 24 GB card has left beside
the weights. With all memory of an H200 nothing would be scarce."""

MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 2048

LOADED_TOKENS = 192 * 1024
LOADED_HOST_TOKENS = 4096
"""Tokens for which a model is loaded, so that one load serves all scenarios of a block size."""

_SEED = 0
_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Form:
    """Sizes of a run.

    shape, dtype, max_model_len, max_num_seqs: of the measured model. models_policies: draw figures about policies on
    the modelled device. request_divisor: the paper's number of requests is divided by it; policy_divisor: the same for
    figures about policies.
    num_probes: requests at once to measure full load. rate_factors: rates as multiples of the full load.
    sweep_s, sweep_share: the least seconds per rate, and the least ratio of its requests to those at once.
    trials_s: seconds for the trials of repeated measurements.
    """

    name: Literal["small", "full"]
    shape: str
    dtype: Literal["bfloat16", "float32"]
    max_model_len: int
    max_num_seqs: int
    models_policies: bool
    request_divisor: int
    policy_divisor: int
    num_probes: int
    sweep_s: float
    sweep_share: float
    rate_factors: tuple[float, ...]
    trials_s: float


SMALL = Form(
    "small", LLAMA_2_LAYERS, "float32", 1024, 64, True, 4, 1, 400, 3.0, 1.0, (0.15, 0.4, 0.7, 0.9, 1.1, 1.3), 60.0
)
FULL = Form("full", LLAMA_8B, "bfloat16", MAX_MODEL_LEN, MAX_NUM_SEQS, False, 4, 4, 400, 2.0, 0.25, (0.5, 0.9), 30.0)
"""Uses so few requests that a scenario takes about a minute. The figures say how many they are based on."""


class Stage:
    """One per process. Loads a model when it is first needed, one at a time.

    trials_s: seconds for the trials of repeated measurements; 0: the form's.
    """

    def __init__(self, form: Form, trials_s: float = 0.0) -> None:
        self.form = form
        self.trials_s = trials_s or form.trials_s
        if form.name == "small":
            os.environ.setdefault("OMP_NUM_THREADS", "1")  # so that CPU seconds are seconds of one core
        self._source = time.process_time if form.name == "small" else time.perf_counter
        self._loaded: KvPool | None = None
        self._model: CausalLM | None = None
        self._modelled: ModelledDevice | None = None

    @property
    def vocab_size(self) -> int:
        """Of the measured model."""
        return int(read_shape(self.form.shape)["vocab_size"])

    @property
    def torch_device(self) -> str:
        """Device of the measured model: `cuda` if there is one, else `cpu`."""
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def policy_device(self) -> str:
        """The device of `pool`, for captions."""
        return "the modelled device" if self.form.models_policies else "the GPU"

    def pool(self, num_tokens: int = POOL_TOKENS, block_size: int = 16, num_host_blocks: int = 0) -> KvPool:
        """A pool for comparing policies, with room for `num_tokens` tokens, and for padding besides.

        Without overlap, since not every compared system can overlap its iterations.
        """
        if not self.form.models_policies:
            return dataclasses.replace(self.model_pool(num_tokens, block_size, num_host_blocks), overlap=False)
        self._modelled = device = ModelledDevice(block_size)
        return KvPool(
            device,
            device.clock(),
            num_tokens // block_size,
            block_size,
            MAX_MODEL_LEN,
            MAX_NUM_SEQS,
            MAX_NUM_BATCHED_TOKENS,
            self.vocab_size,
            num_host_blocks,
            MAX_MODEL_LEN // block_size,
            trainings=device.trainings,
        )

    def model_pool(self, num_tokens: int, block_size: int = 16, num_host_blocks: int = 0) -> KvPool:
        """A pool for measuring the engine itself: the model, with a cache of at least that size.

        Loads the model, unless the loaded one has room enough.
        """
        num_spare = -(-self.form.max_model_len // block_size)
        num_blocks = num_tokens // block_size
        pool = self._loaded
        if pool is None or not _holds(pool, num_blocks + num_spare, block_size, num_host_blocks):
            self._loaded = pool = None
            gc.collect()
            enough = min(LOADED_TOKENS, self.form.max_num_seqs * self.form.max_model_len) // block_size
            at_least = max(num_blocks + num_spare, enough)
            num_host = max(num_host_blocks, min(LOADED_HOST_TOKENS // block_size, at_least))
            self._loaded = pool = self._load(at_least, block_size, num_host)
            for first_uses in ("orca", "chatbot"):  # warm-up; many short prompts at once do not fit a CUDA graph
                replay(paged(pool), self.cut_trace(first_uses, 64, self.form.max_model_len // 2, 8))
        return dataclasses.replace(
            pool, num_blocks=num_blocks, num_host_blocks=num_host_blocks, num_spare_blocks=num_spare
        )

    def new_training(self, num_iterations: int) -> Training:
        """A training of `num_iterations` micro-batches, on the last pool's device: the modelled or the real one."""
        if self.form.models_policies:
            assert self._modelled is not None
            return ModelledTraining(self._modelled.trainings.time, num_iterations)
        from loadtest.scenarios.real_training import new_training

        assert self._model is not None
        return new_training(self._model, num_iterations, self.vocab_size)

    def num_requests(self, full: int) -> int:
        """The paper's number of requests, divided by the form's `request_divisor`."""
        return full // self.form.request_divisor

    def trace(self, workload: str, num_requests: int, request_rate: float | None = None) -> list[OfflineRequest]:
        """A workload's requests with Poisson arrivals at that rate; None: all at once."""
        drawn = draw(named(workload), num_requests, _SEED)
        if request_rate is not None:
            arrivals = PoissonArrivals(request_rate).arrival_times(num_requests, random_stream(_SEED, "arrivals"))
            drawn = with_arrivals(drawn, arrivals.tolist())
        return offline_requests(drawn, self.vocab_size)

    def cut_trace(
        self, workload: str, num_requests: int, longest_prompt: int, longest_output: int
    ) -> list[OfflineRequest]:
        """A workload's requests, all at once, with lengths cut to these."""
        cut = [
            dataclasses.replace(
                request,
                prompt_len=min(request.prompt_len, longest_prompt),
                output_len=min(request.output_len, longest_output),
            )
            for request in draw(named(workload), num_requests, _SEED)
        ]
        return offline_requests(cut, self.vocab_size)

    def describe(self) -> str:
        """Machine and model, for captions."""
        form = self.form
        return (
            f"{form.name} form; policies on {self.policy_device}; the engine measured with {form.shape}, random "
            f"weights, {form.dtype}, on {_device_name(self.torch_device)}, {os.cpu_count()} host cores, Python "
            f"{platform.python_version()}; numbers of requests / {form.request_divisor}"
        )

    def _load(self, num_blocks: int, block_size: int, num_host_blocks: int) -> KvPool:
        # Imported here, since torch takes seconds to import and the modelled device does not need it.
        from service.config import CacheConfig, ModelSource
        from service.runner.load import load_executor

        form = self.form
        block_bytes = kv_bytes_per_token(read_shape(form.shape), _BYTES[form.dtype]) * block_size
        folder = shape_folder(form.shape)
        source = ModelSource(
            model=str(folder),
            revision=None,
            tokenizer=None,
            chat_template=None,
            load_format="dummy",
            dtype=form.dtype,
            device="auto",
            max_model_len=form.max_model_len,
            seed=_SEED,
        )
        loaded = load_executor(
            source,
            folder,
            CacheConfig(block_size, 0.9, num_blocks * block_bytes, num_host_blocks * block_bytes),
            form.max_num_seqs,
            MAX_NUM_BATCHED_TOKENS,
        )
        if loaded.num_blocks < num_blocks or loaded.num_host_blocks < num_host_blocks:
            raise ValueError(
                f"a cache of {loaded.num_blocks} blocks, {loaded.num_host_blocks} on the host, is too small"
            )
        while loaded.idle_work.do_some():
            pass
        self._model = loaded.model
        return KvPool(
            loaded.runner,
            WorkClock(self._source),
            loaded.num_blocks,
            block_size,
            form.max_model_len,
            form.max_num_seqs,
            MAX_NUM_BATCHED_TOKENS,
            self.vocab_size,
            loaded.num_host_blocks,
            padded_size=loaded.runner.replays.padded_size,
            overlap=loaded.device != "cpu",
            trainings=loaded.runner.trainings,
        )


def _holds(pool: KvPool, num_blocks: int, block_size: int, num_host_blocks: int) -> bool:
    return pool.block_size == block_size and pool.num_blocks >= num_blocks and pool.num_host_blocks >= num_host_blocks


def _device_name(device: str) -> str:
    if device == "cpu":
        return "CPU"
    import torch

    return torch.cuda.get_device_name(0)
