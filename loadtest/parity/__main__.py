"""`python -m loadtest.parity`: `headrace parity`."""

import sys

from loadtest.parity.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
