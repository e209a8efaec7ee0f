"""`python -m loadtest.bench`."""

import sys

from loadtest.bench.cli import main
from service.process.early_signals import hold_signals, release_signals
from service.process.environment import restart_prepared
from service.process.standard_streams import open_standard_streams

if __name__ == "__main__":
    hold_signals()  # as the service does at its start
    open_standard_streams()
    restart_prepared()
    release_signals()
    sys.exit(main(sys.argv[1:]))
