"""`python -m tests.e2e.shown_process HOW ...`: tells standard error how it was begun, and ends as it is asked to."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from service.process.environment import restart_prepared


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
