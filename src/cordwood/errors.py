"""Every error cordwood raises, in two levels: families and their members.

The family determines who handles the error (see the table in ``docs/errors.md``, which is generated
from these classes); the class attributes determine what a client sees. A torn tail is a value, not
an error. A failed assertion is a bug in cordwood and is never caught. Neither belongs here.

``code`` is Kafka's error code, ``name`` the word after ``ERR`` in the line protocol and in JSON
replies, ``http_status`` the status of those replies, ``exit_code`` the exit code of the command
line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class CordwoodError(Exception):
    """The base of all cordwood errors; catch a family instead where you can handle one."""

    code: ClassVar[int] = -1
    name: ClassVar[str] = "UNKNOWN"
    retriable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init_subclass__(cls) -> None:
        """Derive the HTTP status from the exit code: 3 (not found) is 404, 4 (conflict) is 409."""
        if "http_status" not in cls.__dict__:
            cls.http_status = {3: 404, 4: 409}.get(cls.exit_code, cls.http_status)


class RequestError(CordwoodError):
    """The client can fix it; the reply carries the code."""

    code = 42
    name = "INVALID_REQUEST"
    http_status = 400


class ProtocolError(CordwoodError):
    """The peer broke the protocol; it gets an error and its connection is closed."""

    code = 42
    name = "PROTOCOL"
    http_status = 400


class CorruptionError(CordwoodError):
    """Bytes contradict their checksum; the damaged range is refused and the rest is served."""

    code = 56
    name = "STORAGE"
    exit_code = 5


class UnavailableError(CordwoodError):
    """The disk, the metadata store or a peer is unavailable; the same request may succeed later."""

    code = 7
    name = "UNAVAILABLE"
    retriable = True
    exit_code = 6
    http_status = 503


class ConfigError(CordwoodError):
    """The operator can fix it; start-up stops and names the setting."""

    code = 40
    name = "CONFIG"
    exit_code = 2
    http_status = 400


# --- RequestError ---------------------------------------------------------------------------


class UnknownTopic(RequestError):
    """The topic or partition does not exist, and may not be created automatically."""

    code, name, retriable, exit_code = 3, "UNKNOWN_TOPIC", True, 3


class UnknownSegment(RequestError):
    """The segment does not exist, or lacks the information that was requested."""

    code, name, exit_code, http_status = 42, "UNKNOWN_SEGMENT", 3, 404


class TopicExists(RequestError):
    """A topic with this name already exists."""

    code, name, exit_code = 36, "TOPIC_EXISTS", 4


class InvalidTopic(RequestError):
    """The topic name is empty, too long or has characters outside ``[a-zA-Z0-9._-]``."""

    code, name = 17, "INVALID_TOPIC"


class InvalidPartitions(RequestError):
    """The partition count is below one, or lower than the current count."""

    code, name = 37, "INVALID_PARTITIONS"


class InvalidReplication(RequestError):
    """The replication factor is not one, and there is only one broker."""

    code, name = 38, "INVALID_REPLICATION_FACTOR"


class InvalidAssignment(RequestError):
    """A manual assignment omits a partition or names a broker that does not exist."""

    code, name = 39, "INVALID_REPLICA_ASSIGNMENT"


class InvalidConfig(RequestError):
    """A topic setting does not exist or has an invalid value; nothing was changed."""

    code, name = 40, "INVALID_CONFIG"


class OffsetOutOfRange(RequestError):
    """The offset lies before the log start or past the log end."""

    code, name = 1, "OFFSET_OUT_OF_RANGE"


class CorruptBatch(RequestError):
    """A produced batch has a wrong length, magic or checksum; nothing was stored."""

    code, name, retriable = 2, "CORRUPT_MESSAGE", True


class BatchTooLarge(RequestError):
    """A produced batch exceeds ``max.message.bytes`` or ``message.inflated.bytes.max`` inflated."""

    code, name = 10, "MESSAGE_TOO_LARGE"


class InvalidRecord(RequestError):
    """Records cannot be decoded, or the topic refuses them: no key on a compacted topic."""

    code, name = 87, "INVALID_RECORD"


class InvalidTimestamp(RequestError):
    """The topic refuses a record's timestamp, or the batch claims broker timestamps."""

    code, name = 32, "INVALID_TIMESTAMP"


class UnsupportedCompression(RequestError):
    """The codec is unknown, or newer than the version of the request allows."""

    code, name = 76, "UNSUPPORTED_COMPRESSION"


class PolicyViolation(RequestError):
    """The topic's policy forbids the request."""

    code, name, exit_code = 44, "POLICY_VIOLATION", 4


class OutOfOrderSequence(RequestError):
    """An idempotent producer skipped a sequence number."""

    code, name = 45, "OUT_OF_ORDER_SEQUENCE"


class StaleProducer(RequestError):
    """A newer instance of this producer has taken over (its epoch is higher)."""

    code, name, exit_code = 47, "PRODUCER_FENCED", 4


class InvalidTransaction(RequestError):
    """The batch or marker does not fit the state of its producer's transaction."""

    code, name = 48, "INVALID_TXN_STATE"


class UnknownReader(RequestError):
    """No reader with this name is registered on the topic."""

    code, name, exit_code = 69, "UNKNOWN_READER", 3


class UnknownRoute(RequestError):
    """There is no binding of this kind for this routing key."""

    code, name, exit_code = 42, "UNKNOWN_ROUTE", 3


class StaleManifest(RequestError):
    """A job's manifest names segments that were replaced or deleted since; run the job again."""

    code, name, exit_code = 44, "STALE_MANIFEST", 4


class UnknownCommand(RequestError):
    """The line protocol has no such command; ``HELP`` lists the commands."""

    name = "UNKNOWN_COMMAND"


class InvalidManifest(RequestError):
    """A job's manifest or its staged files are inconsistent; nothing was swapped."""

    code, name = 44, "INVALID_MANIFEST"


class UnknownJob(RequestError):
    """The job has no staged files."""

    code, name, exit_code = 42, "UNKNOWN_JOB", 3


class UnsafePath(RequestError):
    """A staged file is a link, not a regular file, or owned by another user."""

    code, name, exit_code = 42, "UNSAFE_PATH", 7


class QuarantinedDelivery(RequestError):
    """An accepted delivery cannot be completed; only its own query is blocked."""

    code, name, exit_code = 42, "QUARANTINED_DELIVERY", 4


class StaleDelivery(RequestError):
    """A delivery does not follow the query's last one: another driver delivered first."""

    code, name, exit_code = 42, "STALE_DELIVERY", 4


class NotLeader(RequestError):
    """This broker does not lead the partition."""

    code, name, retriable = 6, "NOT_LEADER", True


class DataLoss(RequestError):
    """Records that a Spark query has not read yet were deleted from the log."""

    code, name, exit_code = 1, "DATA_LOSS", 5


class Compacted(RequestError):
    """A watch asked for changes older than the kept history; read again and watch from there."""

    name = "COMPACTED"


class ForeignHost(RequestError):
    """The ``Host`` of an HTTP request is not one of this broker's names."""

    name, http_status = "FOREIGN_HOST", 421


class ForeignOrigin(RequestError):
    """The HTTP request comes from a web page of another site."""

    name, http_status = "FOREIGN_ORIGIN", 403


class UnknownPath(RequestError):
    """The HTTP server has no such path."""

    name, exit_code = "NOT_FOUND", 3


class MethodNotAllowed(RequestError):
    """The path does not support this HTTP method."""

    name, http_status = "METHOD_NOT_ALLOWED", 405

    def __init__(self, message: str, allow: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.allow = tuple(allow)


class UnsupportedContentType(RequestError):
    """The path requires a body of another content type."""

    name, http_status = "UNSUPPORTED_CONTENT_TYPE", 415


# --- ProtocolError --------------------------------------------------------------------------


class LineTooLong(ProtocolError):
    """A line exceeds ``line.bytes.max`` before its newline."""

    code, name = 10, "LINE_TOO_LONG"


class BadFrame(ProtocolError):
    """A length prefix is invalid; the rest of the stream cannot be read."""

    name = "BAD_FRAME"


class BadMessage(ProtocolError):
    """A complete frame is inconsistent: it has an impossible length, text or number."""

    name = "BAD_MESSAGE"


class TooManyElements(ProtocolError):
    """The arrays of a Kafka request have more elements than ``request.elements.max``."""

    name = "TOO_MANY_ELEMENTS"


class BadHello(ProtocolError):
    """The first line of an ingress connection is a HELLO without a producer name."""

    name = "BAD_HELLO"


class UnexpectedTls(ProtocolError):
    """A TLS handshake arrived at a plain-text listener."""

    name = "UNEXPECTED_TLS"


class UnexpectedHttp(ProtocolError):
    """An HTTP request arrived at a line protocol listener; none of it was executed."""

    name = "UNEXPECTED_HTTP"


# --- CorruptionError ------------------------------------------------------------------------


class DamagedDigest(CorruptionError):
    """A key digest is damaged; compaction rebuilds it from the log."""

    name = "DAMAGED_DIGEST"


class DamagedRecords(CorruptionError):
    """Records in a range contradict their checksums; records before and after it are served."""

    code, name = 2, "DAMAGED_RECORDS"


# --- UnavailableError -----------------------------------------------------------------------


class DiskFull(UnavailableError):
    """No disk space is left for the append; reads go on, and writes resume once space is free."""

    code, name = 56, "DISK_FULL"


class TooManyOpenFiles(UnavailableError):
    """The process has reached its open file limit; raise ``ulimit -n`` or systemd's LimitNOFILE."""

    name = "TOO_MANY_OPEN_FILES"


class PartitionOffline(UnavailableError):
    """The partition's files are damaged or unreadable; ``cordwood segment verify`` shows where."""

    code, name, exit_code = 56, "PARTITION_OFFLINE", 5


class Overloaded(UnavailableError):
    """The bounded buffer in front of the writer is full."""

    code, name = 7, "OVERLOADED"


class ShuttingDown(UnavailableError):
    """The broker is draining and accepts no new work."""

    code, name = 7, "SHUTTING_DOWN"


class Indefinite(UnavailableError):
    """The metadata store failed before it confirmed a change; read the state before retrying."""

    name = "INDEFINITE"


# --- ConfigError ----------------------------------------------------------------------------


class DirectoryInUse(ConfigError):
    """Another process holds the data directory's lock."""

    name, exit_code = "DIRECTORY_IN_USE", 4


class UnknownFormat(ConfigError):
    """The data directory has the format version of another release."""

    name = "UNKNOWN_FORMAT"


class NotDataDirectory(ConfigError):
    """The path is not a cordwood data directory."""

    name, exit_code = "NOT_A_DATA_DIRECTORY", 3


class InvalidOption(ConfigError):
    """A Spark source or sink option does not exist or has an invalid value."""

    name = "INVALID_OPTION"
