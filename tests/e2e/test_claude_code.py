"""Claude Code itself, where it is installed (`npm install -g @anthropic-ai/claude-code`), against the real app."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.api.running_server import running
from tests.e2e.scripted_agent import MODEL, agent_scene, call_and_tell

needs_claude = pytest.mark.skipif(shutil.which("claude") is None, reason="there is no Claude Code")


@needs_claude
def test_it_reads_a_file_and_tells_what_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "secret.txt"
    file.write_text("the word is xylophone\n")
    with running(agent_scene()) as server:
        call_and_tell(server, "Read", {"file_path": str(file)}, "xylophone", "I must look.</think>")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "ANTHROPIC_BASE_URL": server.base_url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        command = ["claude", "-p", "What is the word in secret.txt?", "--output-format", "json"]
        done = subprocess.run(
            command,
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
    result = json.loads(done.stdout)
    assert (result["is_error"], result["num_turns"], result["result"]) == (False, 2, "The word is xylophone.")
    assert result["usage"]["input_tokens"] > 10_000
