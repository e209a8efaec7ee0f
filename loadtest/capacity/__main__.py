"""`python -m loadtest.capacity`: `headrace plan`."""

import sys

from loadtest.capacity.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
