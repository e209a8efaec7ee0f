"""`python -m tests.deploy.without_triton ...`: the service where Triton is not installed, as in the image for CPUs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder


class _NoTriton(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if __name__ == "__main__":
    sys.meta_path.insert(0, _NoTriton())
    from service.cli import main

    sys.exit(main(["serve", *sys.argv[1:]]))
