"""The servers that are compared: how each is had, started, asked how much it holds, and stopped.

Equal durability means one of two levels. *Synced*: the bytes are on the device before the
acknowledgement. *Cached*: they are in the kernel's page cache, so a killed process loses nothing
and a power cut may. The settings that make it so are part of every result.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Protocol, Self

from bench.peers import provide, rdkafka, talk
from bench.peers.provide import Missing
from bench.peers.speech import TOPIC
from cordwood.lab.scenarios.stage import Child

START_S = 60.0
KERNELS_S = 4.0  # loaded from the cache in the background, after the first messages
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

Address = tuple[str, int]


class Level(StrEnum):
    """When an acknowledgement is given."""

    SYNCED = "synced"
    CACHED = "cached"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


class Room:
    """A directory and the processes that work in it: measured together, and gone together."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="cordwood-bench-"))
        self.addresses: dict[str, Address] = {}
        self.processes: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str, **options: object) -> subprocess.Popen[bytes]:
        """A process of this room; what it says goes to a file there."""
        with (self.path / "said").open("ab") as said:
            process = subprocess.Popen(
                command, **{"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said} | options
            )  # type: ignore[call-overload]
        self.processes.append(process)
        return process

    def said(self) -> str:
        """The last line that was written."""
        path = self.path / "said"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return lines[-1] if lines else "it said nothing"

    def kill(self) -> None:
        """As a crash does; the files stay."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.processes.clear()

    def clear(self) -> None:
        """No process and no file is left."""
        self.kill()
        shutil.rmtree(self.path, ignore_errors=True)

    def cpu_seconds(self) -> float:
        """Of all its processes so far, user and system."""
        stats = (_stat(process.pid) for process in self.processes)
        return sum(sum(map(int, stat[11:13])) for stat in stats) / _TICKS

    def rss_mib(self) -> float:
        texts = (Path(f"/proc/{process.pid}/statm").read_text() for process in self.processes)
        return sum(int(text.split()[1]) for text in texts) * _PAGE / 2**20

    def forget_cache(self) -> None:
        """Its files leave the page cache, as if they had not been read for a long time."""
        os.sync()
        for path in self.path.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Contestant(Protocol):
    """How one kind of server is had, started, asked how much it holds. It works in a room."""

    name: ClassVar[str]
    settings: ClassVar[dict[Level, str]]
    speeches: ClassVar[tuple[str, ...]]  # what it understands: names of bench.peers.speech
    settle_s: ClassVar[float]  # until what it loads in the background is there
    is_bound: ClassVar[bool]  # of what could be reached: it takes messages, and that is all

    def __init__(self, level: Level, room: Room) -> None: ...

    @classmethod
    def version(cls) -> str:
        """Of what is installed; raises Missing with the reason when it cannot be had."""

    def launch(self) -> None:
        """Start the processes; called again after a kill."""

    def is_ready(self) -> bool:
        """Whether it answers."""

    def prepare(self) -> None:
        """Make the topic or stream that messages go to."""

    def stored(self) -> int:
        """How many messages it holds; the truth a client's count is compared with."""


class Server:
    """A contestant that runs, in a room of its own."""

    def __init__(self, kind: type[Contestant], level: Level) -> None:
        self.level = level
        self.room = Room()
        self.contestant = kind(level, self.room)
        self.name, self.speeches = kind.name, kind.speeches
        self.addresses = self.room.addresses
        self.started_s = 0.0
        try:
            self.start()
        except BaseException:
            self.room.clear()
            raise

    def start(self) -> None:
        """Launch, and wait until it answers."""
        began = time.perf_counter()
        self.contestant.launch()
        deadline = began + START_S
        while not self.contestant.is_ready():
            if any(process.poll() is not None for process in self.room.processes):
                raise Missing(f"{self.name} stopped as it started: {self.room.said()}")
            if time.perf_counter() > deadline:
                said = self.room.said()
                raise Missing(f"{self.name} did not answer within {START_S:.0f} s: {said}")
            time.sleep(0.005)
        self.started_s = time.perf_counter() - began

    def prepare(self) -> None:
        """Make what messages go to."""
        self.contestant.prepare()

    def settle(self) -> None:
        """Wait until what it loads in the background is there."""
        time.sleep(self.contestant.settle_s)

    def stored(self) -> int:
        """How many messages it holds."""
        return self.contestant.stored()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.room.clear()


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


@dataclass
class Cordwood:
    """Ours, as ``cordwood serve`` runs it."""

    name: ClassVar = "cordwood"
    settings: ClassVar = {
        Level.SYNCED: "durability=fsync (the default): fdatasync before the ack, group commit",
        Level.CACHED: "durability=os",
    }
    speeches: ClassVar = ("line", "kafka")
    settle_s: ClassVar = KERNELS_S
    is_bound: ClassVar = False
    level: Level
    room: Room

    @classmethod
    def version(cls) -> str:
        from importlib.metadata import version

        return version("cordwood")

    def launch(self) -> None:
        durability = "fsync" if self.level is Level.SYNCED else "os"
        child = Child(self.room.path / "data", {"durability": durability})
        self.room.processes.append(child._process)
        for listener, text in child.addresses.items():
            host, port = text.rsplit(":", 1)
            self.room.addresses[listener] = (host, int(port))
        self.room.addresses["line"] = self.room.addresses["ingress"]

    def is_ready(self) -> bool:
        return True  # Child waits for READY

    def prepare(self) -> None:
        rdkafka.create("{}:{}".format(*self.room.addresses["kafka"]), [TOPIC])

    def stored(self) -> int:
        return int(talk.line(self.room.addresses["control"], "GET_ACK").removeprefix("ACK "))


@dataclass
class Redis:
    """Redis Streams with the append-only file."""

    name: ClassVar = "Redis"
    settings: ClassVar = {
        Level.SYNCED: "appendonly yes, appendfsync always",
        Level.CACHED: "appendonly yes, appendfsync everysec",
    }
    speeches: ClassVar = ("redis",)
    settle_s: ClassVar = 0.0
    is_bound: ClassVar = False
    level: Level
    room: Room

    @classmethod
    def version(cls) -> str:
        said = provide.output(provide.command("redis-server"), "--version")
        return said.partition("v=")[2].split()[0]

    def launch(self) -> None:
        port = free_port()
        self.room.addresses["redis"] = ("127.0.0.1", port)
        self.room.run(
            provide.command("redis-server"),
            *f"--port {port} --bind 127.0.0.1 --dir {self.room.path} --appendonly yes".split(),
            *("--appendfsync", "always" if self.level is Level.SYNCED else "everysec"),
            *("--save", "", "--auto-aof-rewrite-percentage", "0"),  # no rewrite under a benchmark
        )

    def is_ready(self) -> bool:
        return answers(self.room.addresses["redis"], b"PING\r\n", b"+PONG")

    def prepare(self) -> None:
        """A stream is made by what is first added to it."""

    def stored(self) -> int:
        return talk.redis_number(self.room.addresses["redis"], "XLEN", TOPIC)


@dataclass
class Nats:
    """NATS with JetStream in files. 2.9 has no way to sync before it acknowledges."""

    name: ClassVar = "NATS JetStream"
    settings: ClassVar = {
        Level.CACHED: "file storage, acked, no sync before the ack (2.9 cannot)",
    }
    speeches: ClassVar = ("nats",)
    settle_s: ClassVar = 0.0
    is_bound: ClassVar = False
    level: Level
    room: Room

    @classmethod
    def version(cls) -> str:
        return provide.output(provide.command("nats-server"), "--version").split("v")[-1].strip()

    def launch(self) -> None:
        port = free_port()
        self.room.addresses["nats"] = ("127.0.0.1", port)
        self.room.run(
            provide.command("nats-server"),
            *f"--jetstream --addr 127.0.0.1 --port {port} --store_dir {self.room.path}/js".split(),
        )

    def is_ready(self) -> bool:
        return answers(self.room.addresses["nats"], b"", b"INFO")

    def prepare(self) -> None:
        limits = dict.fromkeys(("max_msgs", "max_bytes", "max_consumers"), -1)
        stream = {"name": "BENCH", "subjects": [TOPIC], "storage": "file", "num_replicas": 1}
        talk.nats_api(self.room.addresses["nats"], "STREAM.CREATE.BENCH", **stream, **limits)

    def stored(self) -> int:
        found = talk.nats_api(self.room.addresses["nats"], "STREAM.INFO.BENCH")
        return int(found["state"]["messages"])


@dataclass
class Kmq:
    """The design of the KMQ broker, the least of it: socat takes lines, gawk numbers them.

    It is given more than the original has: one gawk instead of three, no ring buffers between
    them, and stdio's buffer is not flushed before the connection ends.
    """

    name: ClassVar = "socat + gawk"
    settings: ClassVar = {Level.CACHED: "no ack; in gawk's buffer first, then the page cache"}
    speeches: ClassVar = ("raw lines",)
    settle_s: ClassVar = 0.0
    is_bound: ClassVar = False
    level: Level
    room: Room
    PROGRAM: ClassVar = '{ print ++seq "|" systime() "|" $0 > log_path }'

    @classmethod
    def version(cls) -> str:
        provide.command("socat")
        return provide.output(provide.command("gawk"), "--version").split(",")[0].split()[-1]

    def launch(self) -> None:
        port = free_port()
        self.room.addresses["raw lines"] = ("127.0.0.1", port)
        listen = f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr"
        socat = self.room.run(
            "socat", "-u", "-b", "65536", listen, "STDOUT", stdout=subprocess.PIPE
        )
        self.room.run(
            *("gawk", "-v", f"log_path={self.log_path}", self.PROGRAM),
            stdin=socat.stdout,
            env={**os.environ, "LC_ALL": "C"},
        )
        assert socat.stdout is not None
        socat.stdout.close()

    @property
    def log_path(self) -> Path:
        return self.room.path / "append.log"

    def is_ready(self) -> bool:
        # A connection would be the only one it takes, so the kernel is asked instead.
        port = self.room.addresses["raw lines"][1]
        wanted = f":{port:04X} 00000000:0000 0A"
        return wanted in Path("/proc/net/tcp").read_text()

    def prepare(self) -> None:
        """It has one log, and no topics."""

    def finish(self) -> None:
        """Wait until it has written what it was given; it ends with its only connection."""
        for process in self.room.processes:
            process.wait(START_S)

    def stored(self) -> int:
        return count_newlines(self.log_path)


@dataclass
class Least:
    """Not a peer but a bound: the least that a server in Python can do for a client that waits."""

    name: ClassVar = "any Python server"
    settings: ClassVar = {
        Level.SYNCED: "a write and an fdatasync for what a turn of the loop brings; nothing else",
        Level.CACHED: "the write alone",
    }
    speeches: ClassVar = ("least",)
    settle_s: ClassVar = 0.0
    is_bound: ClassVar = True
    level: Level
    room: Room

    @classmethod
    def version(cls) -> str:
        from importlib.metadata import version

        return f"uvloop {version('uvloop')}"

    def launch(self) -> None:
        command = (sys.executable, "-m", "bench.peers.least", str(self.log_path), self.level)
        process = self.room.run(*command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        self.room.addresses["least"] = ("127.0.0.1", int(process.stdout.readline()))

    @property
    def log_path(self) -> Path:
        return self.room.path / "append.log"

    def is_ready(self) -> bool:
        return True  # it has said where it listens

    def prepare(self) -> None:
        """It has one file, and no topics."""

    def stored(self) -> int:
        return count_newlines(self.log_path)


@dataclass
class Kafka:
    """Apache Kafka, one node in KRaft mode, with the heap and flags its own scripts give it."""

    name: ClassVar = "Apache Kafka"
    settings: ClassVar = {
        Level.SYNCED: "log.flush.interval.messages=1",
        Level.CACHED: "its default: flushing is left to the kernel",
    }
    speeches: ClassVar = ("kafka",)
    settle_s: ClassVar = 0.0
    is_bound: ClassVar = False
    level: Level
    room: Room
    JVM: ClassVar = [
        "-Xmx1G",
        "-Xms1G",
        "-server",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        "-XX:InitiatingHeapOccupancyPercent=35",
        "-XX:+ExplicitGCInvokesConcurrent",
        "-Djava.awt.headless=true",
    ]

    @classmethod
    def version(cls) -> str:
        (jar,) = provide.kafka_jars().glob("kafka_2.13-*.jar")
        return jar.stem.partition("-")[2]

    def java(self, *arguments: str) -> list[str]:
        return [provide.java(), "-cp", f"{provide.kafka_jars()}/*", *arguments]

    def launch(self) -> None:
        properties = self.room.path / "server.properties"
        if not properties.exists():
            ports = free_port(), free_port()
            properties.write_text(self.properties(*ports))
            self.room.addresses["kafka"] = ("127.0.0.1", ports[0])
            storage = ("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg")
            provide.output(*self.java("-Xmx256m", *storage, "-c", str(properties)))
        self.room.run(*self.java(*self.JVM, "kafka.Kafka", str(properties)))

    def properties(self, port: int, controller_port: int) -> str:
        rows = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.room.path / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        if self.level is Level.SYNCED:
            rows["log.flush.interval.messages"] = "1"
        return "".join(f"{name}={value}\n" for name, value in rows.items())

    def is_ready(self) -> bool:
        # ApiVersions v0, correlation id 1, no client id.
        ask = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x01\xff\xff"
        return answers(self.room.addresses["kafka"], ask, b"\0\0")

    def prepare(self) -> None:
        rdkafka.create("{}:{}".format(*self.room.addresses["kafka"]), [TOPIC])

    def stored(self) -> int:
        return rdkafka.stored("{}:{}".format(*self.room.addresses["kafka"]), TOPIC)


def count_newlines(path: Path) -> int:
    with path.open("rb") as log:
        return sum(block.count(b"\n") for block in iter(lambda: log.read(1 << 20), b""))


def answers(address: Address, question: bytes, beginning: bytes) -> bool:
    """Whether a server at the address replies to the question with such a beginning."""
    try:
        with socket.create_connection(address, timeout=2) as asking:
            asking.sendall(question)
            return asking.recv(64).startswith(beginning)
    except OSError:
        return False


CONTESTANTS: tuple[type[Contestant], ...] = (Cordwood, Redis, Nats, Kmq, Kafka, Least)
