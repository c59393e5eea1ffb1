"""What the disk, ports, TLS files, limits and the clock mean for a broker. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cordwood.config import GIB, MIB
from cordwood.decide.descriptors import LIMIT_MIN, plan_descriptors
from cordwood.decide.doctor.check_results import CheckResult, gib, ok, problem, warning
from cordwood.decide.doctor.facts import ClockFacts, DiskFacts, LimitFacts, PortFacts, TlsFacts
from cordwood.plural import plural

BROKER_BYTES: Final = 256 * MIB
PIPELINE_BYTES: Final = 2 * GIB
DISK_BYTES_MIN: Final = 64 * MIB
DISK_BYTES_FEW: Final = 1 * GIB
SHARE_FEW: Final = 0.05  # of space or inodes
SYNC_SLOW_S: Final = 0.1
FILES_FEW: Final = 4096
CLOCK_MIN_MS: Final = 1_735_689_600_000  # 2025: no clock that is set is before that
AHEAD_MS: Final = 5 * 60 * 1000
EXPIRY_NEAR_DAYS: Final = 30
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs"})


def check_directory(disk: DiskFacts) -> Iterator[CheckResult]:
    """The data directory can be written, has space, and syncs; no other process confuses it."""
    yield _directory(disk)
    if disk.broker_pid is None and disk.lock_pid is not None:
        yield _lock(disk)
    yield _filesystem(disk.filesystem)
    yield _space(disk)
    if disk.can_write:
        yield _sync(disk)


def _directory(disk: DiskFacts) -> CheckResult:
    if not disk.can_write:
        return problem(
            "directory",
            f"this user may not write in {disk.existing}",
            f"give the user {disk.existing} (chown), or choose another directory with --data",
        )
    if disk.broker_pid is not None:
        return ok("directory", f"{disk.path}; process {disk.broker_pid} serves it now")
    if disk.existing != disk.path:
        return ok("directory", f"{disk.path} will be created in {disk.existing}")
    return ok("directory", disk.path)


def _lock(disk: DiskFacts) -> CheckResult:
    if disk.lock_pid_runs:
        return warning(
            "lock",
            f"the lock file names process {disk.lock_pid}, which is not a broker of this directory",
            f"do not use kill $(cat {disk.path}/lock) before the broker has been started again",
        )
    return ok("lock", f"left by process {disk.lock_pid}, which has ended; the next start takes it")


def _filesystem(kind: str) -> CheckResult:
    if kind in IN_MEMORY:
        return warning(
            "file system", f"{kind} is kept in memory and lost at a reboot", "use a disk for --data"
        )
    if kind in REMOTE:
        return warning(
            "file system",
            f"{kind}: locks and syncs depend on the server and its mount options",
            "use a local disk for --data; archives may be on a remote one",
        )
    if kind == "overlay":
        return warning(
            "file system",
            "overlay: the directory belongs to a container and is removed with it",
            "mount a volume there",
        )
    return ok("file system", kind or "not known")


def _space(disk: DiskFacts) -> CheckResult:
    found = f"{gib(disk.free_bytes)} of {gib(disk.total_bytes)} free"
    remedy = "free some space, use a larger disk, or lower retention.bytes and retention.ms"
    if disk.free_bytes < DISK_BYTES_MIN:
        return problem("disk space", found, remedy)
    if disk.total_inodes and disk.free_inodes < SHARE_FEW * disk.total_inodes:
        return warning(
            "disk space",
            f"{disk.free_inodes} of {disk.total_inodes} inodes free",
            "remove files, or use a file system with more inodes",
        )
    if disk.free_bytes < max(DISK_BYTES_FEW, SHARE_FEW * disk.total_bytes):
        return warning("disk space", found, remedy)
    return ok("disk space", found)


def _sync(disk: DiskFacts) -> CheckResult:
    if disk.sync_s is None:
        return problem(
            "fsync",
            f"it fails in {disk.existing}: {disk.sync_error}",
            "choose another disk with --data; without fsync nothing can be acknowledged",
        )
    found = f"{disk.sync_s * 1000:.1f} ms"
    if disk.sync_s > SYNC_SLOW_S:
        return warning(
            "fsync",
            f"{found}; every acknowledgement waits for one",
            "look for other users of the disk, or use a faster one",
        )
    return ok("fsync", found)


def check_ports(ports: Sequence[PortFacts], broker_pid: int | None) -> Iterator[CheckResult]:
    """Every address is free, or held by the broker of this directory."""
    for port in ports:
        check = f"port {port.setting}"
        other = f"--{port.setting.replace('.', '-')} HOST:PORT"
        if port.error is None:
            yield ok(check, f"{port.address} is free")
        elif not port.is_taken:
            yield problem(
                check,
                f"{port.address}: {port.error}",
                f"choose an address of this machine: {other}",
            )
        elif port.holder_pid is not None and port.holder_pid == broker_pid:
            yield ok(check, f"{port.address} is served by this directory's broker")
        else:
            by = f" by process {port.holder_pid} ({port.holder})" if port.holder_pid else ""
            yield problem(
                check, f"{port.address} is in use{by}", f"stop it, or choose another: {other}"
            )


def check_tls(tls: TlsFacts) -> Iterator[CheckResult]:
    """The files of TLS listeners exist, fit together and are valid for a while."""
    if tls.listeners and tls.unset:
        yield problem(
            "tls",
            f"{' and '.join(tls.listeners)} without {' and '.join(tls.unset)}",
            "set them; `cordwood certs init DIR` makes certificates for a test",
        )
    for setting, error in tls.errors.items():
        yield problem(f"tls {setting}", error, "correct the path, its permissions or the file")
    if tls.days_left is not None:
        yield _expiry(tls.days_left)
    if tls.is_key_public:
        yield warning("tls key", "other users can read tls.key", "chmod 600 the file")


def _expiry(days_left: float) -> CheckResult:
    if days_left <= 0:
        return problem("tls certificate", "it has expired", "renew it, and restart the broker")
    found = f"valid for {plural(int(days_left), 'day')}"
    if days_left < EXPIRY_NEAR_DAYS:
        return warning("tls certificate", found, "renew it, and restart the broker")
    return ok("tls certificate", found)


def check_limits(limits: LimitFacts, *, with_spark: bool) -> Iterator[CheckResult]:
    """Open files, memory and the size of files."""
    yield _open_files(limits)
    wanted = BROKER_BYTES + (PIPELINE_BYTES if with_spark else 0)
    found = f"{gib(limits.memory_available)} available"
    if limits.memory_available < wanted:
        who = "the broker and Spark need" if with_spark else "the broker needs"
        remedy = "free some memory, or set pipeline=off" if with_spark else "free some memory"
        yield warning("memory", f"{found}; {who} about {gib(wanted)}", remedy)
    else:
        yield ok("memory", found)
    if limits.file_bytes is not None and limits.file_bytes < limits.segment_bytes:
        yield problem(
            "file size",
            f"files are limited to {limits.file_bytes} bytes, segments to {limits.segment_bytes}",
            "raise `ulimit -f`, or lower segment.bytes",
        )


def _open_files(limits: LimitFacts) -> CheckResult:
    remedy = "raise it: `ulimit -Hn`, or LimitNOFILE= in the systemd unit"
    if limits.open_files < LIMIT_MIN:
        return problem(
            "open files", f"at most {limits.open_files}; a broker needs {LIMIT_MIN}", remedy
        )
    plan = plan_descriptors(limits.open_files, limits.connections_wanted)
    found = (
        f"at most {limits.open_files}: {plural(plan.connections, 'connection')}, "
        f"{plural(plan.tails, 'partition')} written to at once"
    )
    if limits.open_files < FILES_FEW:
        return warning("open files", found, remedy)
    return ok("open files", found)


def check_clock(clock: ClockFacts, newest_ms: int | None) -> CheckResult:
    """Retention and timestamps need a clock that is right and does not go back."""
    remedy = "set the clock, and let chrony or systemd-timesyncd keep it"
    if clock.now_ms < CLOCK_MIN_MS:
        return problem("clock", "it is not set: it shows a time before 2025", remedy)
    if newest_ms is not None and newest_ms > clock.now_ms + AHEAD_MS:
        ahead = plural((newest_ms - clock.now_ms) // 60_000, "minute")
        return warning("clock", f"the data directory has files from {ahead} in the future", remedy)
    if clock.is_synchronized is False:
        return warning("clock", "not synchronised with a time server", remedy)
    return ok("clock", "synchronised" if clock.is_synchronized else "plausible")
