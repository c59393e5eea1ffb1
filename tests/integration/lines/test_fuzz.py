"""Arbitrary bytes at live line listeners cause no traceback, hang, leak or wrong reply.

One broker serves all examples of a run. Two other clients, the neighbours, send a request in every
example, and two more send requests all the time; the p99 latency of the latter is printed. At the
end the module fixture checks the open connections and the resident memory.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.lines import Served, Wire, ask, numbered, until
from support.neighbours import Neighbour, assert_leaves_nothing

CORPUS = sorted((Path(__file__).parents[2] / "corpus" / "lines").glob("*.bin"))
LISTENERS = ("ingress", "control")

WORDS = [
    *(b"HELLO", b"GET_ACK", b"GET_STATUS", b"SUBSCRIBE", b"ACK", b"REGISTER", b"PUT", b"GET"),
    *(
        b"STATE",
        b"METRICS",
        b"READERS",
        b"RESET",
        b"REMOVE",
        b"CUT",
        b"RECLAIM",
        b"SET",
        b"HELP",
        b"QUIT",
    ),
    *(b"FROM_START", b"FROM", b"AS", b"START", b"END", b"fuzzed", b"r1", b"p1", b"0", b"1", b"99"),
    *(
        b"\n",
        b"\r\n",
        b" ",
        b"|",
        b"k|1|1|p\n",
        b"k|1|2|p\n",
        b"\0",
        b"\xff",
        b"\\",
        b"\x16\x03\x01",
    ),
]
sentences = st.lists(st.sampled_from(WORDS), max_size=12).map(b" ".join)
records = st.tuples(
    st.binary(max_size=12), st.integers(-5, 2**64), st.integers(-5, 2**64), st.binary(max_size=30)
).map(lambda f: b"%b|%d|%d|%b\n" % f)
frames = st.one_of(sentences, records, st.binary(max_size=40)).map(
    lambda body: len(body).to_bytes(4, "little") + body
)
conversations = st.one_of(
    st.binary(max_size=400),
    st.lists(st.one_of(sentences.map(lambda s: s + b"\n"), records), max_size=8).map(b"".join),
    st.lists(frames, max_size=8).map(b"".join),
    st.lists(st.one_of(frames, records, st.binary(max_size=20)), max_size=6).map(b"".join),
)


class Target:
    """A broker that receives hostile bytes, and two neighbours that must be served normally."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.control = Wire(served.control)
        self.ingress = Wire(served.ingress)
        self.ingress.hello("neighbour")
        self.n = 0
        assert self.control.ask(b"PUT quiet one") == b"OK"

    def say(self, listener: str, data: bytes, cuts: list[int], *, is_rude: bool) -> None:
        """Send bytes on one hostile connection and check the neighbours while it is open."""
        wire = Wire(self.served.addresses[listener])
        with contextlib.suppress(OSError):  # the broker may close it while it sends
            bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
            for start, end in itertools.pairwise(bounds):
                wire.send(data[start:end])
        self.neighbours_are_fine()
        if is_rude:
            wire.reset()
            return
        with contextlib.suppress(OSError):
            wire.end().rest()
        wire.close()

    def neighbours_are_fine(self) -> None:
        assert self.control.ask(b"GET_ACK quiet") == b"ACK 1"
        self.n += 1
        self.ingress.send(numbered(self.n, self.n + 1)).acked(self.n)


def asker(served: Served) -> Callable[[], None]:
    """Return a step that sends one GET_ACK on a new connection."""

    def step() -> None:
        assert ask(served.control, "GET_ACK quiet") == b"ACK 1"

    return step


def sender(served: Served) -> Callable[[], None]:
    """Return a step that reconnects as one named producer and sends its next line."""
    numbers = itertools.count(1)

    def step() -> None:
        n = next(numbers)
        with Wire(served.ingress) as wire:
            wire.hello("steady")
            wire.send(numbered(n, n + 1)).acked(n)

    return step


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One broker for all tests of this module, checked for leaks and errors at the end."""
    with Served(tmp_path_factory.mktemp("fuzz") / "data", durability="os") as served:
        served.warm_up()
        before = served.rss_bytes()
        under_fire = Target(served)
        with Neighbour("control", asker(served)), Neighbour("ingress", sender(served)):
            yield under_fire
        under_fire.neighbours_are_fine()
        under_fire.control.close()
        under_fire.ingress.close()
        until(lambda: served.connections("ingress") == 0, "no ingress connection is left")
        until(lambda: served.connections("control") == 1, "only the asking connection is left")
        assert served.rss_bytes() - before < 60 * 2**20
        assert "Traceback" not in served.log()
        assert "INTERNAL" not in served.log()
        assert served.stop() == 0


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_corpus_harms_nobody(target: Target, path: Path, listener: str):
    """No corpus file harms other clients, sent whole, byte by byte or with a reset."""
    data = path.read_bytes()
    target.say(listener, data, [], is_rude=False)
    target.say(listener, data, list(range(min(len(data), 40))), is_rude=False)
    target.say(listener, data, [], is_rude=True)


@given(
    data=conversations,
    cuts=st.lists(st.integers(0, 400), max_size=3),
    is_rude=st.booleans(),
    listener=st.sampled_from(LISTENERS),
)
@settings(max_examples=150)
def test_any_bytes_at_a_line_listener_harm_nobody(
    target: Target, data: bytes, cuts: list[int], is_rude: bool, listener: str
):
    """Any bytes, split anywhere, leave the neighbours with their own correct replies."""
    target.say(listener, data, cuts, is_rude=is_rude)


@pytest.mark.parametrize(
    ("listener", "data"),
    [
        ("ingress", b"\xff\xff\xff\xff"),
        ("ingress", b"HELLO\n"),
        ("control", b"\xff\xff\xff\xff"),
        ("control", b"NO SUCH COMMAND\n"),
    ],
)
def test_malformed_input_leaves_nothing_in_memory(target: Target, listener: str, data: bytes):
    """Connections that sent malformed input leave no memory allocated."""
    address = target.served.addresses[listener]

    def step() -> None:
        with Wire(address) as wire, contextlib.suppress(OSError):
            wire.send(data)
            wire.end().rest()

    assert_leaves_nothing(target.served.process.pid, step)
