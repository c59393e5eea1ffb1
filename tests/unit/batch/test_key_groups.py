"""Operations on many keys: Kafka's partitioner, prefixes and grouping of equal keys."""

import random

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from cordwood.batch.columns import Spans
from cordwood.batch.key_groups import NULL, group, partitions_of, prefixes

KEYS = st.lists(st.none() | st.binary(max_size=12) | st.sampled_from([b"", b"a.b", b"a", b"\xff."]))


@given(KEYS, st.integers(1, 50))
def test_a_key_goes_where_kafkas_partitioner_puts_it(keys, count):
    """The partition equals the Java client's murmur2 result; null keys have none."""
    wanted = [NULL if key is None else (murmur2(key) & 0x7FFFFFFF) % count for key in keys]
    assert partitions_of(Spans.of(keys), count).tolist() == wanted


@given(KEYS)
def test_equal_keys_share_a_group_and_others_do_not(keys):
    """Equal keys share a group, and groups are numbered by first appearance."""
    ids, firsts = group(Spans.of(keys))
    known = list(dict.fromkeys(key for key in keys if key is not None))
    assert ids.tolist() == [NULL if key is None else known.index(key) for key in keys]
    assert [keys[first] for first in firsts] == known


@given(KEYS)
def test_a_prefix_ends_before_the_first_dot(keys):
    """The prefix of a null key is null, and keys with non-ASCII bytes are flagged."""
    before_dot, is_plain = prefixes(Spans.of(keys))
    for row, key in enumerate(keys):
        assert before_dot[row] == (None if key is None else key.split(b".")[0])
        assert key is None or is_plain[row] == key.isascii()


def test_keys_with_equal_hashes_are_still_distinguished():
    """Keys that collide in the open-addressed hash table stay in separate groups."""
    chance = random.Random(7)
    keys = [b"%d" % chance.randrange(5000) for _ in range(20_000)]
    ids, firsts = group(Spans.of(keys))
    assert len(firsts) == len(set(keys))
    assert all(keys[firsts[at]] == key for key, at in zip(keys, ids.tolist(), strict=True))
