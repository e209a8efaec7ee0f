"""`headrace serve --node-rank N`, N > 0: a host that computes some stages of a model; the head is another host."""

from __future__ import annotations

import logging
import sys

from service.core.version import distribution_version
from service.distributed.rank_task import RankTask
from service.errors import ConfigError, ModelLoadError
from service.hosts.member import Member
from service.models.model_folder import resolve_model_folder
from service.process.log_format import make_formatter
from service.process.log_writer import LogWriter
from service.process.shutdown import ExitStatus
from service.settings.settings import Settings

logger = logging.getLogger("headrace")


def serve_stages(settings: Settings) -> int:
    """Runs until the head ends, or until this host or the head is lost; returns the exit status. Main thread."""
    with LogWriter() as log:
        log.setFormatter(make_formatter(settings.log_format, is_terminal=sys.stderr.isatty()))
        logging.basicConfig(level=settings.log_level.upper(), handlers=[log])
        logger.info(
            "headrace %s, model %s, host %d of %d",
            distribution_version(),
            settings.model,
            settings.node_rank,
            settings.nnodes,
        )
        try:
            return _serve(settings)
        except (ConfigError, ModelLoadError) as fault:
            logger.critical("%s", fault)
        except Exception:  # a defect of ours
            logger.critical("this host has failed", exc_info=True)
    return int(ExitStatus.FAULT)


def _serve(settings: Settings) -> int:
    source, node = settings.model_source(), settings.node_config()
    assert node is not None
    task = RankTask(
        source,
        resolve_model_folder(source.model, source.revision, source.load_format),
        settings.cache_config(),
        max_num_seqs=0,  # the head decides these three
        max_num_batched_tokens=0,
        enforce_eager=False,
        log_level=settings.log_level,
        log_format=settings.log_format,
        lora=settings.lora_config(),
        parallel=settings.parallel_config(),
        choices=settings.choices,
    )
    return Member(node, task).run()
