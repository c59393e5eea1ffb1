"""Every error cordwood raises, in two levels: families and their members.

The family determines who handles the error (see the table in ``docs/errors.md``, which is generated
from these classes); the class attributes determine what a client sees. A torn tail is a value, not
an error. A failed assertion is a bug in cordwood and is never caught. Neither belongs here.

Each class is a row of one table. ``code`` is Kafka's error code, ``name`` the word after ``ERR`` in
the line protocol and in JSON replies, ``retriable`` whether the same request may succeed later,
``http_status`` the status of an HTTP reply and ``exit_code`` that of the command line. No column is
derived from another: a member that leaves one out takes it from its family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from cordwood.codes import Code


class RecordError(NamedTuple):
    """A record that is refused, by its position in its batch, and why."""

    batch_index: int
    reason: str


class CordwoodError(Exception):
    """The base of all cordwood errors; catch a family instead where you can handle one."""

    code: ClassVar[Code] = Code.UNKNOWN_SERVER_ERROR
    name: ClassVar[str] = "UNKNOWN"
    retriable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1


class RequestError(CordwoodError):
    """The client can fix it; the reply carries the code."""

    code = Code.INVALID_REQUEST
    name, http_status = "INVALID_REQUEST", 400


class ProtocolError(CordwoodError):
    """The peer broke the protocol; it gets an error and its connection is closed."""

    code = Code.INVALID_REQUEST
    name, http_status = "PROTOCOL", 400


class CorruptionError(CordwoodError):
    """Bytes contradict their checksum; the damaged range is refused and the rest is served."""

    code = Code.KAFKA_STORAGE_ERROR
    name, exit_code = "STORAGE", 5


class UnavailableError(CordwoodError):
    """The disk, the metadata store or a peer is unavailable; the same request may succeed later."""

    code = Code.REQUEST_TIMED_OUT
    name = "UNAVAILABLE"
    retriable = True
    exit_code = 6
    http_status = 503


class ConfigError(CordwoodError):
    """The operator can fix it; start-up stops and names the setting."""

    code = Code.INVALID_CONFIG
    name, exit_code = "CONFIG", 2
    http_status = 400


# --- RequestError ---------------------------------------------------------------------------


class UnknownTopic(RequestError):
    """The topic or partition does not exist, and may not be created automatically."""

    code, name, retriable = Code.UNKNOWN_TOPIC_OR_PARTITION, "UNKNOWN_TOPIC", True
    http_status, exit_code = 404, 3


class UnknownTopicId(RequestError):
    """No topic has this id: it was deleted, or deleted and created again under its name."""

    code, name, retriable = Code.UNKNOWN_TOPIC_ID, "UNKNOWN_TOPIC_ID", True
    http_status, exit_code = 404, 3


class UnknownSegment(RequestError):
    """The segment does not exist, or lacks the information that was requested."""

    name, http_status, exit_code = "UNKNOWN_SEGMENT", 404, 3


class TopicExists(RequestError):
    """A topic with this name already exists."""

    code, name = Code.TOPIC_ALREADY_EXISTS, "TOPIC_EXISTS"
    http_status, exit_code = 409, 4


class InvalidTopic(RequestError):
    """The topic name is empty, too long or has characters outside ``[a-zA-Z0-9._-]``."""

    code, name = Code.INVALID_TOPIC_EXCEPTION, "INVALID_TOPIC"
    exit_code = 2


class InvalidPartitions(RequestError):
    """The partition count is below one, or lower than the current count."""

    code, name = Code.INVALID_PARTITIONS, "INVALID_PARTITIONS"
    exit_code = 2


class InvalidReplication(RequestError):
    """The replication factor is not one, and there is only one broker."""

    code, name = Code.INVALID_REPLICATION_FACTOR, "INVALID_REPLICATION_FACTOR"


class InvalidAssignment(RequestError):
    """A manual assignment omits a partition or names a broker that does not exist."""

    code, name = Code.INVALID_REPLICA_ASSIGNMENT, "INVALID_REPLICA_ASSIGNMENT"


class InvalidConfig(RequestError):
    """A topic setting does not exist or has an invalid value; nothing was changed."""

    code, name = Code.INVALID_CONFIG, "INVALID_CONFIG"
    exit_code = 2


class OffsetOutOfRange(RequestError):
    """The offset lies before the log start or past the log end."""

    code, name = Code.OFFSET_OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE"


class CorruptBatch(RequestError):
    """A produced batch has a wrong length, magic or checksum; nothing was stored."""

    code, name, retriable = Code.CORRUPT_MESSAGE, "CORRUPT_MESSAGE", True


class BatchTooLarge(RequestError):
    """A produced batch exceeds ``max.message.bytes`` or ``message.inflated.bytes.max`` inflated."""

    code, name = Code.MESSAGE_TOO_LARGE, "MESSAGE_TOO_LARGE"


class InvalidRecord(RequestError):
    """Records cannot be decoded, or the topic refuses them: no key on a compacted topic."""

    code, name = Code.INVALID_RECORD, "INVALID_RECORD"

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = tuple(record_errors)


class InvalidTimestamp(RequestError):
    """The topic refuses a record's timestamp, or the batch claims broker timestamps."""

    code, name = Code.INVALID_TIMESTAMP, "INVALID_TIMESTAMP"

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = tuple(record_errors)


class UnsupportedCompression(RequestError):
    """The codec is unknown, or newer than the version of the request allows."""

    code, name = Code.UNSUPPORTED_COMPRESSION_TYPE, "UNSUPPORTED_COMPRESSION"


class PolicyViolation(RequestError):
    """The topic's policy forbids the request."""

    code, name = Code.POLICY_VIOLATION, "POLICY_VIOLATION"
    http_status, exit_code = 409, 4


class OutOfOrderSequence(RequestError):
    """An idempotent producer skipped a sequence number."""

    code, name = Code.OUT_OF_ORDER_SEQUENCE_NUMBER, "OUT_OF_ORDER_SEQUENCE"


class StaleProducer(RequestError):
    """A newer instance of this producer has taken over (its epoch is higher)."""

    code, name = Code.INVALID_PRODUCER_EPOCH, "PRODUCER_FENCED"
    http_status, exit_code = 409, 4


class InvalidTransaction(RequestError):
    """The batch or marker does not fit the state of its producer's transaction."""

    code, name = Code.INVALID_TXN_STATE, "INVALID_TXN_STATE"


class UnknownReader(RequestError):
    """No reader with this name is registered on the topic."""

    code, name = Code.GROUP_ID_NOT_FOUND, "UNKNOWN_READER"
    http_status, exit_code = 404, 3


class UnknownRoute(RequestError):
    """There is no binding of this kind for this routing key."""

    name, http_status, exit_code = "UNKNOWN_ROUTE", 404, 3


class StaleManifest(RequestError):
    """A job's manifest names segments that were replaced or deleted since; run the job again."""

    code, name = Code.POLICY_VIOLATION, "STALE_MANIFEST"
    http_status, exit_code = 409, 4


class UnknownCommand(RequestError):
    """The line protocol has no such command; ``HELP`` lists the commands."""

    name = "UNKNOWN_COMMAND"


class InvalidManifest(RequestError):
    """A job's manifest or its staged files are inconsistent; nothing was swapped."""

    code, name = Code.POLICY_VIOLATION, "INVALID_MANIFEST"


class UnknownJob(RequestError):
    """The job has no staged files."""

    name, http_status, exit_code = "UNKNOWN_JOB", 404, 3


class UnsafePath(RequestError):
    """A staged file is a link, not a regular file, or owned by another user."""

    name, exit_code = "UNSAFE_PATH", 7


class QuarantinedDelivery(RequestError):
    """An accepted delivery cannot be completed; only its own query is blocked."""

    name, http_status, exit_code = "QUARANTINED_DELIVERY", 409, 4


class StaleDelivery(RequestError):
    """A delivery does not follow the query's last one: another driver delivered first."""

    name, http_status, exit_code = "STALE_DELIVERY", 409, 4


class NotLeader(RequestError):
    """This broker does not lead the partition."""

    code, name, retriable = Code.NOT_LEADER_OR_FOLLOWER, "NOT_LEADER", True


class DataLoss(RequestError):
    """Records that a Spark query has not read yet were deleted from the log."""

    code, name = Code.OFFSET_OUT_OF_RANGE, "DATA_LOSS"
    exit_code = 5


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

    name, http_status, exit_code = "NOT_FOUND", 404, 3


class MethodNotAllowed(RequestError):
    """The path does not support this HTTP method."""

    name, http_status = "METHOD_NOT_ALLOWED", 405

    def __init__(self, message: str, allow: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.allow = tuple(allow)


class UnsupportedContentType(RequestError):
    """The path requires a body of another content type."""

    name, http_status = "UNSUPPORTED_CONTENT_TYPE", 415


class TlsError(RequestError):
    """TLS with the broker failed: a certificate, or a listener that does (not) use TLS."""

    name, exit_code = "TLS", 6


class WrongListener(RequestError):
    """The address is that of another listener, or the broker has no listener that is needed."""

    name, exit_code = "WRONG_LISTENER", 6


# --- ProtocolError --------------------------------------------------------------------------


class LineTooLong(ProtocolError):
    """A line exceeds ``line.bytes.max`` before its newline."""

    code, name = Code.MESSAGE_TOO_LARGE, "LINE_TOO_LONG"


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

    code, name = Code.CORRUPT_MESSAGE, "DAMAGED_RECORDS"


# --- UnavailableError -----------------------------------------------------------------------


class DiskFull(UnavailableError):
    """No disk space is left for the append; reads go on, and writes resume once space is free."""

    code, name = Code.KAFKA_STORAGE_ERROR, "DISK_FULL"


class TooManyOpenFiles(UnavailableError):
    """The process has reached its open file limit; raise ``ulimit -n`` or systemd's LimitNOFILE."""

    name = "TOO_MANY_OPEN_FILES"


class NotEnoughReplicas(UnavailableError):
    """Fewer replicas are in sync than ``min.insync.replicas`` of the topic asks for."""

    code, name = Code.NOT_ENOUGH_REPLICAS, "NOT_ENOUGH_REPLICAS"


class PartitionOffline(UnavailableError):
    """The partition's files are damaged or unreadable; ``cordwood segment verify`` shows where."""

    code, name = Code.KAFKA_STORAGE_ERROR, "PARTITION_OFFLINE"
    exit_code = 5


class Overloaded(UnavailableError):
    """The bounded buffer in front of the writer is full."""

    name = "OVERLOADED"


class ShuttingDown(UnavailableError):
    """The broker is draining and accepts no new work."""

    name = "SHUTTING_DOWN"


class Indefinite(UnavailableError):
    """The metadata store failed before it confirmed a change; read the state before retrying."""

    name = "INDEFINITE"


# --- ConfigError ----------------------------------------------------------------------------


class DirectoryInUse(ConfigError):
    """Another process holds the data directory's lock."""

    name, http_status, exit_code = "DIRECTORY_IN_USE", 409, 4


class UnknownFormat(ConfigError):
    """The data directory has the format version of another release."""

    name = "UNKNOWN_FORMAT"


class NotDataDirectory(ConfigError):
    """The path is not a cordwood data directory."""

    name, http_status, exit_code = "NOT_A_DATA_DIRECTORY", 404, 3


class InvalidOption(ConfigError):
    """A Spark source or sink option does not exist or has an invalid value."""

    name = "INVALID_OPTION"


def error_classes() -> list[type[CordwoodError]]:
    """Return every row of the table: each family, followed by its members.

    A subclass that another module derives, to carry more data, is not a row of its own.
    """
    families = CordwoodError.__subclasses__()
    rows = [row for family in families for row in (family, *family.__subclasses__())]
    return [row for row in rows if row.__module__ == __name__]
