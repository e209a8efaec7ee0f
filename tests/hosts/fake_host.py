"""A host that is not the head, with ranks that load no model: `python -m tests.hosts.fake_host PORT SECRET BEHAVIOUR
[FACT]`, as fake_worker.py behaves. FACT: its block size is another one."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

from service.errors import ConfigError, ModelLoadError
from service.hosts.member import Member
from tests.distributed.test_rank_processes import worker
from tests.hosts.hosts import TASK, node

port, secret, behaviour, *fact = sys.argv[1:]
logging.basicConfig(level="INFO")
task = replace(TASK, cache=replace(TASK.cache, block_size=32)) if fact else TASK
try:
    sys.exit(Member(node(1, int(port), secret), task, worker(behaviour)).run())
except (ConfigError, ModelLoadError) as fault:
    sys.exit(str(fault))
