"""A process that has imported the service and forks itself for each server that tests start: `python -m
tests.e2e.fork_server DESCRIPTOR`. `forked_process.py` talks to it through that socket.

To import the service is three quarters of what the start of a small server costs. Here nothing but the imports has
happened when it forks: no thread runs, and no device was touched.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import struct
import sys
import threading
import traceback
from typing import NamedTuple

from service.distributed import rank_processes
from service.process.environment import restart_prepared
from tests.e2e.spare_processes import SpareProcesses, num_ranks_elsewhere

IMPORTED = """
service.cli service.main service.composition.other_host service.composition.start_checks
service.models.llama service.models.transformers_backend service.distributed.rank_model
""".split()
"""What the command imports, also where it does so late."""

NUMBER = struct.Struct("i")
_MESSAGE_BYTES = 1 << 16
_NUM_DESCRIPTORS = 4


class Order(NamedTuple):
    """`python -m MODULE ARGUMENTS`, what of its environment is not this process's, and what its descriptors 0, 1 and 2
    are."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    streams: list[int]


def next_order(control: socket.socket) -> Order:
    """Returns in the process that is to carry it out, a child. Never in this one: it ends when nobody can ask any more.

    Who asks is told the child's id, and when it has ended its exit status, by the socket that came with the order.
    """
    with control, selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        running: dict[int, tuple[int, socket.socket]] = {}
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    selector.unregister(key.fd)
                    pid, asker = running.pop(key.fd)
                    os.close(key.fd)
                    with asker:
                        _tell(asker, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    continue
                received = _receive(control)
                if received is None:
                    os._exit(0)
                order, asker = received
                pid = os.fork()
                if not pid:
                    asker.close()
                    for pidfd, (_, other) in running.items():
                        os.close(pidfd)
                        other.close()
                    return order
                for stream in order.streams:
                    os.close(stream)
                _tell(asker, pid)
                pidfd = os.pidfd_open(pid)
                running[pidfd] = pid, asker
                selector.register(pidfd, selectors.EVENT_READ)


def _receive(control: socket.socket) -> tuple[Order, socket.socket] | None:
    room = socket.CMSG_SPACE(_NUM_DESCRIPTORS * NUMBER.size)
    message, ancillary, _, _ = control.recvmsg(_MESSAGE_BYTES, room)
    if not message:
        return None
    descriptors = array.array("i", ancillary[0][2])
    (module, *arguments), environment = json.loads(message)
    return Order(module, arguments, environment, list(descriptors[:3])), socket.socket(fileno=descriptors[3])


def _tell(asker: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the tests are over
        asker.send(NUMBER.pack(number))


def carry_out(order: Order) -> int:
    """As the interpreter would begin and end; returns its exit status."""
    for number, stream in enumerate(order.streams):
        os.dup2(stream, number)
    for stream in order.streams:
        os.close(stream)
    os.environ.update(order.environment)
    sys.argv[1:] = order.arguments
    sys.orig_argv[1:] = ["-m", order.module, *order.arguments]
    spares = SpareProcesses(num_ranks_elsewhere(order.arguments))
    rank_processes.subprocess = spares.instead_of_subprocess()
    try:
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    restart_prepared()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # a collection in a child would copy all pages of it
    assert threading.active_count() == 1, "threads are not forked"
    status = carry_out(next_order(socket.socket(fileno=int(sys.argv[1]))))
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)  # to take the interpreter apart would touch, and so copy, all that is shared
