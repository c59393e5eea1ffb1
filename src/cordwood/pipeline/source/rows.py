"""Decode record batches into Arrow record batches of the requested columns.

Runs on executors, with the kernels of ``batch``. Decodes only the columns in the schema and
verifies every batch's checksum.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql.types import StructType

from cordwood.batch.columns import Columns
from cordwood.batch.kernels.loader import kernels
from cordwood.errors import CorruptBatch, CorruptionError
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.schema import HEADERS
from cordwood.pipeline.source.segment_files import Chunk


def read_rows(chunks: Iterable[Chunk], whole: Range, schema: StructType) -> Iterator[Any]:
    """Yield the records of the range as ``pyarrow.RecordBatch`` with exactly this schema."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    from cordwood.batch.arrow import arrow_batches, wanted_columns

    _settle()
    shape = to_arrow_schema(schema, timezone="UTC")
    wanted = wanted_columns(schema.names)
    for chunk in chunks:
        columns = decode_chunk(chunk, whole, wanted)
        for batch in arrow_batches(columns, *whole.tp, schema.names):
            arrays = [
                _null_when_none(pa, array) if name == HEADERS else array
                for name, array in zip(schema.names, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=shape)


def decode_chunk(chunk: Chunk, whole: Range, wanted: frozenset[str]) -> Columns:
    """Decode the records of a chunk that lie in the range; raises ``CorruptionError``."""
    from cordwood.batch.column_decoder import decode_columns

    try:
        return decode_columns(
            chunk.data,
            start_offset=chunk.start_offset,
            end_offset=whole.end,
            wanted=wanted,
            aborted=chunk.aborted,
        )
    except CorruptBatch as error:
        raise CorruptionError(
            f"{whole.tp}, offsets {chunk.start_offset} to {chunk.end_offset}: {error}; run "
            "`cordwood segment verify`"
        ) from None


_reads: Final = itertools.count()


def _settle() -> None:
    """Load the kernels and exclude them from the garbage collection after every task.

    A Spark worker runs the garbage collector before its next task. With numba loaded that costs
    70 ms of CPU time, more than most tasks take. ``gc.freeze`` excludes all objects that exist now.
    The second read freezes again because the worker imports pandas only during the first.
    """
    kernels()
    if next(_reads) < 2:
        gc.freeze()


def _null_when_none(pa: Any, headers: Any) -> Any:
    """Replace empty header lists by null, as Spark's Kafka source does."""
    import pyarrow.compute as pc

    is_none = pc.equal(headers.value_lengths(), 0)
    return pa.ListArray.from_arrays(
        headers.offsets, headers.values, type=headers.type, mask=is_none
    )
