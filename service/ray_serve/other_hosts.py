"""The other hosts of a replica whose model has stages on several: one actor on each, in the replica's placement group.

Imported only with Ray. Actors end with their replica, and the replica with its server, which ends if one of them is
lost. So a lost host costs one replica, and Serve starts another, in a group of its own.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence

import ray
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from service.ray_serve.replica import Others
from service.ray_serve.server_process import child

_NODE_SECRET = "HEADRACE_NODE_SECRET"


class OtherHost:
    """On a bundle of the placement group. It and its process end together."""

    def __init__(self, run: Sequence[str], flags: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = child(run, flags, environment)
        threading.Thread(target=self._end_with_process, name="other host's end", daemon=True).start()

    def _end_with_process(self) -> None:
        os._exit(self._process.wait())


class OnPlacementGroup:
    """How a replica starts its other hosts. num_hosts: bundles of its placement group; the replica itself is on the
    first one. num_cpus, num_gpus: of a bundle."""

    def __init__(self, num_hosts: int, num_cpus: float, num_gpus: float) -> None:
        self._num_hosts = num_hosts
        self._resources = {"num_cpus": num_cpus, "num_gpus": num_gpus}

    def __call__(self, run: Sequence[str], flags: Sequence[str]) -> Others:
        """Starts all of them, with a secret of this replica alone. In the replica's process."""
        group = get_current_placement_group()
        assert group is not None, "Serve makes the replica in its placement group"
        address = ray.util.get_node_ip_address()
        shared = (
            *("--nnodes", str(self._num_hosts)),
            *("--master-addr", address),
            *("--master-port", str(_free_port(address))),
        )
        environment = {_NODE_SECRET: secrets.token_hex(32)}
        actors = [
            ray.remote(OtherHost)
            .options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, node), **self._resources)
            .remote(run, [*flags, *shared, "--node-rank", str(node)], environment)
            for node in range(1, self._num_hosts)
        ]
        return Others(shared, environment, actors)


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as listening:
        port: int = listening.getsockname()[1]
    return port
