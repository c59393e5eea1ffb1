"""A delivery appends each batch once per topic, and identifies a topic by its id, not its name."""

from hypothesis import given
from hypothesis import strategies as st

from cordwood.decide.delivery import (
    CursorMove,
    DeliveryDue,
    DeliveryRecord,
    Part,
    encode_delivery,
    numbers_left,
    parse_delivery,
    plan_appends,
    plan_delivery,
    plan_forget,
    plan_sweep,
)

NAMES = st.sampled_from(["a", "b", "c-1"])
IDS = st.sampled_from(["1", "2"])
DELIVER = st.tuples(st.just("deliver"), st.integers(0, 4), st.sets(NAMES, min_size=1))
STEPS = st.lists(DELIVER | st.tuples(st.just("delete"), NAMES), max_size=40)


@given(STEPS)
def test_a_topic_gets_each_batch_once_and_never_an_older_one(steps):
    """This holds for any repeated batches and for topics deleted and created in between."""
    live, serial, last, delivered = {}, iter(range(10**6)), None, {}
    for step in steps:
        if step[0] == "delete":
            live.pop(step[1], None)
            continue
        _, batch, targets = step
        earlier = set() if last is None else set(last.topics)
        plan = plan_delivery(last, batch, targets, {n: live.get(n) for n in targets | earlier})
        if plan.due is not DeliveryDue.ACCEPT:
            assert plan.due is (DeliveryDue.STALE if batch < last.batch else DeliveryDue.REPEAT)
            continue
        kept = {name: i for name, i in (last.topics if last else {}).items() if live.get(name) == i}
        for name in plan.topics:
            live.setdefault(name, f"id {next(serial)}")
            stored = delivered.setdefault(live[name], [])
            assert stored == [] or batch > stored[-1]
            stored.append(batch)
        last = DeliveryRecord(batch=batch, topics=kept | {name: live[name] for name in plan.topics})


def test_a_batch_that_comes_again_is_nothing_unless_a_topic_is_another():
    """A repeated batch is appended only to topics whose id changed since the first delivery."""
    last = DeliveryRecord(batch=5, topics={"a": "1", "b": "1"})
    assert plan_delivery(last, 5, {"a", "b"}, {"a": "1", "b": "1"}).due is DeliveryDue.REPEAT
    assert plan_delivery(last, 5, {"a", "b"}, {"a": "1", "b": "2"}) == (DeliveryDue.ACCEPT, {"b"})
    assert plan_delivery(last, 5, {"b"}, {"a": "1", "b": None}) == (DeliveryDue.ACCEPT, {"b"})


def test_a_batch_that_moves_cursors_comes_once_whatever_became_of_its_topics():
    """The batch consumed its source records, so recreating the target topic does not repeat it."""
    last = DeliveryRecord(batch=5, topics={"a": "1"})
    for batch, due in ((6, DeliveryDue.ACCEPT), (5, DeliveryDue.REPEAT), (4, DeliveryDue.STALE)):
        assert plan_delivery(last, batch, {"a"}, {"a": "2"}, moves_cursors=True).due is due


def test_an_older_batch_is_refused_while_anything_delivered_before_is_there():
    """An older batch is stale while any topic of the last delivery still exists."""
    last = DeliveryRecord(batch=5, topics={"a": "1", "b": "1"})
    assert plan_delivery(last, 3, {"b"}, {"a": "1", "b": "2"}).due is DeliveryDue.STALE
    assert plan_delivery(last, 3, {"b"}, {"a": None, "b": "2"}).due is DeliveryDue.ACCEPT
    assert plan_delivery(DeliveryRecord(batch=5), 3, {"b"}, {"b": "1"}).due is DeliveryDue.STALE


@given(
    st.builds(
        DeliveryRecord,
        batch=st.integers(0, 99),
        job=st.text(max_size=4),
        producer_id=st.integers(-1, 99),
        is_done=st.booleans(),
        next=st.dictionaries(st.just("a-0"), st.integers(0, 2**40)),
        parts=st.lists(
            st.builds(Part, NAMES, st.integers(0, 9), st.text(max_size=3), topic_id=IDS)
        ).map(tuple),
        cursors=st.lists(
            st.builds(CursorMove, NAMES, NAMES, st.integers(0, 3), st.integers(0, 99))
        ).map(tuple),
        topics=st.dictionaries(NAMES, IDS),
        accepted_ms=st.integers(0, 99),
        is_once=st.booleans(),
    )
)
def test_a_record_is_read_back_as_it_was_written(record):
    """Encoding a delivery record and parsing it again returns the same record."""
    assert parse_delivery("q", encode_delivery(record)) == record


def test_a_record_of_an_earlier_version_is_read():
    """An old record has no topic ids, so any existing topic counts as unchanged."""
    found = {
        "batch": 1, "job": "j", "producer_id": 7, "done": False, "next": {"a-0": 4},
        "parts": [["a", 0, "x", 0, 4, 99]], "cursors": [["r", "in", 0, 10]],
    }  # fmt: skip
    record = parse_delivery("q", found)
    assert record.parts == (Part("a", 0, "x", 0, 4, 99),)
    assert record.unchanged("a", "any")
    assert not record.unchanged("a", None)


def test_a_checksum_that_can_be_forged_is_not_taken_for_a_hash():
    """Earlier versions stored a CRC instead of a hash; the parsed part has an empty hash."""
    found = {
        "batch": 1, "job": "j", "producer_id": 7, "done": False, "next": {},
        "parts": [["a", 0, "x", 0, 4, 99, "id", 12345]], "cursors": [],
    }  # fmt: skip
    assert parse_delivery("q", found).parts == (Part("a", 0, "x", 0, 4, 99, "id", ""),)


def test_numbers_are_kept_for_topics_that_are_the_same():
    """Sequence numbers are dropped for a topic whose id changed or that is gone."""
    record = DeliveryRecord(
        batch=1, next={"a-0": 5, "b-x-10": 6, "c-1": 7}, topics={"a": "1", "b-x": "1", "c": "1"}
    )
    assert numbers_left(record, {"a": "1", "b-x": "1"}) == {"a-0": 5, "b-x-10": 6}
    assert numbers_left(record, {"a": "2", "c": "1"}) == {"c-1": 7}


def test_small_parts_are_appended_together_and_large_ones_alone():
    """Parts stay in order, and no part is left out."""
    parts = [Part("a", 0, str(size), size_bytes=size) for size in (3, 4, 9, 1, 1)]
    runs = [[part.size_bytes for part in run] for run in plan_appends(parts, 8)]
    assert runs == [[3, 4], [9], [1, 1]]
    assert list(plan_appends([], 8)) == []


def test_only_what_is_idle_for_long_and_promised_to_nobody_is_swept():
    """A sweep keeps a recently active job and a job that a pending delivery needs."""
    found = [("old", 11), ("young", 10), ("promised", 99)]
    assert plan_sweep(found, {"promised"}, 10) == ["old"]


def test_a_query_is_forgotten_when_it_is_done_and_idle():
    """One-time writes are forgotten sooner than streams; unfinished deliveries never are."""
    records = {
        "write": DeliveryRecord(batch=0, accepted_ms=100, is_once=True),
        "stream": DeliveryRecord(batch=9, accepted_ms=100),
        "under way": DeliveryRecord(batch=9, accepted_ms=0, is_done=False),
    }
    assert plan_forget(records, 110, 10, 50) == []
    assert plan_forget(records, 111, 10, 50) == ["write"]
    assert plan_forget(records, 151, 10, 50) == ["write", "stream"]


class CountedPart:
    """A part that counts how often its size is read."""

    asked = 0

    @property
    def size_bytes(self):
        CountedPart.asked += 1
        return 1


def test_planning_appends_is_linear_in_the_parts():
    """Planning reads the size of each part at most twice."""
    CountedPart.asked = 0
    count = 1000
    assert [len(run) for run in plan_appends([CountedPart() for _ in range(count)], count)] == [
        count
    ]
    assert CountedPart.asked <= 2 * count
