"""What ``cordwood doctor`` knows of a machine and of the settings; collected by ``cli.doctor``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """A requirement of cordwood and the version that is installed, if any."""

    name: str
    bounds: str
    extra: str
    installed: str | None


@dataclass(frozen=True, slots=True)
class PythonFacts:
    """The Python that runs this command."""

    version: tuple[int, ...]
    executable: str
    platform: str
    is_optimized: bool  # -O or PYTHONOPTIMIZE: assertions are removed
    packages: Sequence[Package]


@dataclass(frozen=True, slots=True)
class JavaFacts:
    """A Java runtime; without a version if it does not run."""

    home: str
    version: int | None


@dataclass(frozen=True, slots=True)
class SparkFacts:
    """Spark, and what it needs."""

    version: str | None  # of pyspark; None if it is not installed
    is_wanted: bool  # the broker would start the pipeline
    home: str = ""  # SPARK_HOME
    home_version: str | None = None
    javas: Sequence[JavaFacts] = ()  # in the order in which they are tried
    python: str = ""  # that Spark would run for a program which does not import cordwood.spark
    python_chosen_by: str = "PATH"
    python_problem: str | None = None
    python_remedy: str = ""
    install: str = ""  # the command that installs Spark for this Python
    install_java: str = ""


@dataclass(frozen=True, slots=True)
class PortFacts:
    """An address that the broker would listen on."""

    setting: str
    address: str
    error: str | None  # why it cannot be bound; None if it is free
    is_taken: bool = False
    holder_pid: int | None = None
    holder: str = ""


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The data directory, or where it would be created."""

    path: str
    existing: str  # the directory itself, or the nearest parent that exists
    can_write: bool
    filesystem: str
    free_bytes: int
    total_bytes: int
    free_inodes: int
    total_inodes: int  # 0 where the file system does not count them
    sync_s: float | None  # None if it failed
    sync_error: str = ""
    lock_pid: int | None = None  # as the lock file says
    lock_pid_runs: bool = False
    broker_pid: int | None = None  # the process that holds the lock
    newest_ms: int | None = None  # the latest change of a file


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """What the operating system allows this process."""

    open_files: int
    connections_wanted: int
    memory_available: int
    file_bytes: int | None  # the largest file; None for any
    segment_bytes: int


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """The system clock."""

    now_ms: int
    is_synchronized: bool | None  # None if the kernel does not say


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Where numba keeps compiled kernels; None if it may write nowhere."""

    directory: str | None
    is_compiled: bool


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """The files of the TLS listeners."""

    listeners: Sequence[str]  # settings of TLS listeners that are on
    unset: Sequence[str]  # settings that a TLS listener needs and that are empty
    errors: Mapping[str, str]  # setting → why its file cannot be used
    days_left: float | None = None
    is_key_public: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is known of the machine and the settings."""

    python: PythonFacts
    spark: SparkFacts
    ports: Sequence[PortFacts]
    disk: DiskFacts
    limits: LimitFacts
    clock: ClockFacts
    kernels: KernelFacts
    tls: TlsFacts
