"""Codex itself, where it is installed (`npm install -g @openai/codex`), against the real app."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.api.running_server import running
from tests.e2e.scripted_agent import MODEL, agent_scene, call_and_tell

needs_codex = pytest.mark.skipif(shutil.which("codex") is None, reason="there is no Codex")


@needs_codex
def test_it_runs_a_command_and_tells_what_it_has_printed(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("the word is xylophone\n")
    home = tmp_path / "home"
    home.mkdir()
    with running(agent_scene()) as server:
        thought = "<think>I must look.</think>"
        call_and_tell(server, "exec_command", {"cmd": "cat secret.txt"}, "xylophone", thought)
        provider = f'{{name="local",base_url="{server.base_url}/v1",wire_api="responses"}}'
        settings = {
            "model_providers.local": provider,
            "model_provider": "local",
            "check_for_update_on_startup": "false",
            "analytics.enabled": "false",
        }
        command = ["codex", "exec", "--json", "--skip-git-repo-check", "-s", "danger-full-access", "-m", MODEL]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        done = subprocess.run(
            [*command, "What is the word in secret.txt?"],
            env={"PATH": os.environ["PATH"], "HOME": str(home), "HTTPS_PROXY": "http://127.0.0.1:9"},  # nobody else
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    (run,) = [item for item in items if item["type"] == "command_execution"]
    assert (run["exit_code"], run["aggregated_output"]) == (0, "the word is xylophone\n")
    assert [item["text"] for item in items if item["type"] == "agent_message"] == [
        "I read it.",
        "The word is xylophone.",
    ]
    usage = events[-1]["usage"]
    assert usage["reasoning_output_tokens"] > 0
    assert usage["input_tokens"] > 10_000
