"""``cordwood produce`` chooses the same partition for a key as other Kafka clients."""

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from cordwood.cli.commands.produce import PlacedRecord, _by_partition
from cordwood.model import Record


@given(st.lists(st.binary(max_size=12), min_size=1), st.integers(1, 50))
def test_a_key_goes_where_kafkas_partitioner_puts_it(keys, count):
    """The partition of a key comes from Kafka's murmur2 hash."""
    records = [PlacedRecord(None, Record(0, 0, key, b"")) for key in keys]
    for number, taken in _by_partition(records, count, None).items():
        assert all((murmur2(each.key) & 0x7FFFFFFF) % count == number for each in taken)
