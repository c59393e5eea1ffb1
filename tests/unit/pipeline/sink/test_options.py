"""Options and columns of the Spark sink: names as in Kafka's sink, and helpful errors."""

import pickle
from types import SimpleNamespace

import pytest

from cordwood.errors import InvalidOption
from cordwood.model import Codec
from cordwood.pipeline.runtime.broker_api import BrokerAddress
from cordwood.pipeline.sink.options import check_columns, parse_sink_options

BROKER = {"kafka.bootstrap.servers": "h:1"}


def parse(*, streaming=False, **options):
    return parse_sink_options({**BROKER, **options}, streaming=streaming)


def fields(**kinds):
    """Return columns as Spark describes them."""
    return [
        SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda kind=kind: kind))
        for name, kind in kinds.items()
    ]


def test_names_are_compared_without_case_and_the_result_travels():
    """Option names are case-insensitive, and the parsed options can be pickled."""
    options = parse_sink_options(
        {"BOOTSTRAP.servers": "h:1", "TOPIC": "t", "kafka.compression.TYPE": "zstd"},
        streaming=True,
    )
    assert (options.where, options.topic, options.codec) == (BrokerAddress("h:1"), "t", Codec.ZSTD)
    assert pickle.loads(pickle.dumps(options)) == options


def test_settings_of_the_java_producer_are_accepted():
    """Settings of the Java producer are accepted, so existing jobs only change the format."""
    assert parse(**{"kafka.acks": "all", "kafka.linger.ms": "5", "includeHeaders": "true"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tpoic": "t"}, "unknown sink option tpoic; did you mean topic"),
        ({"kafka.compresion.type": "lz4"}, "did you mean kafka.compression.type"),
        ({"topic": "a b"}, "'a b' is not a valid topic name"),
        ({"path": "/d"}, "path is not for the sink"),
        ({"queryId": "q"}, "batchId together"),
        ({"queryId": "q/../x", "batchId": "1"}, "queryId"),
        ({"queryId": "q", "batchId": "-1"}, "not a whole number"),
        ({"kafka.compression.type": "rar"}, "'rar' is not one of none, gzip"),
        ({"kafka.bootstrap.servers": "nowhere"}, "'nowhere' is not host:port"),
        ({"http": "nowhere"}, "option http: 'nowhere' is not host:port"),
        ({"kafka.transactional.id": "x"}, "always writes exactly once"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, message):
    """A wrong option is refused by name, with the nearest match or the alternative."""
    with pytest.raises(InvalidOption, match=message):
        parse(**options)


def test_a_stream_takes_its_numbers_from_its_checkpoint():
    """A stream refuses ``queryId`` and ``batchId``, because its checkpoint provides them."""
    with pytest.raises(InvalidOption, match="queryId is for batch writes"):
        parse(streaming=True, queryId="q", batchId="1")


def test_a_broker_must_be_named():
    """The broker must be given, by its Kafka or its HTTP address."""
    with pytest.raises(InvalidOption, match=r"kafka\.bootstrap\.servers"):
        parse_sink_options({"topic": "t"}, streaming=False)
    assert parse_sink_options({"http": "h:2"}, streaming=False).where == BrokerAddress(None, "h:2")


def test_rows_of_a_topic_can_be_written_back():
    """Rows read from a topic can be written back. Other columns are ignored, as in Kafka's sink."""
    read = fields(
        key="binary", value="binary", topic="string", partition="int", offset="bigint", mine="int"
    )
    check_columns(read, parse())


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"vaule": "string"}, "no column value; did you mean vaule"),
        ({"value": "int"}, "column value has type int, but must be binary or string"),
        (
            {"value": "string", "partition": "bigint"},
            "column partition has type bigint, but must be int",
        ),
        ({"value": "string", "header": "string"}, "no record field header; did you mean headers"),
        ({"value": "string"}, "set the option topic"),
    ],
)
def test_rows_that_are_no_records_are_refused_by_column(kinds, message):
    """A wrong column is refused by name before the query runs."""
    with pytest.raises(InvalidOption, match=message):
        check_columns(fields(**kinds), parse())
