"""The agent of docs/clients.md does what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.clients
pytest.importorskip("agents")

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"


def test_the_agent_of_the_docs_calls_its_function(server: ServerProcess) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    program = found[1].replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("vllm:generation_tokens_total"), done.stderr
