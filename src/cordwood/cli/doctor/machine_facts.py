"""The facts about the disk, the limits, the clock and the TLS files."""

from __future__ import annotations

import ctypes
import os
import resource
import ssl
import stat
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cordwood.config import BrokerConfig
from cordwood.decide.descriptors import UNLIMITED
from cordwood.decide.doctor.facts import ClockFacts, DiskFacts, LimitFacts, TlsFacts
from cordwood.log.format.layout import LOCK

SYNCS = 3
LISTENERS = ("kafka", "ingress", "control", "http")
TLS_FILES = {"tls.cert": "tls_cert", "tls.key": "tls_key", "tls.client.ca": "tls_client_ca"}
TIME_ERROR = 5  # what adjtimex returns for a clock that no server keeps
TIMEX_BYTES = 256  # at least the size of struct timex; all zero, it only asks
DAY_S = 86_400


# --- the data directory -----------------------------------------------------------------------


def disk_facts(data: Path) -> DiskFacts:
    """Look at the data directory, or at the nearest parent that exists; creates nothing."""
    path = data.absolute()
    existing = next(each for each in (path, *path.parents) if each.exists())
    space = os.statvfs(existing)
    can_write = existing.is_dir() and os.access(existing, os.R_OK | os.W_OK | os.X_OK)
    sync_s, sync_error = _probe_sync(existing) if can_write else (None, "")
    lock_pid = _read_pid(path / LOCK)
    return DiskFacts(
        path=str(path),
        existing=str(existing),
        can_write=can_write and not space.f_flag & os.ST_RDONLY,
        filesystem=filesystem_of(existing),
        free_bytes=space.f_bavail * space.f_frsize,
        total_bytes=space.f_blocks * space.f_frsize,
        free_inodes=space.f_favail,
        total_inodes=space.f_files,
        sync_s=sync_s,
        sync_error=sync_error,
        lock_pid=lock_pid,
        lock_pid_runs=lock_pid is not None and Path(f"/proc/{lock_pid}").exists(),
        broker_pid=lock_pid if _is_locked(path) else None,
        newest_ms=_newest_ms(path),
    )


def _probe_sync(directory: Path) -> tuple[float | None, str]:
    """The median time of an fsync after a small write, or None and the reason that it failed."""
    times = []
    try:
        with tempfile.TemporaryFile(dir=directory) as probe:  # without a name where possible
            for _ in range(SYNCS):
                probe.write(b"cordwood doctor\n" * 64)
                probe.flush()
                began = time.perf_counter()
                os.fsync(probe.fileno())
                times.append(time.perf_counter() - began)
    except OSError as error:
        return None, error.strerror or str(error)
    return statistics.median(times), ""


def filesystem_of(path: Path) -> str:
    """The type of the file system at a path; empty if the kernel does not say."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            left, _, right = line.partition(" - ")
            if left.split()[2] == wanted:
                return right.split()[0]
    return ""


def _read_pid(lock: Path) -> int | None:
    try:
        return int(lock.read_text("ascii", "replace"))
    except (OSError, ValueError):
        return None


def _is_locked(data: Path) -> bool:
    """Whether a process holds the directory's lock. Takes none itself: a broker may be starting."""
    inodes = set()
    for path in (data, data / LOCK):
        with suppress(OSError):
            inodes.add(str(path.stat().st_ino))
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    held = (line.split() for line in lines if " FLOCK " in line and "->" not in line)
    return any(words[5].rpartition(":")[2] in inodes for words in held)


def _newest_ms(data: Path) -> int | None:
    """The latest change of a file directly in the data directory; None if there is none."""
    try:
        times = [entry.stat().st_mtime for entry in data.iterdir()]
    except OSError:
        return None
    return int(max(times) * 1000) if times else None


# --- limits and clock -------------------------------------------------------------------------


def limit_facts(config: BrokerConfig) -> LimitFacts:
    """Look at the limits of this process, which a broker started here would have too."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return LimitFacts(
        open_files=UNLIMITED if files == resource.RLIM_INFINITY else files,
        connections_wanted=len(LISTENERS) * config.connections_max,
        memory_available=_available_memory(),
        file_bytes=None if size == resource.RLIM_INFINITY else size,
        segment_bytes=config.topic_defaults.config.segment_bytes,
    )


def _available_memory() -> int:
    """What the machine and the cgroup leave; a limit that cannot be read does not count."""
    return min(_meminfo("MemAvailable"), _cgroup_memory())


def _meminfo(name: str) -> int:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            key, _, amount = line.partition(":")
            if key == name:
                return int(amount.split()[0]) * 1024
    return 1 << 62


def _cgroup_memory() -> int:
    root = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError, IndexError):
        own = Path("/proc/self/cgroup").read_text(encoding="ascii").split("::", 1)[1].strip()
        for group in (root / own.lstrip("/"), root):
            if (group / "memory.max").exists():
                limit = int((group / "memory.max").read_text())  # "max" is a ValueError: no limit
                return max(0, limit - int((group / "memory.current").read_text()))
    return 1 << 62


def clock_facts() -> ClockFacts:
    """Look at the clock and ask the kernel whether a time server keeps it."""
    return ClockFacts(int(time.time() * 1000), _is_synchronized())


def _is_synchronized() -> bool | None:
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR


# --- TLS --------------------------------------------------------------------------------------


def tls_facts(config: BrokerConfig) -> TlsFacts:
    """Look at the files that TLS listeners need, if one is set."""
    paths = {name: getattr(config, field) for name, field in TLS_FILES.items()}
    listeners = [f"{name}.tls" for name in LISTENERS if getattr(config, f"{name}_tls") != "off"]
    errors = _tls_errors(paths)
    certificate = paths["tls.cert"] if paths["tls.cert"] and "tls.cert" not in errors else ""
    key = paths["tls.key"]
    return TlsFacts(
        listeners=listeners,
        unset=[name for name in ("tls.cert", "tls.key") if not paths[name]],
        errors=errors,
        days_left=_days_left(Path(certificate)) if certificate else None,
        is_key_public=bool(key) and "tls.key" not in errors and _is_public(Path(key)),
    )


def _tls_errors(paths: Mapping[str, str]) -> dict[str, str]:
    errors = {}
    for name, path in paths.items():
        try:
            if path:
                Path(path).read_bytes()
        except OSError as error:
            errors[name] = f"{path}: {error.strerror}"
    if errors or not (paths["tls.cert"] and paths["tls.key"]):
        return errors
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(paths["tls.cert"], paths["tls.key"], password="")
    except (ssl.SSLError, OSError) as error:
        errors["tls.cert"] = f"{paths['tls.cert']} and its key do not load: {error}"
    try:
        if paths["tls.client.ca"]:
            context.load_verify_locations(paths["tls.client.ca"])
    except (ssl.SSLError, OSError) as error:
        errors["tls.client.ca"] = f"{paths['tls.client.ca']} is no certificate: {error}"
    return errors


def _days_left(certificate: Path) -> float | None:
    from cryptography import x509

    try:
        parsed = x509.load_pem_x509_certificate(certificate.read_bytes())
    except ValueError:
        return None
    return (parsed.not_valid_after_utc.timestamp() - time.time()) / DAY_S


def _is_public(key: Path) -> bool:
    return bool(key.stat().st_mode & stat.S_IROTH)
