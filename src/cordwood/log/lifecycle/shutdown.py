"""Closing many partitions at once, and saying which of them are whole on the device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from typing import Final

from cordwood.errors import CordwoodError
from cordwood.log.write.partition import Partition

CLOSE_THREADS: Final = 16  # a device orders many syncs at once better than one after the other

logger = logging.getLogger("cordwood.log")


def close_partitions(partitions: Sequence[Partition]) -> list[Partition]:
    """Close all, side by side; those that were closed cleanly, with all they hold synced."""
    with ThreadPoolExecutor(CLOSE_THREADS, thread_name_prefix="cordwood-close") as pool:
        return list(compress(partitions, pool.map(_close, partitions)))


def _close(partition: Partition) -> bool:
    was_online = not partition.offline_reason
    try:
        partition.close()
    except CordwoodError as error:  # the next start scans what could not be written
        logger.warning("partition.unclean partition=%s error=%s", partition.tp, error)
        return False
    return was_online
