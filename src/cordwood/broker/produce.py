"""The service for appends: checks every batch (``checks``), hands it to the writer.

What a producer sent is stored as it arrived, once every record in it could be read. The event loop
checks what takes a moment; the rest goes to a thread, one batch at a time, in order per partition.
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
    """Where every append but the ingress listener's own lines goes through."""

    def __init__(
        self, writer: Writer, clock: Clock, inflated_bytes_max: int = INFLATED_BYTES_MAX
    ) -> None:
        """``inflated_bytes_max``: of one compressed batch of a producer."""
        self._writer = writer
        self._clock = clock
        self._inflated_bytes_max = inflated_bytes_max
        self._checking = OrderedExecutor("cordwood-check")
        self._behind: Counter[Partition] = Counter()  # appends whose check is under way
        self.on_checked: Callable[[], None] = lambda: None

    @property
    def checking_bytes(self) -> int:
        """In appends whose check is under way on the other thread."""
        return self._checking.bytes

    async def stop(self) -> None:
        """Before the writer closes: what is being checked goes to it."""
        await self._checking.stop()

    def append(
        self, partition: Partition, data: bytes | bytearray | memoryview
    ) -> asyncio.Future[Appended]:
        """As ``append_then``; the future ends when the batch is durable."""
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.append_then(partition, bytearray(data), partial(_settle, future))
        return future

    def append_then(
        self,
        partition: Partition,
        data: bytes | bytearray | memoryview,
        done: Callable[[Outcome], None],
        *,
        admit: Admit = lambda _: None,
        is_for_loop: bool = True,
    ) -> None:
        """Append a producer's batch; ``done`` hears on the loop when it is durable.

        Writable ``data`` is the log's from now on: offsets are patched into it where it lies, and
        the bytes of a frame are copied no more on their way to the file. Raises at once, or tells
        ``done``, what the client can mend. What takes long to check (a large batch, one that
        inflates far, or any while ``is_for_loop`` is False) is checked on another thread, and what
        comes for the same partition meanwhile stays behind it. ``admit`` is asked on the loop just
        before the batch goes to the writer, and may raise.
        """
        mine = memoryview(data)
        if mine.readonly:
            mine = memoryview(bytearray(data))
        rules = producer_rules(
            partition.tp.topic, partition.config, self._inflated_bytes_max, self._clock.now_ms()
        )
        if is_for_loop and partition not in self._behind and len(mine) <= batch_checks.LOOP_BYTES:
            header: BatchHeader | None = batch_checks.check_frame(mine, rules)
            assert header is not None
            if batch_checks.is_for_loop(mine, header):
                bytes_max = min(batch_checks.LOOP_INFLATED_BYTES, self._inflated_bytes_max)
                header = batch_checks.check_records(mine, header, rules, bytes_max)
                if header is not None:
                    admit(header)
                    self._submit(partition, mine, [header], done, is_key_checked=rules.needs_keys)
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

        def checked(found: asyncio.Future[BatchHeader]) -> None:
            self._behind[partition] -= 1
            if not self._behind[partition]:
                del self._behind[partition]
            try:
                header = found.result()
                admit(header)
                self._submit(partition, data, [header], done, is_key_checked=rules.needs_keys)
            except CordwoodError as error:
                done(error)
            except Exception:  # our own mistake: the loop reports it, and nobody waits for ever
                done(CordwoodError("the broker failed to check this batch; its log says why"))
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
        """The headers of staged batches this partition would take; raises why it would not.

        For a thread that may take its time.
        """
        needs_keys = "compact" in partition.config.cleanup_policy
        return batch_checks.check_staged(
            data, partition.tp.topic, batch_bytes_max, needs_keys=needs_keys
        )

    def append_record(
        self, partition: Partition, key: bytes | None, value: bytes | None
    ) -> asyncio.Future[Appended]:
        """Append one record of our own making, stamped now."""
        data = bytearray(encode_batch([Record(0, self._clock.now_ms(), key, value)]))
        return self.submit(partition, data, parse_headers(data))

    def append_values(
        self, partition: Partition, values: Sequence[tuple[bytes, tuple[Header, ...]]]
    ) -> asyncio.Future[Appended]:
        """Append values with their headers as one batch; on a full disk it waits for space.

        They have no keys and nobody to be told, so they are not refused for it; compaction, should
        the topic ask for it, keeps what has no key.
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
        """Queue checked batches; ``is_key_checked``: they were promised, or seen to have keys."""
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        done = partial(_settle, future)
        self._submit(
            partition, data, headers, done,
            hold=hold, strict=strict, is_key_checked=is_key_checked,
        )  # fmt: skip
        return future

    def _submit(
        self,
        partition: Partition,
        data: bytearray | memoryview,
        headers: list[BatchHeader],
        done: Callable[[Outcome], None],
        *,
        hold: bool = False,
        strict: bool = True,
        is_key_checked: bool = False,
    ) -> None:
        records = 0
        for header in headers:
            records += header.count
        append = Append(partition, data, headers, records, done, hold=hold, strict=strict)
        append.is_key_checked = is_key_checked
        self._writer.submit(append)


def _settle(future: asyncio.Future[Appended], outcome: Outcome) -> None:
    if future.done():  # the client went away
        return
    if isinstance(outcome, CordwoodError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
