"""Measurements of one replica: seconds of iterations, and its scheduler's sizes. Stored as a JSON file."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.core.layer_groups import TableGroups
from service.prediction.iteration_time import MIN_OBSERVED, IterationTime
from service.prediction.workload import Workload

PROFILES = Path(__file__).parent / "profiles"
"""Profiles that come with Headrace, by name."""

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Timing(_Strict):
    """One iteration: its work, counted as in `Workload`, and its seconds."""

    num_tokens: Positive
    num_pairs: Count = 0
    num_read: Count = 0
    longest_context: Count = 0
    num_decodes: Count = 0
    num_prompts: Count = 0
    seconds: Seconds

    @classmethod
    def of(cls, workload: Workload, seconds: float) -> "Timing":
        """In the file's form, without the device's heat, since a plan is made for days."""
        num_tokens, num_pairs, num_read, longest_context, num_decodes, num_prompts, _ = workload
        return cls(
            num_tokens=num_tokens,
            num_pairs=num_pairs,
            num_read=num_read,
            longest_context=longest_context,
            num_decodes=num_decodes,
            num_prompts=num_prompts,
            seconds=seconds,
        )

    @property
    def workload(self) -> Workload:
        """As the predictor takes it."""
        return Workload(
            self.num_tokens, self.num_pairs, self.num_read, self.longest_context, self.num_decodes, self.num_prompts
        )


class Divisible(_Strict):
    """What several GPUs divide among them. In a profile of one GPU, from which layouts of several are derived.

    memory_bytes: per GPU, for weights and KV cache together. undivided_s: the part of an iteration that more GPUs do
    not shorten: launches, norms, sampling.
    """

    memory_bytes: Positive
    weights_bytes: Positive
    kv_token_bytes: Positive
    num_layers: Positive
    hidden_size: Positive
    undivided_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class WindowedLayers(_Strict):
    """For models with a sliding window of this many tokens in some or all layers: how many groups of layers keep all
    tokens, and how many only those in the window (service/core/layer_groups.py)."""

    window_tokens: Positive
    num_full_groups: Count
    num_windowed_groups: Positive

    @property
    def groups(self) -> TableGroups:
        return TableGroups(self.num_full_groups, self.num_windowed_groups)


class ReplicaProfile(_Strict):
    """One replica, of tensor_parallel_size x pipeline_parallel_size GPUs (or a CPU).

    source: where the figures come from. kv_tokens: capacity of its KV cache, without what sliding windows free.
    windowed: None without sliding windows. cuts_prompts: prompts beside decodes are computed in chunks, as on a GPU.
    request_s: a request's time that is neither waiting nor device time: HTTP, tokenizing, the first frame. divisible:
    None if no other layouts may be derived.
    """

    name: str
    source: str
    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    kv_tokens: Positive
    block_size: Positive = 16
    max_model_len: Positive
    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    cuts_prompts: bool
    request_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    divisible: Divisible | None = None
    windowed: WindowedLayers | None = None
    timings: Annotated[tuple[Timing, ...], Field(min_length=MIN_OBSERVED)]

    def predictor(self) -> IterationTime:
        """The service's predictor of iteration times, fitted to the timings."""
        predictor = IterationTime()
        for timing in self.timings:
            predictor.calibrate(timing.workload, timing.seconds)
        predictor.fit()
        return predictor


def read_profile(name: str) -> ReplicaProfile:
    """Read a file, or a profile that comes with Headrace by its name. Raises ValueError that names the field."""
    shipped = PROFILES / f"{name}.json"
    path = shipped if shipped.is_file() else Path(name)
    try:
        return ReplicaProfile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in PROFILES.glob("*.json")))
        raise ValueError(f"profile: there is no file {name!r}; {known} come with Headrace") from None
    except OSError as fault:
        raise ValueError(f"profile: {path}: {fault.strerror}") from None
    except ValidationError as fault:
        first = fault.errors()[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc'])) or 'JSON'}: {first['msg']}") from None


def write_profile(path: Path, profile: ReplicaProfile) -> None:
    """Write a file from which `read_profile` makes an equal profile."""
    path.write_text(profile.model_dump_json(indent=1) + "\n", encoding="utf-8")
