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
import tempfile
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Self

from bench.peers import provide, rdkafka, talk
from bench.peers.provide import Missing
from bench.peers.speech import TOPIC
from cordwood.scenario.stage import Child

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


class Server:
    """One running server in a directory of its own. Subclasses start it and know its manners."""

    name: ClassVar[str]
    settings: ClassVar[dict[Level, str]]
    speeches: ClassVar[tuple[str, ...]] = ()  # what it understands: names of bench.peers.speech

    def __init__(self, level: Level) -> None:
        self.level = level
        self.room = Path(tempfile.mkdtemp(prefix="cordwood-bench-"))
        self.addresses: dict[str, Address] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.started_s = 0.0
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    @classmethod
    def version(cls) -> str:
        """Of what is installed; raises Missing with the reason when it cannot be had."""
        raise NotImplementedError

    def launch(self) -> None:
        """Start the processes; called again after a kill."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether it answers."""
        raise NotImplementedError

    def start(self) -> None:
        """Launch, and wait until it answers."""
        began = time.perf_counter()
        self.launch()
        deadline = began + START_S
        while not self.is_ready():
            if any(process.poll() is not None for process in self.processes):
                raise Missing(f"{self.name} stopped as it started: {self.said()}")
            if time.perf_counter() > deadline:
                raise Missing(f"{self.name} did not answer within {START_S:.0f} s: {self.said()}")
            time.sleep(0.005)
        self.started_s = time.perf_counter() - began

    def prepare(self) -> None:
        """Make the topic or stream that messages go to."""

    def settle(self) -> None:
        """Wait until what it loads in the background is there."""

    def stored(self) -> int:
        """How many messages it holds; the truth a client's count is compared with."""
        raise NotImplementedError

    def run(self, *command: str, **options: object) -> subprocess.Popen[bytes]:
        """A process of this server; what it says goes to a file in its room."""
        with (self.room / "said").open("ab") as said:
            process = subprocess.Popen(
                command, **{"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said} | options
            )  # type: ignore[call-overload]
        self.processes.append(process)
        return process

    def said(self) -> str:
        """The last line it wrote."""
        path = self.room / "said"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return lines[-1] if lines else "it said nothing"

    def kill(self) -> None:
        """As a crash does; the files stay, and ``start`` may follow."""
        for process in self.processes:
            process.kill()
        self._reap()

    def stop(self) -> None:
        """The end: no process and no file is left."""
        self.kill()
        shutil.rmtree(self.room, ignore_errors=True)

    def _reap(self) -> None:
        for process in self.processes:
            process.wait()
        self.processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def cpu_seconds(self) -> float:
        """Of all its processes so far, user and system."""
        return sum(sum(map(int, _stat(pid)[11:13])) for pid in self.pids()) / _TICKS

    def rss_mib(self) -> float:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids())
        return pages * _PAGE / 2**20

    def forget_cache(self) -> None:
        """Its files leave the page cache, as if they had not been read for a long time."""
        os.sync()
        for path in self.files():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def files(self) -> Iterator[Path]:
        return (path for path in self.room.rglob("*") if path.is_file())


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class Cordwood(Server):
    """Ours, as ``cordwood serve`` runs it."""

    name = "cordwood"
    settings: ClassVar = {
        Level.SYNCED: "durability=fsync (the default): fdatasync before the ack, group commit",
        Level.CACHED: "durability=os",
    }
    speeches = ("line", "kafka")

    @classmethod
    def version(cls) -> str:
        from importlib.metadata import version

        return version("cordwood")

    def launch(self) -> None:
        durability = "fsync" if self.level is Level.SYNCED else "os"
        child = Child(self.room / "data", {"durability": durability})
        self.processes.append(child._process)
        for door, text in child.addresses.items():
            host, port = text.rsplit(":", 1)
            self.addresses[door] = (host, int(port))
        self.addresses["line"] = self.addresses["ingress"]

    def is_ready(self) -> bool:
        return True  # Child waits for READY

    def prepare(self) -> None:
        rdkafka.create("{}:{}".format(*self.addresses["kafka"]), [TOPIC])

    def settle(self) -> None:
        time.sleep(KERNELS_S)

    def stored(self) -> int:
        return int(talk.line(self.addresses["control"], "GET_ACK").removeprefix("ACK "))

    def _reap(self) -> None:
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.close()
        super()._reap()


class Redis(Server):
    """Redis Streams with the append-only file."""

    name = "Redis"
    settings: ClassVar = {
        Level.SYNCED: "appendonly yes, appendfsync always",
        Level.CACHED: "appendonly yes, appendfsync everysec",
    }
    speeches = ("redis",)

    @classmethod
    def version(cls) -> str:
        said = provide.output(provide.command("redis-server"), "--version")
        return said.partition("v=")[2].split()[0]

    def launch(self) -> None:
        port = free_port()
        self.addresses["redis"] = ("127.0.0.1", port)
        self.run(
            provide.command("redis-server"),
            *f"--port {port} --bind 127.0.0.1 --dir {self.room} --appendonly yes".split(),
            *("--appendfsync", "always" if self.level is Level.SYNCED else "everysec"),
            *("--save", "", "--auto-aof-rewrite-percentage", "0"),  # no rewrite under a benchmark
        )

    def is_ready(self) -> bool:
        return answers(self.addresses["redis"], b"PING\r\n", b"+PONG")

    def stored(self) -> int:
        return talk.redis_number(self.addresses["redis"], "XLEN", TOPIC)


class Nats(Server):
    """NATS with JetStream in files. 2.9 has no way to sync before it acknowledges."""

    name = "NATS JetStream"
    settings: ClassVar = {
        Level.CACHED: "file storage, acked, no sync before the ack (2.9 cannot)",
    }
    speeches = ("nats",)

    @classmethod
    def version(cls) -> str:
        return provide.output(provide.command("nats-server"), "--version").split("v")[-1].strip()

    def launch(self) -> None:
        port = free_port()
        self.addresses["nats"] = ("127.0.0.1", port)
        self.run(
            provide.command("nats-server"),
            *f"--jetstream --addr 127.0.0.1 --port {port} --store_dir {self.room / 'js'}".split(),
        )

    def is_ready(self) -> bool:
        return answers(self.addresses["nats"], b"", b"INFO")

    def prepare(self) -> None:
        limits = dict.fromkeys(("max_msgs", "max_bytes", "max_consumers"), -1)
        stream = {"name": "BENCH", "subjects": [TOPIC], "storage": "file", "num_replicas": 1}
        talk.nats_api(self.addresses["nats"], "STREAM.CREATE.BENCH", **stream, **limits)

    def stored(self) -> int:
        found = talk.nats_api(self.addresses["nats"], "STREAM.INFO.BENCH")
        return int(found["state"]["messages"])


class Kmq(Server):
    """The design of the KMQ broker, the least of it: socat takes lines, gawk numbers them.

    It is given more than the original has: one gawk instead of three, no ring buffers between
    them, and stdio's buffer is not flushed before the connection ends.
    """

    name = "socat + gawk"
    settings: ClassVar = {Level.CACHED: "no ack; in gawk's buffer first, then the page cache"}
    speeches = ("raw lines",)
    PROGRAM = '{ print ++seq "|" systime() "|" $0 > log_path }'

    @classmethod
    def version(cls) -> str:
        provide.command("socat")
        return provide.output(provide.command("gawk"), "--version").split(",")[0].split()[-1]

    def launch(self) -> None:
        port = free_port()
        self.addresses["raw lines"] = ("127.0.0.1", port)
        listen = f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr"
        socat = self.run("socat", "-u", "-b", "65536", listen, "STDOUT", stdout=subprocess.PIPE)
        self.run(
            *("gawk", "-v", f"log_path={self.log_path}", self.PROGRAM),
            stdin=socat.stdout,
            env={**os.environ, "LC_ALL": "C"},
        )
        assert socat.stdout is not None
        socat.stdout.close()
        self._port = port

    @property
    def log_path(self) -> Path:
        return self.room / "append.log"

    def is_ready(self) -> bool:
        # A connection would be the only one it takes, so the kernel is asked instead.
        wanted = f":{self._port:04X} 00000000:0000 0A"
        return wanted in Path("/proc/net/tcp").read_text()

    def finish(self) -> None:
        """Wait until it has written what it was given; it ends with its only connection."""
        for process in self.processes:
            process.wait(START_S)

    def stored(self) -> int:
        with self.log_path.open("rb") as log:
            return sum(block.count(b"\n") for block in iter(lambda: log.read(1 << 20), b""))


class Kafka(Server):
    """Apache Kafka, one node in KRaft mode, with the heap and flags its own scripts give it."""

    name = "Apache Kafka"
    settings: ClassVar = {
        Level.SYNCED: "log.flush.interval.messages=1",
        Level.CACHED: "its default: flushing is left to the kernel",
    }
    speeches = ("kafka",)
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
        properties = self.room / "server.properties"
        if not properties.exists():
            ports = free_port(), free_port()
            properties.write_text(self.properties(*ports))
            self.addresses["kafka"] = ("127.0.0.1", ports[0])
            storage = ("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg")
            provide.output(*self.java("-Xmx256m", *storage, "-c", str(properties)))
        self.run(*self.java(*self.JVM, "kafka.Kafka", str(properties)))

    def properties(self, port: int, controller_port: int) -> str:
        rows = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.room / "data"),
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
        return answers(self.addresses["kafka"], ask, b"\0\0")

    def prepare(self) -> None:
        rdkafka.create("{}:{}".format(*self.addresses["kafka"]), [TOPIC])

    def stored(self) -> int:
        return rdkafka.stored("{}:{}".format(*self.addresses["kafka"]), TOPIC)


def answers(address: Address, question: bytes, beginning: bytes) -> bool:
    """Whether a server at the address replies to the question with such a beginning."""
    try:
        with socket.create_connection(address, timeout=2) as asking:
            asking.sendall(question)
            return asking.recv(64).startswith(beginning)
    except OSError:
        return False


CONTESTANTS: tuple[type[Server], ...] = (Cordwood, Redis, Nats, Kmq, Kafka)
Start = Callable[[Level], Server]
