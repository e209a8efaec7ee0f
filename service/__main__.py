"""`python -m service` is the `headrace` command."""

import sys

from service.cli import main

sys.exit(main())
