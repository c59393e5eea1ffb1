"""The servers that are compared: how to find, start, query and stop each.

Equal durability means one of two levels. *Synced*: the bytes are on the device before the
acknowledgement. *Cached*: they are in the kernel's page cache, so a killed process loses nothing,
but a power cut may. The settings for each level are part of every result.
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
from bench.peers.results import BEFORE
from bench.peers.speech import TOPIC
from cordwood.lab.scenarios.stage import Child

START_S = 60.0
KERNELS_S = 4.0  # they load from the cache in the background, after the first messages
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

Address = tuple[str, int]


class Level(StrEnum):
    """When a server acknowledges a message."""

    SYNCED = "synced"
    CACHED = "cached"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


class Sandbox:
    """A directory and the processes that work in it; both are removed together."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="cordwood-bench-"))
        self.addresses: dict[str, Address] = {}
        self.processes: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str, **options: object) -> subprocess.Popen[bytes]:
        """Start a process in this sandbox; its output goes to a file there."""
        with (self.path / "output").open("ab") as output:
            process = subprocess.Popen(
                command,
                **{"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output} | options,
            )  # type: ignore[call-overload]
        self.processes.append(process)
        return process

    def last_output(self) -> str:
        """Return the last line of the output."""
        path = self.path / "output"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return lines[-1] if lines else "no output"

    def kill(self) -> None:
        """Kill the processes as in a crash; the files stay."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.processes.clear()

    def clear(self) -> None:
        """Kill the processes and remove the files."""
        self.kill()
        shutil.rmtree(self.path, ignore_errors=True)

    def cpu_seconds(self) -> float:
        """Return the user and system CPU time of all its processes so far."""
        stats = (_stat(process.pid) for process in self.processes)
        return sum(sum(map(int, stat[11:13])) for stat in stats) / _TICKS

    def rss_mib(self) -> float:
        texts = (Path(f"/proc/{process.pid}/statm").read_text() for process in self.processes)
        return sum(int(text.split()[1]) for text in texts) * _PAGE / 2**20

    def forget_cache(self) -> None:
        """Drop its files from the page cache, as if they had not been read for a long time."""
        os.sync()
        for path in self.path.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Contestant(Protocol):
    """How to find, start and query one kind of server, which works in a sandbox."""

    name: ClassVar[str]
    settings: ClassVar[dict[Level, str]]
    speeches: ClassVar[tuple[str, ...]]  # the protocols it supports: names of bench.peers.speech
    settle_s: ClassVar[float]  # seconds until its background loading is done
    is_bound: ClassVar[bool]  # a theoretical bound: it takes messages, and nothing else

    def __init__(self, level: Level, sandbox: Sandbox) -> None: ...

    @classmethod
    def version(cls) -> str:
        """Return the installed version; raise Missing with the reason if it is not available."""

    def launch(self) -> None:
        """Start the processes; called again after a kill."""

    def is_ready(self) -> bool:
        """Return whether it answers."""

    def prepare(self) -> None:
        """Create the topic or stream for the messages."""

    def stored(self) -> int:
        """Return how many messages it holds, to check the client's count."""


class Server:
    """A running contestant in its own sandbox."""

    def __init__(self, kind: type[Contestant], level: Level) -> None:
        self.level = level
        self.sandbox = Sandbox()
        self.contestant = kind(level, self.sandbox)
        self.name, self.speeches = kind.name, kind.speeches
        self.addresses = self.sandbox.addresses
        self.started_s = 0.0
        try:
            self.start()
        except BaseException:
            self.sandbox.clear()
            raise

    def start(self) -> None:
        """Launch it, and wait until it answers."""
        began = time.perf_counter()
        self.contestant.launch()
        deadline = began + START_S
        while not self.contestant.is_ready():
            if any(process.poll() is not None for process in self.sandbox.processes):
                raise Missing(f"{self.name} stopped as it started: {self.sandbox.last_output()}")
            if time.perf_counter() > deadline:
                output = self.sandbox.last_output()
                raise Missing(f"{self.name} did not answer within {START_S:.0f} s: {output}")
            time.sleep(0.005)
        self.started_s = time.perf_counter() - began

    def prepare(self) -> None:
        """Create the topic or stream for the messages."""
        self.contestant.prepare()

    def settle(self) -> None:
        """Wait until its background loading is done."""
        time.sleep(self.contestant.settle_s)

    def stored(self) -> int:
        """Return how many messages it holds."""
        return self.contestant.stored()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sandbox.clear()


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
    python: ClassVar = sys.executable
    level: Level
    sandbox: Sandbox

    @classmethod
    def version(cls) -> str:
        return provide.output(cls.python, "-m", "cordwood", "--version").split()[-1]

    def launch(self) -> None:
        durability = "fsync" if self.level is Level.SYNCED else "os"
        child = Child(self.sandbox.path / "data", {"durability": durability}, python=self.python)
        self.sandbox.processes.append(child._process)
        for listener, text in child.addresses.items():
            host, port = text.rsplit(":", 1)
            self.sandbox.addresses[listener] = (host, int(port))
        self.sandbox.addresses["line"] = self.sandbox.addresses["ingress"]

    def is_ready(self) -> bool:
        return True  # Child waits for READY

    def prepare(self) -> None:
        rdkafka.create("{}:{}".format(*self.sandbox.addresses["kafka"]), [TOPIC])

    def stored(self) -> int:
        return int(talk.line(self.sandbox.addresses["control"], "GET_ACK").removeprefix("ACK "))


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
    sandbox: Sandbox

    @classmethod
    def version(cls) -> str:
        output = provide.output(provide.command("redis-server"), "--version")
        return output.partition("v=")[2].split()[0]

    def launch(self) -> None:
        port = free_port()
        self.sandbox.addresses["redis"] = ("127.0.0.1", port)
        self.sandbox.run(
            provide.command("redis-server"),
            *f"--port {port} --bind 127.0.0.1 --dir {self.sandbox.path} --appendonly yes".split(),
            *("--appendfsync", "always" if self.level is Level.SYNCED else "everysec"),
            *("--save", "", "--auto-aof-rewrite-percentage", "0"),  # no rewrite during a benchmark
        )

    def is_ready(self) -> bool:
        return answers(self.sandbox.addresses["redis"], b"PING\r\n", b"+PONG")

    def prepare(self) -> None:
        """Do nothing: the first XADD creates the stream."""

    def stored(self) -> int:
        return talk.redis_number(self.sandbox.addresses["redis"], "XLEN", TOPIC)


@dataclass
class Nats:
    """NATS with JetStream in files. Version 2.9 cannot sync before it acknowledges."""

    name: ClassVar = "NATS JetStream"
    settings: ClassVar = {
        Level.CACHED: "file storage, acked, no sync before the ack (2.9 cannot)",
    }
    speeches: ClassVar = ("nats",)
    settle_s: ClassVar = 0.0
    is_bound: ClassVar = False
    level: Level
    sandbox: Sandbox

    @classmethod
    def version(cls) -> str:
        return provide.output(provide.command("nats-server"), "--version").split("v")[-1].strip()

    def launch(self) -> None:
        port = free_port()
        self.sandbox.addresses["nats"] = ("127.0.0.1", port)
        self.sandbox.run(
            provide.command("nats-server"),
            *f"--jetstream --addr 127.0.0.1 --port {port}".split(),
            *("--store_dir", f"{self.sandbox.path}/js"),
        )

    def is_ready(self) -> bool:
        return answers(self.sandbox.addresses["nats"], b"", b"INFO")

    def prepare(self) -> None:
        limits = dict.fromkeys(("max_msgs", "max_bytes", "max_consumers"), -1)
        stream = {"name": "BENCH", "subjects": [TOPIC], "storage": "file", "num_replicas": 1}
        talk.nats_api(self.sandbox.addresses["nats"], "STREAM.CREATE.BENCH", **stream, **limits)

    def stored(self) -> int:
        found = talk.nats_api(self.sandbox.addresses["nats"], "STREAM.INFO.BENCH")
        return int(found["state"]["messages"])


@dataclass
class Kmq:
    """The minimum of the KMQ broker's design: socat receives lines, gawk numbers them.

    It has advantages over the original: one gawk instead of three, no ring buffers between them,
    and stdio's buffer is not flushed before the connection ends.
    """

    name: ClassVar = "socat + gawk"
    settings: ClassVar = {Level.CACHED: "no ack; in gawk's buffer first, then the page cache"}
    speeches: ClassVar = ("raw lines",)
    settle_s: ClassVar = 0.0
    is_bound: ClassVar = False
    level: Level
    sandbox: Sandbox
    PROGRAM: ClassVar = '{ print ++seq "|" systime() "|" $0 > log_path }'

    @classmethod
    def version(cls) -> str:
        provide.command("socat")
        return provide.output(provide.command("gawk"), "--version").split(",")[0].split()[-1]

    def launch(self) -> None:
        port = free_port()
        self.sandbox.addresses["raw lines"] = ("127.0.0.1", port)
        listen = f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr"
        socat = self.sandbox.run(
            "socat", "-u", "-b", "65536", listen, "STDOUT", stdout=subprocess.PIPE
        )
        self.sandbox.run(
            *("gawk", "-v", f"log_path={self.log_path}", self.PROGRAM),
            stdin=socat.stdout,
            env={**os.environ, "LC_ALL": "C"},
        )
        assert socat.stdout is not None
        socat.stdout.close()

    @property
    def log_path(self) -> Path:
        return self.sandbox.path / "append.log"

    def is_ready(self) -> bool:
        # It accepts only one connection, so look for its listening socket in the kernel instead.
        port = self.sandbox.addresses["raw lines"][1]
        wanted = f":{port:04X} 00000000:0000 0A"
        return wanted in Path("/proc/net/tcp").read_text()

    def prepare(self) -> None:
        """Do nothing: it has one log, and no topics."""

    def finish(self) -> None:
        """Wait until it has written everything; it ends with its only connection."""
        for process in self.sandbox.processes:
            process.wait(START_S)

    def stored(self) -> int:
        return count_newlines(self.log_path)


@dataclass
class Least:
    """Not a peer but a bound: the least that a server in Python can do for a waiting client."""

    name: ClassVar = "any Python server"
    settings: ClassVar = {
        Level.SYNCED: "a write and an fdatasync for what a turn of the loop brings; nothing else",
        Level.CACHED: "the write alone",
    }
    speeches: ClassVar = ("least",)
    settle_s: ClassVar = 0.0
    is_bound: ClassVar = True
    level: Level
    sandbox: Sandbox

    @classmethod
    def version(cls) -> str:
        from importlib.metadata import version

        return f"uvloop {version('uvloop')}"

    def launch(self) -> None:
        command = (sys.executable, "-m", "bench.peers.least", str(self.log_path), self.level)
        process = self.sandbox.run(*command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        self.sandbox.addresses["least"] = ("127.0.0.1", int(process.stdout.readline()))

    @property
    def log_path(self) -> Path:
        return self.sandbox.path / "append.log"

    def is_ready(self) -> bool:
        return True  # it has printed its port

    def prepare(self) -> None:
        """Do nothing: it has one file, and no topics."""

    def stored(self) -> int:
        return count_newlines(self.log_path)


@dataclass
class Kafka:
    """Apache Kafka, one node in KRaft mode, with the heap and flags of its own scripts."""

    name: ClassVar = "Apache Kafka"
    settings: ClassVar = {
        Level.SYNCED: "log.flush.interval.messages=1",
        Level.CACHED: "its default: flushing is left to the kernel",
    }
    speeches: ClassVar = ("kafka",)
    settle_s: ClassVar = 0.0
    is_bound: ClassVar = False
    level: Level
    sandbox: Sandbox
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
        properties = self.sandbox.path / "server.properties"
        if not properties.exists():
            ports = free_port(), free_port()
            properties.write_text(self.properties(*ports))
            self.sandbox.addresses["kafka"] = ("127.0.0.1", ports[0])
            storage = ("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg")
            provide.output(*self.java("-Xmx256m", *storage, "-c", str(properties)))
        self.sandbox.run(*self.java(*self.JVM, "kafka.Kafka", str(properties)))

    def properties(self, port: int, controller_port: int) -> str:
        rows = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.sandbox.path / "data"),
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
        return answers(self.sandbox.addresses["kafka"], ask, b"\0\0")

    def prepare(self) -> None:
        rdkafka.create("{}:{}".format(*self.sandbox.addresses["kafka"]), [TOPIC])

    def stored(self) -> int:
        return rdkafka.stored("{}:{}".format(*self.sandbox.addresses["kafka"]), TOPIC)


def count_newlines(path: Path) -> int:
    with path.open("rb") as log:
        return sum(block.count(b"\n") for block in iter(lambda: log.read(1 << 20), b""))


def answers(address: Address, question: bytes, beginning: bytes) -> bool:
    """Return whether the server's reply to the question has this beginning."""
    try:
        with socket.create_connection(address, timeout=2) as asking:
            asking.sendall(question)
            return asking.recv(64).startswith(beginning)
    except OSError:
        return False


def before(python: str) -> type[Contestant]:
    """Return another installation of ours, such as an older commit's, as a contestant."""
    return type("Before", (Cordwood,), {"name": BEFORE, "python": python})


CONTESTANTS: tuple[type[Contestant], ...] = (Cordwood, Redis, Nats, Kmq, Kafka, Least)
