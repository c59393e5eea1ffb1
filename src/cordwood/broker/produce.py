"""Produce service: checks every batch (``batch_checks``) and submits it to the writer.

A producer's batch is stored as it arrived, once every record in it has been read. The event loop
checks batches that are quick to check; a thread checks the rest, one at a time, in order per
partition.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from cordwood.batch.compression import INFLATED_BYTES_MAX
from cordwood.batch.header import BatchHeader, parse_headers
from cordwood.batch.records import encode_batch
from cordwood.broker import batch_checks
from cordwood.broker.batch_checks import BatchRules, producer_rules
from cordwood.broker.ingest.ordered_executor import OrderedExecutor
from cordwood.clock import Clock
from cordwood.errors import CordwoodError
from cordwood.log.write.commit import Append
from cordwood.log.write.partition import Appended, Outcome, Partition
from cordwood.log.write.writer import Writer
from cordwood.model import Header, Record

Admit = Callable[[BatchHeader], None]


class ProduceService:
    """Every append goes through here, except the lines of the ingress listener."""

    def __init__(
        self, writer: Writer, clock: Clock, inflated_bytes_max: int = INFLATED_BYTES_MAX
    ) -> None:
        """``inflated_bytes_max`` limits the inflated size of one compressed batch."""
        self._writer = writer
        self._clock = clock
        self.inflated_bytes_max = inflated_bytes_max
        self._checking = OrderedExecutor("cordwood-check")
        self._behind: Counter[Partition] = Counter()  # appends whose check is still running
        self.on_checked: Callable[[], None] = lambda: None

    @property
    def checking_bytes(self) -> int:
        """Bytes of the appends being checked on the other thread."""
        return self._checking.bytes

    async def stop(self) -> None:
        """Finish the running checks, so that their batches reach the writer before it closes."""
        await self._checking.stop()

    def append_then(
        self,
        partition: Partition,
        data: bytes | bytearray | memoryview,
        done: Callable[[Outcome], None],
        *,
        admit: Admit = lambda _: None,
        is_for_loop: bool = True,
    ) -> None:
        """Append a producer's batch; ``done`` is called on the event loop when it is durable.

        The log takes ownership of writable ``data``: it patches offsets into the buffer in place,
        so a batch is not copied on its way to the file. Errors that the client can fix are raised
        at once or passed to ``done``. A check that takes long (a large batch, one that inflates
        far, or any batch while ``is_for_loop`` is False) runs on another thread, and later batches
        for the same partition queue behind it. ``admit`` is called on the event loop just before
        the batch goes to the writer, and may raise.
        """
        mine = memoryview(data)
        if mine.readonly:
            mine = memoryview(bytearray(data))
        rules = producer_rules(
            partition.tp.topic, partition.config, self.inflated_bytes_max, self._clock.now_ms()
        )
        if is_for_loop and partition not in self._behind and len(mine) <= batch_checks.LOOP_BYTES:
            header: BatchHeader | None = batch_checks.check_frame(mine, rules)
            assert header is not None
            if batch_checks.is_for_loop(mine, header):
                bytes_max = min(batch_checks.LOOP_INFLATED_BYTES, self.inflated_bytes_max)
                header = batch_checks.check_records(mine, header, rules, bytes_max)
                if header is not None:
                    admit(header)
                    self._submit(partition, mine, header, done, rules)
                    return
        self._append_checked(partition, mine, rules, done, admit)

    def _append_checked(
        self,
        partition: Partition,
        data: memoryview,
        rules: BatchRules,
        done: Callable[[Outcome], None],
        admit: Admit,
    ) -> None:
        """Check on the other thread, which keeps the order, then append."""

        def checked(result: asyncio.Future[BatchHeader]) -> None:
            self._behind[partition] -= 1
            if not self._behind[partition]:
                del self._behind[partition]
            try:
                header = result.result()
                admit(header)
                self._submit(partition, data, header, done, rules)
            except CordwoodError as error:
                done(error)
            except Exception:  # a bug: the client gets an answer, and the loop logs it
                done(
                    CordwoodError(
                        "the broker failed while it checked this batch; see the broker's log"
                    )
                )
                raise
            finally:
                self.on_checked()

        self._behind[partition] += 1
        self._checking.run(
            lambda: batch_checks.check_whole(data, rules), checked, size_bytes=len(data)
        )

    def check(
        self, partition: Partition, data: bytes | bytearray | memoryview, batch_bytes_max: int
    ) -> list[BatchHeader]:
        """Return the headers of staged batches that the partition accepts; raises otherwise.

        Blocks; call it on a thread.
        """
        needs_keys = "compact" in partition.config.cleanup_policy
        return batch_checks.check_staged(
            data, partition.tp.topic, batch_bytes_max, needs_keys=needs_keys
        )

    def append_record(
        self, partition: Partition, key: bytes | None, value: bytes | None
    ) -> asyncio.Future[Appended]:
        """Append one record made by the broker, with the current time as its timestamp."""
        data = bytearray(encode_batch([Record(0, self._clock.now_ms(), key, value)]))
        return self.submit(partition, data, parse_headers(data))

    def append_values(
        self, partition: Partition, values: Sequence[tuple[bytes, tuple[Header, ...]]]
    ) -> asyncio.Future[Appended]:
        """Append values with their headers as one batch; on a full disk it waits for space.

        They have no keys and no client to get an error, so a compacted topic does not refuse them;
        compaction keeps records without a key.
        """
        now_ms = self._clock.now_ms()
        records = [
            Record(offset, now_ms, None, value, headers)
            for offset, (value, headers) in enumerate(values)
        ]
        data = bytearray(encode_batch(records))
        return self.submit(partition, data, parse_headers(data), hold=True, is_key_checked=True)

    def submit(
        self,
        partition: Partition,
        data: bytearray | memoryview,
        headers: list[BatchHeader],
        *,
        hold: bool = False,
        strict: bool = True,
        is_key_checked: bool = False,
    ) -> asyncio.Future[Appended]:
        """Queue checked batches; ``is_key_checked`` skips the writer's check for keys."""
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        records = sum(header.count for header in headers)
        append = Append(partition, data, headers, records, partial(_settle, future), hold=hold)
        append.strict, append.is_key_checked = strict, is_key_checked
        self._writer.submit(append)
        return future

    def _submit(
        self,
        partition: Partition,
        data: memoryview,
        header: BatchHeader,
        done: Callable[[Outcome], None],
        rules: BatchRules,
    ) -> None:
        append = Append(partition, data, [header], header.count, done)
        append.is_key_checked = rules.needs_keys
        self._writer.submit(append)


def _settle(future: asyncio.Future[Appended], outcome: Outcome) -> None:
    if future.done():  # the client is gone
        return
    if isinstance(outcome, CordwoodError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
