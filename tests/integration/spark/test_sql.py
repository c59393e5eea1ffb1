"""SQL over topics on Spark with a real broker: reads, results and errors."""

from __future__ import annotations

import datetime as dt
import io
import json

import pytest

from cordwood.batch.records import encode_batch
from cordwood.cli.output.row_printer import PrintMode, print_rows
from cordwood.client.kafka import KafkaClient
from cordwood.errors import InvalidOption, UnknownTopic
from cordwood.model import Record, TopicPartition
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.sql import TopicViews, stream_rows
from cordwood.pipeline.sql.statement import read_statement
from cordwood.testing import Broker

pytestmark = pytest.mark.spark

START_MS = 1_700_000_000_000
BATCHES, RECORDS = 20, 50  # per partition of topic t, which has two


@pytest.fixture(scope="module")
def broker():
    with Broker(durability="os") as running:
        for partition in (0, 1):
            for batch in range(BATCHES):
                put(running, "t", range(batch * RECORDS, (batch + 1) * RECORDS), partition, 2)
        put(running, "u", range(0, 1000, 100))
        put(running, "orders.eu", range(3))
        yield running


def put(broker, topic, numbers, partition=0, partitions=1):
    """Produce records that contain their number, one second apart."""
    rows = [
        Record(at, START_MS + number * 1000, b"k%d" % (number % 7), b'{"n": %d}' % number)
        for at, number in enumerate(numbers)
    ]
    with KafkaClient(broker.kafka) as client:
        if topic not in {each.name for each in client.topics()}:
            client.create_topic(topic, partitions, {"retention.ms": "-1"})
        client.produce(TopicPartition(topic, partition), encode_batch(rows))


@pytest.fixture
def api(broker):
    api = BrokerApi(BrokerAddress(broker.kafka))
    yield api
    api.close()


@pytest.fixture
def topics(spark, api):
    return TopicViews(spark, api)


def printed(topics, text, mode=PrintMode.NDJSON):
    frame = topics.query(text)
    out = io.StringIO()
    print_rows(frame.columns, stream_rows(frame), mode, out)
    return out.getvalue()


def rows_of(frame, **limits):
    return sorted(map(str, stream_rows(frame, **limits)))


def rows_read(frame):
    """Return how many rows the source gave to Spark for a computed frame."""
    plan = frame._jdf.queryExecution().executedPlan()
    leaves = plan.collectLeaves()
    return sum(
        leaves.apply(at).metrics().apply("numOutputRows").value() for at in range(leaves.size())
    )


@pytest.fixture(scope="module")
def expected(spark):
    """Run a statement on plain Spark tables with the same records."""

    def rows(topic, numbers, partition):
        for at, number in enumerate(numbers):
            when = dt.datetime.fromtimestamp(START_MS / 1000 + number, dt.UTC)
            key, value = b"k%d" % (number % 7), b'{"n": %d}' % number
            yield key, value, topic, partition, at, when, 0, None, key.decode(), value.decode()

    schema = (
        "key binary, value binary, topic string, partition int, offset bigint, "
        "timestamp timestamp, timestampType int, headers array<struct<key:string,value:binary>>, "
        "key_text string, value_text string"
    )
    every = {
        "t": [*rows("t", range(BATCHES * RECORDS), 0), *rows("t", range(BATCHES * RECORDS), 1)],
        "u": [*rows("u", range(0, 1000, 100), 0)],
    }
    frames = {name: spark.createDataFrame(found, schema) for name, found in every.items()}

    def answer(text):
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        found = rows_of(spark.sql(text))
        for name in frames:
            spark.catalog.dropTempView(name)
        return found

    return answer


WHEN = "timestamp '2023-11-14 22:29:00 UTC'"  # timestamp of record 940
NARROWED = [
    "select key, offset from t where offset >= 990",
    "select * from t where offset between 5 and 7 and partition = 1",
    "select offset from t where partition in (0, 7) and offset < 3",
    f"select partition, offset, timestamp from t where timestamp >= {WHEN}",
    "select count(*) n from t where topic = 't' and offset = 3",
    "select count(*) n from t where topic = 'u'",
    "select t.offset from t join u on t.value = u.value where t.offset > 600 and u.offset < 9",
    "with c as (select * from t where offset > 900) select max(offset) m from c",
    "select offset from (select * from t where partition = 0) where offset > 995",
    "select offset from T where Offset >= 998 limit 3",
    "from t |> where offset > 996 |> select offset",
]
WHOLE = [
    "select a.offset, b.offset from t a join t b on a.value = b.value where a.offset > 990",
    "select count(*) n from t a join t b on a.offset = b.offset + 900 where b.offset >= 50",
    "select offset from t where offset > 995 union all select offset from t where offset < 5",
    "with c as (select * from t) select a.offset from c a join c b on a.offset = b.offset + 990",
    """with c as (select * from t where offset > 5), d as (select * from c)
       select count(*) n from d where partition = 0 union all select count(*) from d""",
    """with u as (select * from t where offset > 5)
       select a.offset from u a join u b using (value) where b.offset > 990""",
    "select offset from t where offset > (select max(offset) - 3 from t)",
    "select offset from t where offset in (select offset from u where offset > 7)",
    "select offset from t where offset > 990 and exists (select 1 from u where u.key = t.key)",
    "select (select count(*) from t where offset < 10) few, (select count(*) from t) every",
    "select offset from t where offset < 3 except select offset from t where partition = 1",
]


@pytest.mark.parametrize("text", NARROWED + WHOLE)
def test_narrowing_what_is_read_changes_no_result(topics, expected, text):
    """Pushing filters into the source does not change a statement's result."""
    assert rows_of(topics.query(text)) == expected(text)


@pytest.mark.parametrize("text", NARROWED)
def test_a_topic_read_once_is_narrowed(spark, text):
    """Filters are pushed down for a topic that the parsed statement reads once."""
    found = read_statement(spark, text, ["t", "u"])
    assert found.alone == found.topics != frozenset()


@pytest.mark.parametrize("text", WHOLE)
def test_a_topic_that_may_be_read_twice_is_not_narrowed(spark, text):
    """Filters are not pushed down, because Spark would apply one filter to both reads."""
    assert "t" not in read_statement(spark, text, ["t", "u"]).alone


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("select key_text, offset from t", ("key", "offset")),
        ("select count(*) from t", ("offset",)),
        ("select Value from t where `partition` = 1", ("value", "partition")),
        ("select t.key_text -- don't stop\n from t order by offset", ("key", "offset")),
        ("select key_text /* it's */ from t where value_text = 'a'", ("key", "value")),
        (r"select r'\', key_text from t where value_text = 'it''s'", ("key", "value")),
        ('select key_text from t where "it\'s" = value_text', ("key", "value")),
        ("select 'timestamp headers *' from t", ("offset",)),
        ("select a.offset from t a join u b using (Key)", ("key", "offset")),
        ("select 1 from t where exists (select value_text from u)", ("value",)),
        ("select max(offset) over (partition by key_text) from t", ("key", "offset")),
        ("select filter(headers, h -> h.key = value_text) from t", ("key", "value", "headers")),
    ],
)
def test_only_the_columns_a_statement_uses_are_decoded(spark, text, columns):
    """The parsed plan determines the columns; comments and strings do not affect them."""
    assert read_statement(spark, text, ["t", "u"]).columns == columns


@pytest.mark.parametrize(
    "text",
    [
        "select * from t",
        "select t.* from t",
        "table t",
        "select 1 from t where key in (table u)",
        "select 1 from t natural join u",
        "select identifier('key_' || 'text') from t",
        "select offset, count(*) over w from t window w as (partition by key_text)",
        "select * from (select topic, key from t) pivot (count(1) for topic in ('t'))",
        "create temporary view v as select key_text from t",
    ],
)
def test_all_columns_are_decoded_if_the_needed_ones_are_unknown(spark, text):
    """All columns are decoded if the used columns cannot be determined."""
    assert len(read_statement(spark, text, ["t", "u"]).columns) == 8


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("select * from `orders.eu` e, `o-1` f", {"o-1", "orders.eu"}),
        ("select 'dead' from Orders -- from dead", {"orders"}),
        ("select orders.key from orders", {"orders"}),
        ("select 1", set()),
        ("explain select * from orders -- don't\n join dead", {"orders", "dead"}),
        ("cache table orders", {"orders"}),
        ("describe orders", {"orders"}),
        ("create temporary view v as select 'dead' x from orders -- it's", {"orders"}),
    ],
)
def test_topics_are_found_by_whole_names(spark, text, named):
    """Topic names are not matched inside other names, strings or comments."""
    topics = ["orders", "orders.eu", "order", "o-1", "dead"]
    assert read_statement(spark, text, topics).topics == named


@pytest.mark.parametrize(
    "text",
    [
        "select key_text -- don't\n from u where offset = 1 and value_text <> 'a'",
        r"select key_text from u where offset = 1 and value_text <> r'\'",
    ],
)
def test_a_comment_or_a_raw_string_hides_no_column(topics, text):
    """Columns after a comment or raw string that contains a quote are still found."""
    assert printed(topics, text) == '{"key_text": "k2"}\n'


def test_a_filter_on_offsets_reads_little(topics):
    """With a filter on offsets, the source returns only the matching rows."""
    frame = topics.query("select key, offset from t where offset >= 995")
    assert len(frame.collect()) == rows_read(frame) == 10
    frame = topics.query("select key from t where partition = 1 and offset < 20")
    assert len(frame.collect()) == rows_read(frame) == 20


def test_a_view_of_the_users_own_sees_the_whole_topic_as_it_is_now(topics, spark, broker):
    """A user's view always reads the current topic, whatever other statements filtered."""
    put(broker, "grows", range(10))
    printed(topics, "create temporary view mine as select * from grows where offset > 1")
    assert printed(topics, "select offset from grows where offset = 9") == '{"offset": 9}\n'
    assert json.loads(printed(topics, "select count(key) n from mine")) == {"n": 8}
    put(broker, "grows", range(10, 15))
    assert json.loads(printed(topics, "select count(key) n from mine")) == {"n": 13}
    twice = "select count(*) n from mine a join mine b on a.offset = b.offset where a.offset > 5"
    assert json.loads(printed(topics, twice)) == {"n": 9}
    spark.catalog.dropTempView("mine")


def test_a_cached_topic_stays_as_it_is_until_it_is_uncached(topics, broker):
    """CACHE TABLE keeps a topic's rows unchanged until UNCACHE TABLE."""
    put(broker, "kept", range(3))
    printed(topics, "cache table kept")
    put(broker, "kept", range(3, 5))
    assert json.loads(printed(topics, "select count(*) n from kept")) == {"n": 3}
    assert printed(topics, "select offset from kept where offset > 1") == '{"offset": 2}\n'
    printed(topics, "uncache table kept")
    assert json.loads(printed(topics, "select count(*) n from kept")) == {"n": 5}


def test_only_topics_a_statement_names_become_views(topics, spark):
    """Views exist only while a statement is planned, so unused topics cost nothing."""
    topics.query("select * from t where offset = 1")
    assert not {"t", "u"} & {table.name for table in spark.catalog.listTables()}


def test_an_unknown_topic_is_answered_with_the_nearest(topics):
    """An unknown topic raises UnknownTopic with the nearest name, and exit code 3."""
    with pytest.raises(UnknownTopic, match=r"^there is no topic order\.eu; did you mean orders"):
        topics.query("select * from `order.eu`")
    with pytest.raises(UnknownTopic, match=r"^topic orders\.eu is written in backticks"):
        topics.query("select * from orders.eu")
    with pytest.raises(UnknownTopic, match=r"^there is no topic nowhere$"):
        topics.query("describe nowhere")
    assert UnknownTopic.exit_code == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("selec 1", r"^Syntax error at or near 'selec' \(line 1, pos 0\)$"),
        ("select (1", r"^Syntax error at or near end of input \(line 1, pos 9\)$"),
        ("select nonsense from t", r"^A column.*`nonsense` cannot be resolved.* line 1 pos 7$"),
    ],
)
def test_a_refused_statement_is_one_sentence_without_spark_s_codes(topics, text, reason):
    """An invalid statement gives a one-line error with its position in the text."""
    with pytest.raises(InvalidOption, match=reason):
        topics.query(text)


def test_rows_come_by_the_page_not_by_the_split(spark, api):
    """Tasks are small, because Spark returns a task's rows only when the task ends."""
    topics = TopicViews(spark, api, page_bytes=4 << 10)
    frame = topics.query("select * from t where offset >= 0")
    assert frame.rdd.getNumPartitions() > 10
    assert len(rows_of(frame)) == 2 * BATCHES * RECORDS
    assert topics.query("select count(*) from t").rdd.getNumPartitions() == 1


def test_a_few_rows_are_looked_for_in_one_partition_first(topics, spark):
    """For a small limit, Spark runs one task per stage instead of one per split."""
    tracker = spark.sparkContext.statusTracker()
    counts = {}
    for rows in (5, 6):
        spark.sparkContext.setJobGroup(f"few-{rows}", "counted")
        frame = topics.query(f"select offset from t limit {rows}")
        assert len(rows_of(frame, few_rows=5)) == rows
        jobs = tracker.getJobIdsForGroup(f"few-{rows}")
        stages = [stage for job in jobs for stage in tracker.getJobInfo(job).stageIds]
        counts[rows] = [tracker.getStageInfo(stage).numTasks for stage in stages]
    for name in ("spark.jobGroup.id", "spark.job.description"):
        spark.sparkContext.setLocalProperty(name, None)  # the session is shared with other tests
    assert max(counts[5]) == 1
    assert max(counts[6]) > 1


def test_topics_are_views_and_results_come_in_every_form(topics):
    """Topics are queried as views, and every print mode formats the result."""
    total = "select sum(get_json_object(value_text, '$.n')) as n from `orders.eu`"
    assert json.loads(printed(topics, total)) == {"n": 3.0}
    few = "select offset, key from `orders.eu` where offset < 2 order by offset"
    assert printed(topics, few, PrintMode.MARKDOWN) == (
        "| offset | key |\n| --- | --- |\n| 0 | k0 |\n| 1 | k1 |\n"
    )
    assert printed(topics, few, PrintMode.CSV) == "offset,key\n0,k0\n1,k1\n"
    assert [row["key"] for row in json.loads(printed(topics, few, PrintMode.JSON))] == ["k0", "k1"]
    assert printed(topics, few, PrintMode.TABLE).splitlines() == [
        "offset  key",
        "     0  k0",
        "     1  k1",
    ]


def test_results_keep_their_shape_on_the_way_through_pages(topics):
    """Duplicate names, maps, structs, nulls, timestamps and intervals are printed correctly."""
    assert printed(topics, "select 1 a, 2 a, null b", PrintMode.CSV) == "a,a,b\n1,2,\n"
    shaped = "select map('k', 1) m, named_struct('x', x'ff') s, cast(null as int) n, 1.50 d"
    assert json.loads(printed(topics, shaped)) == {
        "m": {"k": 1},
        "s": {"x": "0xff"},
        "n": None,
        "d": "1.50",
    }
    assert "1" in printed(topics, "select interval '1' day i")
    when = "select timestamp from u where offset = 0"
    assert printed(topics, when) == printed(topics, f"{when} limit 1")
    assert "2023-11-14T22:13:20+00:00" in printed(topics, when)


def test_a_java_that_runs_out_of_memory_ends(spark):
    """Java exits on OutOfMemoryError, so that a query cannot hang forever."""
    machine = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    assert "-XX:+ExitOnOutOfMemoryError" in list(machine.getInputArguments())
