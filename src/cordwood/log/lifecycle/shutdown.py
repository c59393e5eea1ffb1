"""Close many partitions in parallel and return those that are fully synced."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from typing import Final

from cordwood.errors import CordwoodError
from cordwood.log.write.partition import Partition

CLOSE_THREADS: Final = 16  # parallel syncs let the device order its writes

logger = logging.getLogger("cordwood.log")


def close_partitions(partitions: Sequence[Partition]) -> list[Partition]:
    """Close all in parallel; returns those closed cleanly, with all their records synced."""
    with ThreadPoolExecutor(CLOSE_THREADS, thread_name_prefix="cordwood-close") as pool:
        return list(compress(partitions, pool.map(_close, partitions)))


def _close(partition: Partition) -> bool:
    was_online = not partition.offline_reason
    try:
        partition.close()
    except CordwoodError as error:  # the next start scans the file
        logger.warning("partition.unclean partition=%s error=%s", partition.tp, error)
        return False
    return was_online
