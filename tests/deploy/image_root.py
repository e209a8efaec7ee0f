"""`python -m tests.deploy.image_root ...`: what an image starts, as its user, on its root that nobody can write to.

By bubblewrap, where no engine of containers is. IMAGE in the environment: JSON of `root`, its configuration as the
OCI has it (`config`), and a folder for its `volumes`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def in_image(image: dict[str, Any], *command: str) -> list[str]:
    """The command there, with the image's variables and rights, its volumes, and /tmp in memory."""
    config = image["config"]
    words = ["bwrap", "--ro-bind", image["root"], "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    for number, volume in enumerate(sorted(config["Volumes"])):
        kept = Path(image["volumes"]) / str(number)
        kept.mkdir(parents=True, exist_ok=True)
        os.chown(kept, int(config["User"]), -1)
        words += ["--bind", str(kept), volume]
    words += ["--unshare-user", "--uid", config["User"], "--cap-drop", "ALL", "--die-with-parent", "--clearenv"]
    for variable in config["Env"]:
        words += ["--setenv", *variable.split("=", 1)]
    return [*words, "--chdir", config["WorkingDir"], *command]


if __name__ == "__main__":
    image = json.loads(os.environ["IMAGE"])
    words = in_image(image, *image["config"]["Entrypoint"], *sys.argv[1:])
    os.execvp(words[0], words)
