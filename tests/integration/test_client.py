"""The client handles faulty brokers; most tests run with the blocking and the async client."""

import asyncio
import inspect
import socket
import ssl
import threading
from itertools import islice

import pytest
import trustme

from cordwood import client as blocking
from cordwood.address import Address
from cordwood.client import Line, Status, StatusWord, Taken, aio
from cordwood.client import blocking as blocking_wire
from cordwood.client.effects import Connect, Transfer
from cordwood.errors import (
    DiskFull,
    ProtocolError,
    RequestError,
    StaleProducer,
    TlsError,
    UnavailableError,
    UnknownTopic,
)
from cordwood.model import Header, Record
from cordwood.protocol.line import commands as c
from cordwood.protocol.line.arguments import StartPosition
from cordwood.protocol.line.framing import Framing
from cordwood.protocol.line.records import encode_records
from cordwood.protocol.line.replies import encode_error
from support.flaky_broker import Cut, FlakyControl, FlakyIngress, Whims


class Awaited:
    """Wraps an async client so that its calls block, all on one event loop."""

    def __init__(self, runner: asyncio.Runner, inner: object) -> None:
        self._runner, self._inner = runner, inner

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        return self._wrap(found) if callable(found) else found

    def _wrap(self, function):
        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            if inspect.iscoroutine(result):
                return self._runner.run(result)
            return Awaited(self._runner, result)

        return call

    def __enter__(self):
        self._runner.run(self._inner.__aenter__())
        return self

    def __exit__(self, *info):
        return self._runner.run(self._inner.__aexit__(*info))

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self._runner.run(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None


@pytest.fixture(params=["blocking", "aio"])
def api(request):
    """``api(class name, …)`` makes a blocking or an async client."""
    if request.param == "blocking":
        yield lambda name, *args, **kwargs: getattr(blocking, name)(*args, **kwargs)
        return
    with asyncio.Runner() as runner:

        def make(name, *args, **kwargs):
            return Awaited(runner, getattr(aio, name)(*args, **kwargs))

        yield make


def payloads(broker: FlakyIngress, name: str) -> list[bytes]:
    return [payload for _, _, payload in broker.stored[name]]


def test_send_and_confirm_stores_each_record_once_on_a_good_connection(api):
    """On return, all records are confirmed; each was sent and stored once."""
    with FlakyIngress() as broker, api("Producer", broker.address, "p") as producer:
        count = producer.send_and_confirm([("k", b"%d" % i) for i in range(1000)])
        assert count == 1000
        assert producer.unconfirmed == 0
        assert producer.confirmed_n == 1000
        assert payloads(broker, "p") == [b"%d" % i for i in range(1000)]
        assert broker.received == 1000


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_cut_connections_half_replies_and_late_acks_lose_and_double_nothing(api, seed, binary):
    """Retries after connection failures store each of 20,000 records exactly once."""
    whims = Whims(seed=seed, cut=0.03, half=0.03, hold=0.3)
    sent = [b"%d" % i for i in range(20_000)]
    with (
        FlakyIngress(whims) as broker,
        api("Producer", broker.address, "p", binary=binary, timeout_s=60) as producer,
    ):
        for start in range(0, 20_000, 5000):
            producer.send_and_confirm(("k", payload) for payload in sent[start : start + 5000])
            assert payloads(broker, "p") == sent[: start + 5000]
        assert broker.connections > 5, "the whims must have struck"
        assert broker.received > 20_000, "and records must have been sent again"


def send_many(producer, count: int) -> None:
    for _ in range(count):
        producer.send("k", b"x" * 100)


def test_send_waits_while_too_much_is_unconfirmed(api):
    """Without acknowledgements, send() blocks at the memory bound and then raises an error."""
    with (
        FlakyIngress(Whims(silent=True)) as broker,
        api(
            "Producer",
            broker.address,
            timeout_s=0.3,
            batch_bytes=1000,
            unconfirmed_bytes_max=5000,
        ) as producer,
    ):
        with pytest.raises(UnavailableError, match="unconfirmed records are kept"):
            send_many(producer, 10_000)
        assert 5000 / 130 < producer.unconfirmed < 8000 / 100
        broker.whims.silent = False
        producer.flush(10)
        assert len(broker.stored[producer.name]) == producer.confirmed_n


def test_records_sent_before_a_timeout_are_confirmed_by_a_later_flush(api):
    """The producer keeps unconfirmed records until the broker acknowledges them."""
    with (
        FlakyIngress(Whims(silent=True)) as broker,
        api("Producer", broker.address, "p") as producer,
    ):
        with pytest.raises(UnavailableError):
            producer.send_and_confirm([("k", b"1"), ("k", b"2")], 0.1)
        broker.whims.silent = False
        producer.flush()
        assert payloads(broker, "p") == [b"1", b"2"]


def test_a_silent_connection_is_replaced(api):
    """The producer reconnects when nothing is confirmed within the stall timeout."""
    with (
        FlakyIngress(Whims(silent_connections=2)) as broker,
        api("Producer", broker.address, "p", stall_timeout_s=0.05) as producer,
    ):
        producer.send_and_confirm([("k", b"x")])
        assert broker.connections > 2
        assert payloads(broker, "p") == [b"x"]


def test_a_producer_that_returns_continues_after_what_is_stored(api):
    """Numbering continues by producer name, and a reconnect sends the epoch the broker assigned."""
    with FlakyIngress() as broker:
        for part in (b"1", b"2"):
            with api("Producer", broker.address, "p") as producer:
                producer.send("k", part)
        assert [n for n, _, _ in broker.stored["p"]] == [1, 2]
        with api("Producer", broker.address, "p") as producer:
            producer.send_and_confirm([("k", b"3")])
            broker.cut_all()
            producer.send_and_confirm([("k", b"4")])
        assert payloads(broker, "p") == [b"1", b"2", b"3", b"4"]
        assert [hello.epoch for hello in broker.hellos[-2:]] == [None, 0]


def fail_after_sending(made) -> None:
    with made as producer:
        producer.send("k", b"x")
        raise ZeroDivisionError


def test_a_block_that_fails_is_not_flushed(api):
    """If the ``with`` block raises, the producer closes without flushing its records."""
    with FlakyIngress() as broker:
        with pytest.raises(ZeroDivisionError):
            fail_after_sending(api("Producer", broker.address, "p"))
        assert payloads(broker, "p") == []


def test_a_passing_error_is_retried_and_a_lasting_one_is_raised(api):
    """A full disk is retried; a fenced producer raises StaleProducer."""
    with FlakyIngress() as broker, api("Producer", broker.address, "p") as producer:
        broker.refusal = DiskFull("no space")
        producer.send_and_confirm([("k", b"1")])
        broker.refusal = StaleProducer("a newer one has taken over")
        with pytest.raises(StaleProducer, match="taken over"):
            producer.send_and_confirm([("k", b"2")])


def test_a_producer_without_a_broker_says_so_after_its_time(api, free_address):
    """The producer retries until its timeout; then the error names the broker's address."""
    with pytest.raises(UnavailableError, match=f"{free_address[1]} is unreachable.*Errno"):
        api("Producer", free_address, timeout_s=0.2).send("k", b"x")


@pytest.fixture
def free_address():
    """An address on which no process listens."""
    with FlakyIngress() as broker:
        left = broker
    return left.address


def test_two_peers_with_much_to_say_do_not_block_each_other(api):
    """The producer reads replies while it writes records, which prevents a deadlock."""
    with (
        FlakyIngress(Whims(chatter=3000)) as broker,
        api("Producer", broker.address, "p", unconfirmed_bytes_max=2**30) as producer,
    ):
        producer.send_and_confirm([("k", b"x" * 100_000)] * 100, 20)
        assert len(broker.stored["p"]) == 100


@pytest.mark.parametrize("kind", ["blocking", "aio"])
def test_a_transfer_nobody_reads_ends_with_its_time(kind):
    """A write that the peer does not read fails with a timeout error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())

        def flow():
            yield Connect(5)
            yield Transfer(bytes(64 * 2**20), False, 0.2)

        if kind == "blocking":
            wire = blocking_wire.BlockingConnection(address, None)
            with pytest.raises(TimeoutError, match="accepts no more data"):
                wire.run(flow())
        else:
            wire = aio.AsyncConnection(address, None)
            with pytest.raises(TimeoutError, match="accepts no more data"):
                asyncio.run(wire.run(flow()))
        wire.close()


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def test_tls_works_and_an_unknown_authority_is_refused_at_once(api, authority):
    """Each record is stored once over TLS; an untrusted certificate fails without a retry."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with FlakyIngress(Whims(seed=1, cut=0.02), tls=server) as broker:
        with api("Producer", broker.address, "p", tls=trusting) as producer:
            producer.send_and_confirm([("k", b"%d" % i) for i in range(5000)], 60)
        assert payloads(broker, "p") == [b"%d" % i for i in range(5000)]
        doubtful = api("Producer", broker.address, "q", tls=ssl.create_default_context())
        with pytest.raises(TlsError, match="is not trusted"):
            doubtful.send("k", b"x")


# --- the control listener -----------------------------------------------------------------------

ANSWERS = {
    c.GetAck(): b"ACK 500",
    c.GetAck("t"): b"ACK 0",
    c.GetStatus(7): b"PENDING",
    c.GetStatus(8, "t"): b"ARCHIVED bundle-1.tar.gz",
    c.Ack("t", "r", 7): b"OK",
    c.Register("t", "r"): b"OK",
    c.Put("t", b"a\nb\0 "): b"OK",
    c.Get("t"): b"OK a\nb",
    c.Get("t", "tomb"): b"OK",
    c.Get("t", "none"): b"EMPTY",
    c.State("t"): b'{"current_segment":3}',
    c.Metrics(): b'{"records":1}',
    c.Readers(): b'{"r":1}',
    c.Reset("t", "r", StartPosition.START): b"OK",
    c.Reset("t", "r", 5): b"OK",
    c.Remove("t", "r"): b"OK",
    c.Configure("t", (("retention.ms", "-1"),)): b"OK",
    c.Cut("t"): b"OK 1",
    c.Reclaim(): b"OK 0",
}


def by_table(request, connection):
    body = ANSWERS.get(request, encode_error(UnknownTopic("no such topic")))
    return connection.encode(body)


def test_every_question_is_asked_and_its_answer_understood(api):
    """Each call sends one request on the shared connection and returns a typed reply."""
    with FlakyControl(by_table) as broker, api("Client", broker.address) as client:
        assert client.get_ack() == 500
        assert client.get_ack("t") == 0
        assert client.status(7) == Status(StatusWord.PENDING)
        assert client.status(8, "t") == Status(StatusWord.ARCHIVED, "bundle-1.tar.gz")
        client.ack("t", "r", 7)
        client.register("t", "r")
        client.put("t", b"a\nb\0 ")
        assert client.get("t") == Taken(b"a\nb")
        assert client.get("t", "tomb") == Taken(None)
        assert client.get("t", "none") is None
        assert client.state("t") == {"current_segment": 3}
        assert client.metrics() == {"records": 1}
        assert client.readers() == {"r": 1}
        client.reset("t", "r", StartPosition.START)
        client.reset("t", "r", 5)
        client.remove("t", "r")
        client.configure("t", {"retention.ms": "-1"})
        assert client.cut("t") == 1
        assert client.reclaim() == 0
        assert broker.requests == list(ANSWERS)
        assert broker.connections == 1


def test_errors_are_raised_as_their_class_and_the_connection_goes_on(api):
    """An error reply raises its class with the broker's message and keeps the connection open."""
    with FlakyControl(by_table) as broker, api("Client", broker.address) as client:
        for _ in range(2):
            with pytest.raises(UnknownTopic, match="no such topic"):
                client.put("missing", b"x")
        assert client.get_ack() == 500
        assert broker.connections == 1


def test_a_name_that_would_be_another_command_is_never_sent(api):
    """Topic names are validated before sending, so they cannot inject another command."""
    with FlakyControl(by_table) as broker, api("Client", broker.address) as client:
        for topic in ("t AS r", "a b", "t\nQUIT", ""):
            with pytest.raises(RequestError):
                client.get(topic)
        assert broker.requests == []


def test_a_dead_idle_connection_is_replaced_for_harmless_questions_only(api):
    """``GET_ACK`` is retried; ``PUT`` is not, because the broker may have stored the record."""
    is_cutting = threading.Event()

    def answer(request, connection):
        if is_cutting.is_set():
            is_cutting.clear()
            raise Cut
        return by_table(request, connection)

    with FlakyControl(answer) as broker, api("Client", broker.address) as client:
        assert client.get_ack() == 500
        is_cutting.set()
        assert client.get_ack() == 500
        is_cutting.set()
        with pytest.raises(UnavailableError, match="unreachable"):
            client.put("t", b"a\nb\0 ")
        assert sum(isinstance(request, c.Put) for request in broker.requests) == 1
        client.put("t", b"a\nb\0 ")


def test_a_late_answer_is_never_taken_for_the_next_one(api):
    """After a timeout the client drops the connection, so a late reply is discarded."""
    release = threading.Event()

    def answer(request, connection):
        if request == c.GetAck():
            release.wait(10)
            return connection.encode(b"ACK 111")
        return by_table(request, connection)

    with FlakyControl(answer) as broker, api("Client", broker.address, timeout_s=0.1) as client:
        with pytest.raises(UnavailableError, match="no reply"):
            client.get_ack()
        release.set()
        assert client.get_ack("t") == 0


def test_an_incomplete_reply_and_garbage_raise_different_errors(api):
    """A truncated reply raises UnavailableError; an invalid reply raises ProtocolError."""
    replies = iter([b"\x05\0\0\0AC", b"\x05\0\0\0HTTP/", b"\xff\xff\xff\xff"])

    def answer(request, connection):
        return next(replies)

    with FlakyControl(answer) as broker:
        with (
            api("Client", broker.address, timeout_s=0.2) as client,
            pytest.raises(UnavailableError),
        ):
            client.get_ack()
        for _ in range(2):
            with api("Client", broker.address) as client, pytest.raises(ProtocolError):
                client.get_ack()


def records(count: int) -> list[Record]:
    return [
        Record(i, 1700 + i, b"k", b"line\n%d" % i, (Header("ts", b"t"), Header("n", b"%d" % i)))
        for i in range(count)
    ]


def test_subscribe_yields_typed_lines_from_where_it_was_asked(api):
    """Records arrive in order with raw payloads, and each start position is sent to the broker."""

    def answer(request, connection):
        return encode_records(records(3000), Framing.FRAMES)

    with FlakyControl(answer) as broker, api("Client", broker.address) as client:
        with client.subscribe("t", from_start=True, reader="r") as subscription:
            lines = list(islice(subscription, 3000))
        assert lines[1] == Line(2, 1701, "k", "t", 1, b"line\n1")
        assert [line.seq for line in lines] == list(range(1, 3001))
        for start in ({"from_seq": 7}, {}):
            with client.subscribe("t", **start) as subscription:
                assert next(subscription) == lines[0]
    assert broker.requests == [
        c.Subscribe("t", StartPosition.START, "r"),
        c.Subscribe("t", 7),
        c.Subscribe("t", StartPosition.CURSOR),
    ]


def test_a_quiet_subscription_ends_after_its_idle_time(api):
    """With an idle timeout, iteration ends when no record arrives in that time."""
    with FlakyControl(lambda *_: b"") as broker, api("Client", broker.address) as client:
        assert list(client.subscribe("t", idle_timeout_s=0.05)) == []


def test_a_broken_subscription_says_where_to_go_on(api):
    """A lost connection raises an error after all complete records have been delivered."""

    def answer(request, connection):
        return encode_records(records(5), Framing.FRAMES)[:-3]

    with (
        FlakyControl(answer) as broker,
        api("Client", broker.address) as client,
        client.subscribe("t", from_start=True) as subscription,
    ):
        assert [next(subscription).seq for _ in range(4)] == [1, 2, 3, 4]
        broker.cut_all()
        with pytest.raises(UnavailableError, match="again from seq 5"):
            next(subscription)


def test_a_broken_subscription_names_the_place_in_each_partition(api):
    """With several partitions, the error names the last seq that arrived of each."""

    def answer(request, connection):
        batches = (encode_records(records(n), Framing.FRAMES, n) for n in (3, 2))
        return b"".join(batches)

    with (
        FlakyControl(answer) as broker,
        api("Client", broker.address) as client,
        client.subscribe("t", from_start=True) as subscription,
    ):
        assert [next(subscription).partition for _ in range(5)] == [3, 3, 3, 2, 2]
        broker.cut_all()
        with pytest.raises(UnavailableError, match="after partition:seq 2:2 3:3 "):
            next(subscription)


def test_an_error_instead_of_records_is_raised(api):
    """Subscribing to an unknown topic raises UnknownTopic."""

    def answer(request, connection):
        return connection.encode(encode_error(UnknownTopic("no topic t")))

    with (
        FlakyControl(answer) as broker,
        api("Client", broker.address) as client,
        client.subscribe("t") as subscription,
        pytest.raises(UnknownTopic, match="no topic"),
    ):
        next(subscription)
