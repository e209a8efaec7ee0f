"""`headrace serve ARGUMENTS` whose threads take the interpreter from each other a thousand times as often as usual."""

from __future__ import annotations

import sys

from service.main import serve
from service.process import interpreter
from service.settings.reader import read_settings

SWITCH_INTERVAL_S = 1e-6

if __name__ == "__main__":
    interpreter.SWITCH_INTERVAL_S = interpreter.SWITCH_INTERVAL_ON_CPU_S = SWITCH_INTERVAL_S
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    sys.exit(serve(read_settings(sys.argv[1:])))
