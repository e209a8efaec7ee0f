"""`python -m tests.e2e.shown_process HOW ...`: tells standard error how it was begun, and ends as it is asked to.

HOW: `rank` starts another one as a server starts a rank, and ends as that does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

from service.distributed import rank_processes
from service.process.environment import restart_prepared

INHERITED = 50
"""A descriptor of a server that its rank has, too."""


def _handlers() -> list[str]:
    return [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)]


if __name__ == "__main__":
    restart_prepared()
    begun = {
        "arguments": sys.argv,
        "command": sys.orig_argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "handlers": _handlers(),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "open": sorted(os.listdir("/proc/self/fd"), key=int)[:-1],  # the last is the folder itself
        "group": os.getpgrp(),
        "encoding": [sys.stdin.encoding, sys.stdout.encoding, sys.stderr.encoding],
        "threads": threading.active_count(),
        "main": __name__,
    }
    print(json.dumps(begun), file=sys.stderr)
    match sys.argv[1]:
        case "rank":
            os.dup2(os.memfd_create("given"), INHERITED)
            start = rank_processes.subprocess.Popen
            command = [sys.executable, "-m", "tests.e2e.shown_process", "5"]
            sys.exit(start(command, pass_fds=(INHERITED,), stdin=subprocess.DEVNULL, env=None).wait())
        case "sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
        case "raise":
            raise ValueError("a fault")
        case "sentence":
            sys.exit("a sentence")
        case "return":
            pass
        case status:
            sys.exit(int(status))
