"""Sink options and columns: Kafka's names, and refusals that name the remedy."""

import pickle
from types import SimpleNamespace

import pytest

from cordwood.errors import InvalidOption
from cordwood.model import Codec
from cordwood.pipeline.runtime.broker_api import BrokerAddress
from cordwood.pipeline.sink.options import check_columns, parse_sink_options

BROKER = {"kafka.bootstrap.servers": "h:1"}


def parse(*, streaming=False, **said):
    return parse_sink_options({**BROKER, **said}, streaming=streaming)


def fields(**kinds):
    """Columns as Spark describes them."""
    return [
        SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda kind=kind: kind))
        for name, kind in kinds.items()
    ]


def test_names_are_compared_without_case_and_the_result_travels():
    """Spark hands option keys over in lower case, and pickles what holds them."""
    options = parse_sink_options(
        {"BOOTSTRAP.servers": "h:1", "TOPIC": "t", "kafka.compression.TYPE": "zstd"},
        streaming=True,
    )
    assert (options.where, options.topic, options.codec) == (BrokerAddress("h:1"), "t", Codec.ZSTD)
    assert pickle.loads(pickle.dumps(options)) == options


def test_settings_of_the_java_producer_are_accepted():
    """Old jobs move over by changing their format."""
    assert parse(**{"kafka.acks": "all", "kafka.linger.ms": "5", "includeHeaders": "true"})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"tpoic": "t"}, "no option tpoic; did you mean topic"),
        ({"kafka.compresion.type": "lz4"}, "did you mean kafka.compression.type"),
        ({"topic": "a b"}, "'a b' cannot be a topic's name"),
        ({"path": "/d"}, "path is not for the sink"),
        ({"queryId": "q"}, "only together"),
        ({"queryId": "q/../x", "batchId": "1"}, "queryId"),
        ({"queryId": "q", "batchId": "-1"}, "not a whole number"),
        ({"kafka.compression.type": "rar"}, "'rar' is none of none, gzip"),
        ({"kafka.bootstrap.servers": "nowhere"}, "'nowhere' is not host:port"),
        ({"http": "nowhere"}, "option http: 'nowhere' is not host:port"),
        ({"kafka.transactional.id": "x"}, "exactly once as it is"),
    ],
)
def test_a_wrong_option_is_refused_by_name(said, message):
    """With the nearest match, or what to do instead."""
    with pytest.raises(InvalidOption, match=message):
        parse(**said)


def test_a_stream_takes_its_numbers_from_its_checkpoint():
    """Numbers of the user's own would say otherwise."""
    with pytest.raises(InvalidOption, match="queryId is for batch writes"):
        parse(streaming=True, queryId="q", batchId="1")


def test_a_broker_must_be_named():
    """By either listener."""
    with pytest.raises(InvalidOption, match=r"kafka\.bootstrap\.servers"):
        parse_sink_options({"topic": "t"}, streaming=False)
    assert parse_sink_options({"http": "h:2"}, streaming=False).where == BrokerAddress(None, "h:2")


def test_rows_of_a_topic_can_be_written_back():
    """The source's other columns are left out, as Spark's Kafka sink does."""
    read = fields(
        key="binary", value="binary", topic="string", partition="int", offset="bigint", mine="int"
    )
    check_columns(read, parse())


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"vaule": "string"}, "no column value; did you mean vaule"),
        ({"value": "int"}, "column value is int; it takes binary or string"),
        ({"value": "string", "partition": "bigint"}, "column partition is bigint; it takes int"),
        ({"value": "string", "header": "string"}, "no header; did you mean headers"),
        ({"value": "string"}, "set the option topic"),
    ],
)
def test_rows_that_are_no_records_are_refused_by_column(kinds, message):
    """Before anything runs."""
    with pytest.raises(InvalidOption, match=message):
        check_columns(fields(**kinds), parse())
