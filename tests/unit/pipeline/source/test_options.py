"""Source options have the names, defaults and precedence of Spark's Kafka source."""

import pickle

import pytest

from cordwood.errors import InvalidOption
from cordwood.model import TopicPartition
from cordwood.pipeline.source.options import (
    AtOffsets,
    AtTimes,
    Edge,
    parse_duration_ms,
    parse_options,
)
from cordwood.pipeline.source.schema import FIXED_COLUMNS


def batch(**options):
    return parse_options({"subscribe": "t", "path": "/d", **options}, streaming=False)


def stream(**options):
    return parse_options({"subscribe": "t", "path": "/d", **options}, streaming=True)


def test_defaults_are_those_of_the_kafka_source():
    """The defaults are those of Spark's Kafka source."""
    assert (batch().starting, batch().ending) == (Edge.EARLIEST, Edge.LATEST)
    assert stream().starting is Edge.LATEST
    options = stream()
    assert options.fail_on_data_loss
    assert options.columns == FIXED_COLUMNS
    assert options.max_trigger_delay_ms == 15 * 60 * 1000
    assert (options.offset_retries, options.offset_retry_interval_ms) == (3, 1000)
    assert options.poll_timeout_ms == 120_000
    assert options.ignored == ()


def test_names_are_compared_without_case():
    """Option names are case-insensitive, because Spark passes them in lower case."""
    lower = parse_options(
        {"SUBSCRIBEPATTERN": "a.*", "kafka.bootstrap.SERVERS": "h:1", "includeheaders": "TRUE"},
        streaming=True,
    )
    assert lower.subscription.pattern == "a.*"
    assert lower.servers == "h:1"
    assert lower.columns[-1] == "headers"


def test_options_travel_to_executors():
    """Parsed options can be pickled, because Spark sends the reader to the executors."""
    options = batch(startingOffsets='{"t": {"0": 5}}')
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTimestamp": "7"}, AtTimes(7)),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 9}}'},
            AtTimes({TopicPartition("t", 0): 9}),
        ),
        ({"startingOffsets": '{"t": {"0": -2}}'}, AtOffsets({TopicPartition("t", 0): -2})),
        ({"startingOffsets": "Earliest"}, Edge.EARLIEST),
    ],
)
def test_starting_position_takes_the_most_exact_option(options, expected):
    """A timestamp overrides timestamps by partition, which override offsets."""
    order = {
        "startingTimestamp": "7",
        "startingOffsetsByTimestamp": '{"t": {"0": 9}}',
        "startingOffsets": "latest",
    }
    weaker = dict(list(order.items())[list(order).index(next(iter(options))) + 1 :])
    assert stream(**{**weaker, **options}).starting == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOfsets": "earliest"}, "startingOfsets; did you mean startingOffsets?"),
        ({"subscribePattern": "a"}, "exactly one of subscribe"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": "a b"}, "'a b' is not a valid topic name"),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "startingOffsets cannot be latest"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "below -2"),
        ({"startingOffsets": '{"t": 3}'}, "startingOffsets: "),
        ({"startingOffsets": "soon"}, "earliest, latest or JSON"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"startingTimestamp": "x"}, "startingTimestamp: 'x' is not a whole number"),
        ({"minPartitions": "0"}, "minPartitions: must be at least 1"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss: 'yes' is not true or false"),
        ({"columns": "key,ofset"}, "no column ofset; did you mean offset?"),
        ({"columns": "key,key"}, "names key twice"),
        ({"kafka.auto.offset.reset": "earliest"}, "set startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, "set commitGroup"),
        ({"kafka.security.protocol": "SASL_SSL"}, "SASL_SSL is not supported"),
        ({"kafka.sasl.jaas.config": "x"}, "SASL comes with access control"),
        ({"kafka.isolation.level": "serializable"}, "read_uncommitted, read_committed"),
        ({"kafka.bootstrap.servers": "nowhere"}, "'nowhere' is not host:port"),
        ({"filterPushdown": "maybe"}, "'maybe' is not one of auto, true, false"),
        ({"commitGroup": "g"}, "commitGroup needs kafka.bootstrap.servers"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "'guess' is not one of error, latest"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, message):
    """A wrong option is refused by name, with what to write instead."""
    with pytest.raises(InvalidOption) as refused:
        batch(**options)
    assert message in str(refused.value)


def test_a_query_needs_a_path_or_a_broker():
    """A query must set a path or a broker."""
    with pytest.raises(InvalidOption, match=r"set kafka\.bootstrap\.servers"):
        parse_options({"subscribe": "t"}, streaming=False)


def test_start_after_end_is_refused():
    """Start offsets after the end offsets are refused before anything is read."""
    with pytest.raises(InvalidOption, match="of t-0 is 9, after endingOffsets 3"):
        batch(startingOffsets='{"t": {"0": 9}}', endingOffsets='{"t": {"0": 3}}')
    with pytest.raises(InvalidOption, match="same partitions"):
        batch(startingOffsets='{"t": {"0": 1}}', endingOffsets='{"t": {"1": 3}}')


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name):
    """A streaming query refuses options for the end."""
    with pytest.raises(InvalidOption, match=f"{name} is not valid in streaming"):
        stream(**{name: "5" if name == "endingTimestamp" else '{"t": {"0": 5}}'})


def test_min_above_max_per_trigger_is_refused():
    """``minOffsetsPerTrigger`` above ``maxOffsetsPerTrigger`` is refused."""
    with pytest.raises(InvalidOption, match="minOffsetsPerTrigger 5 is above"):
        stream(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4")


def test_old_tunings_are_taken_without_effect():
    """Tuning options without effect are accepted and listed as ignored."""
    assert stream(**{"kafka.max.poll.records": "7"}).ignored == ("kafka.max.poll.records",)
    assert batch(maxOffsetsPerTrigger="7").ignored == ("maxOffsetsPerTrigger",)


def test_assign_names_partitions():
    """``assign`` is JSON with a list of partitions per topic, as in Spark's Kafka source."""
    options = parse_options({"assign": '{"t": [1, 0, 1]}', "path": "/d"}, streaming=False)
    assert options.subscription.partitions == (TopicPartition("t", 1), TopicPartition("t", 0))


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("2s", 2000), ("7", 7), ("1h", 3_600_000), ("3min", 180_000)]
)
def test_durations_read_as_sparks(text, ms):
    """A duration is a number with a unit, or milliseconds without one."""
    assert parse_duration_ms("maxTriggerDelay", text) == ms


def test_a_bad_duration_is_refused():
    """A duration with an unknown unit is refused."""
    with pytest.raises(InvalidOption, match="'15 parsecs' is not a time"):
        parse_duration_ms("maxTriggerDelay", "15 parsecs")
