"""`serve run service.ray_serve.application:build`: the ingress and the replicas as an application of Ray Serve.

Imported only with Ray, which is an extra. Serve calls `build` once, and makes the classes in processes of the cluster.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, cast

import httpx
from pydantic import BaseModel, ConfigDict, Field, model_validator
from ray import serve
from ray.exceptions import RayActorError

from service.ray_serve.call import Call
from service.ray_serve.ingress import Ingress, Parts
from service.ray_serve.other_hosts import OnPlacementGroup
from service.ray_serve.replica import Replica, StartOthers, start_none
from service.settings.reader import read_settings

LOST = (RayActorError, httpx.TransportError)
"""The replica's process has died or cannot be reached; or its server has, and the replica has not noticed yet."""

MOST_CALLS = 10_000
"""In flight at a replica, as connections of a server. Calls wait in the server's own queue, which refuses what is too
much."""

_PREFIX_ROUTER = {
    "request_router_class": "service.ray_serve.prefix_router:PrefixRouter",
    # Where the calls in flight differ by more than this threshold, the less busy of two replicas is taken instead of
    # the prefix's. A prompt goes to a replica that has seen at least the first quarter of it.
    "request_router_kwargs": {"imbalanced_threshold": 16, "match_rate_threshold": 0.25, "do_eviction": True},
}


class Arguments(BaseModel):
    """The arguments after `serve run ...:build`, or in a configuration's `args`.

    model, flags: those of `headrace serve`. num_gpus, num_cpus: of a replica, on each of its hosts.
    hosts: nodes among which a replica's stages are divided; each replica has a placement group.
    waiting_per_replica: the number of waiting requests for which there is one more replica.
    ingress_replicas: each is one process that passes on bytes. run: the module that serves, and its arguments before
        the flags.
    """

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    flags: str = ""
    num_gpus: float = Field(0, ge=0)
    num_cpus: float = Field(1, ge=0)
    hosts: int = Field(1, ge=1)
    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(2, ge=1)
    max_replicas_per_node: int | None = Field(None, ge=1)
    waiting_per_replica: float = Field(8, gt=0)
    upscale_delay_s: float = Field(10, ge=0)
    downscale_delay_s: float = Field(300, ge=0)
    look_back_period_s: float = Field(10, gt=0)
    ingress_replicas: int = Field(1, ge=1)
    run: str = "service serve"

    @model_validator(mode="after")
    def _check_replicas(self) -> Arguments:
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas ({self.max_replicas}) is less than min_replicas ({self.min_replicas})")
        if self.hosts > 1 and self.max_replicas_per_node is not None:
            raise ValueError("max_replicas_per_node: not with several hosts, each of which is a node of its own")
        return self

    def placement(self) -> dict[str, Any]:
        """As options of a deployment. The bundles of its other hosts have the size of the replica's own."""
        if self.hosts == 1:
            return {"max_replicas_per_node": self.max_replicas_per_node}
        bundle = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        bundles = [{name: number for name, number in bundle.items() if number}] * self.hosts
        return {"placement_group_bundles": bundles, "placement_group_strategy": "STRICT_SPREAD"}

    def start_others(self) -> StartOthers:
        return start_none if self.hosts == 1 else OnPlacementGroup(self.hosts, self.num_cpus, self.num_gpus)

    def flags_of_a_replica(self) -> list[str]:
        """The model comes first."""
        return [*([self.model] if self.model else []), *shlex.split(self.flags)]


class Entry(Ingress):
    """The ingress, as Serve makes it."""

    def __init__(self, replicas: Any, max_body_bytes: int) -> None:
        answers = replicas.options(stream=True).answer
        super().__init__(cast(Callable[[Call], Parts], answers.remote), LOST, max_body_bytes)


def build(given: dict[str, Any]) -> serve.Application:
    """given: `Arguments`, which Serve passes as strings. Raises pydantic's ValidationError, or ConfigError if a server
    would refuse the flags."""
    arguments = Arguments.model_validate(given)
    flags = arguments.flags_of_a_replica()
    # The number of hosts is checked as the replicas will have it.
    settings = read_settings([*flags, "--nnodes", str(arguments.hosts), "--node-secret", "drawn by each replica"])
    replicas = serve.deployment(
        Replica,
        name="replica",
        max_ongoing_requests=MOST_CALLS,
        ray_actor_options={"num_gpus": arguments.num_gpus, "num_cpus": arguments.num_cpus},
        **arguments.placement(),
        request_router_config=_PREFIX_ROUTER,
        health_check_period_s=5,
        health_check_timeout_s=5,
        # How long a replica that is removed may finish its calls.
        graceful_shutdown_timeout_s=settings.shutdown_delay + settings.shutdown_timeout + 30,
        autoscaling_config={
            "min_replicas": arguments.min_replicas,
            "max_replicas": arguments.max_replicas,
            "upscale_delay_s": arguments.upscale_delay_s,
            "downscale_delay_s": arguments.downscale_delay_s,
            "look_back_period_s": arguments.look_back_period_s,
            "metrics_interval_s": min(2.0, arguments.look_back_period_s),
            "policy": {
                "policy_function": "service.ray_serve.autoscaling:ByWaitingRequests",
                "policy_kwargs": {"waiting_per_replica": arguments.waiting_per_replica},
            },
        },
    )
    entry = serve.deployment(
        Entry,
        name="ingress",
        num_replicas=arguments.ingress_replicas,
        max_ongoing_requests=MOST_CALLS,
        ray_actor_options={"num_cpus": 0},
    )
    run = shlex.split(arguments.run)
    bound = replicas.bind(run, flags, settings.max_num_seqs, arguments.start_others())
    return entry.bind(bound, int(settings.max_body_bytes))
