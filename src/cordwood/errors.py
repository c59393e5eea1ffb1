"""Every error cordwood raises, in two levels: a family and its members.

The family says who handles it (see the table in ``docs/errors.md``, which is generated from
these classes); the class attributes say what a client sees. A torn tail is a value, not an error,
and a failed assertion is our own mistake: neither belongs here, and assertions are never caught.

``code`` is Kafka's error code, ``name`` the word after ``ERR`` in the line protocol and in JSON
answers, ``http_status`` the status of those, ``exit_code`` what the command line returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class CordwoodError(Exception):
    """What every error of ours is; catch a family instead where you can handle one."""

    code: ClassVar[int] = -1
    name: ClassVar[str] = "UNKNOWN"
    retriable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init_subclass__(cls) -> None:
        """What the command line calls not found or a conflict is one for HTTP too."""
        if "http_status" not in cls.__dict__:
            cls.http_status = {3: 404, 4: 409}.get(cls.exit_code, cls.http_status)


class RequestError(CordwoodError):
    """The caller can fix it; the reply carries the code."""

    code = 42
    name = "INVALID_REQUEST"
    http_status = 400


class ProtocolError(CordwoodError):
    """The peer broke the protocol; the connection is told and closed."""

    code = 42
    name = "PROTOCOL"
    http_status = 400


class CorruptionError(CordwoodError):
    """Bytes contradict their checksum; the damaged range is refused and the rest serves."""

    code = 56
    name = "STORAGE"
    exit_code = 5


class UnavailableError(CordwoodError):
    """Disk, store or peer is away; the same request may succeed later."""

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
    """The topic or partition does not exist, and may not be created on sight."""

    code, name, retriable, exit_code = 3, "UNKNOWN_TOPIC", True, 3


class UnknownSegment(RequestError):
    """There is no such segment, or nothing of what was asked about it."""

    code, name, exit_code, http_status = 42, "UNKNOWN_SEGMENT", 3, 404


class TopicExists(RequestError):
    """A topic of that name is there already."""

    code, name, exit_code = 36, "TOPIC_EXISTS", 4


class InvalidTopic(RequestError):
    """The topic name is empty, too long or has characters outside ``[a-zA-Z0-9._-]``."""

    code, name = 17, "INVALID_TOPIC"


class InvalidPartitions(RequestError):
    """A partition count that cannot be: below one, or fewer than there are."""

    code, name = 37, "INVALID_PARTITIONS"


class InvalidReplication(RequestError):
    """A replication factor other than one, where there is one broker."""

    code, name = 38, "INVALID_REPLICATION_FACTOR"


class InvalidAssignment(RequestError):
    """A manual assignment that leaves out a partition or names a broker that is not there."""

    code, name = 39, "INVALID_REPLICA_ASSIGNMENT"


class InvalidConfig(RequestError):
    """A topic setting that does not exist or does not hold; nothing was changed."""

    code, name = 40, "INVALID_CONFIG"


class OffsetOutOfRange(RequestError):
    """The offset lies before the log's start or past its end."""

    code, name = 1, "OFFSET_OUT_OF_RANGE"


class CorruptBatch(RequestError):
    """A produced batch whose length, magic or checksum does not hold; nothing was stored."""

    code, name, retriable = 2, "CORRUPT_MESSAGE", True


class BatchTooLarge(RequestError):
    """A produced batch above ``max.message.bytes``, or ``message.inflated.bytes.max`` inflated."""

    code, name = 10, "MESSAGE_TOO_LARGE"


class InvalidRecord(RequestError):
    """Records no reader could decode, or the topic refuses: no key on a compacted topic."""

    code, name = 87, "INVALID_RECORD"


class InvalidTimestamp(RequestError):
    """A record's timestamp is one the topic refuses, or claims to be the broker's."""

    code, name = 32, "INVALID_TIMESTAMP"


class UnsupportedCompression(RequestError):
    """A codec that is unknown, or newer than the version of the request."""

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
    """No reader of that name is registered on the topic."""

    code, name, exit_code = 69, "UNKNOWN_READER", 3


class UnknownRoute(RequestError):
    """No binding of that kind and routing key."""

    code, name, exit_code = 42, "UNKNOWN_ROUTE", 3


class StaleManifest(RequestError):
    """A job's manifest names segments that are no longer the live ones; run the job again."""

    code, name, exit_code = 44, "STALE_MANIFEST", 4


class UnknownCommand(RequestError):
    """The line protocol has no such command; ``HELP`` lists those it has."""

    name = "UNKNOWN_COMMAND"


class InvalidManifest(RequestError):
    """A job's manifest or its staged files contradict themselves; nothing was swapped."""

    code, name = 44, "INVALID_MANIFEST"


class UnknownJob(RequestError):
    """A job whose staged files are not there."""

    code, name, exit_code = 42, "UNKNOWN_JOB", 3


class UnsafePath(RequestError):
    """A staged name that leads elsewhere: a link, no regular file, or another user's."""

    code, name, exit_code = 42, "UNSAFE_PATH", 7


class QuarantinedDelivery(RequestError):
    """An accepted delivery that cannot be finished; only its own query waits for it."""

    code, name, exit_code = 42, "QUARANTINED_DELIVERY", 4


class StaleDelivery(RequestError):
    """A delivery that does not follow on what was delivered before: another driver was quicker."""

    code, name, exit_code = 42, "STALE_DELIVERY", 4


class NotLeader(RequestError):
    """This broker does not lead the partition."""

    code, name, retriable = 6, "NOT_LEADER", True


class DataLoss(RequestError):
    """Records a Spark query has not read yet are gone from the log."""

    code, name, exit_code = 1, "DATA_LOSS", 5


class Compacted(RequestError):
    """A watch asked for changes older than the history kept; read again, watch from there."""

    name = "COMPACTED"


class ForeignHost(RequestError):
    """The ``Host`` of an HTTP request is a name this broker does not have."""

    name, http_status = "FOREIGN_HOST", 421


class ForeignOrigin(RequestError):
    """A web page of another site asks."""

    name, http_status = "FOREIGN_ORIGIN", 403


class UnknownPath(RequestError):
    """HTTP has no such path here."""

    name, exit_code = "NOT_FOUND", 3


class MethodNotAllowed(RequestError):
    """The path takes other HTTP methods."""

    name, http_status = "METHOD_NOT_ALLOWED", 405

    def __init__(self, message: str, allow: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.allow = tuple(allow)


class UnsupportedContentType(RequestError):
    """The route takes a body of another content type."""

    name, http_status = "UNSUPPORTED_CONTENT_TYPE", 415


# --- ProtocolError --------------------------------------------------------------------------


class LineTooLong(ProtocolError):
    """A line passed ``line.bytes.max`` before its newline came."""

    code, name = 10, "LINE_TOO_LONG"


class BadFrame(ProtocolError):
    """A length prefix that no frame can have; the stream cannot be read past it."""

    name = "BAD_FRAME"


class BadMessage(ProtocolError):
    """A whole frame whose inside contradicts itself: a length, text or number that cannot be."""

    name = "BAD_MESSAGE"


class TooManyElements(ProtocolError):
    """A Kafka request whose arrays have more elements than ``request.elements.max``."""

    name = "TOO_MANY_ELEMENTS"


class BadHello(ProtocolError):
    """The first line of an ingress connection is a HELLO that names no producer."""

    name = "BAD_HELLO"


class UnexpectedTls(ProtocolError):
    """A TLS handshake arrived at a listener that speaks plain text."""

    name = "UNEXPECTED_TLS"


class UnexpectedHttp(ProtocolError):
    """An HTTP request arrived at a listener that speaks lines; nothing of it was run."""

    name = "UNEXPECTED_HTTP"


# --- CorruptionError ------------------------------------------------------------------------


class DamagedDigest(CorruptionError):
    """A key digest that cannot be believed; compaction makes it again from the log."""

    name = "DAMAGED_DIGEST"


class DamagedRecords(CorruptionError):
    """Records of a range contradict their checksums; what lies before and after it is served."""

    code, name = 2, "DAMAGED_RECORDS"


# --- UnavailableError -----------------------------------------------------------------------


class DiskFull(UnavailableError):
    """No space is left for the append; reads go on, and writes again once space returns."""

    code, name = 56, "DISK_FULL"


class TooManyOpenFiles(UnavailableError):
    """The process may open no more files; ``ulimit -n`` or systemd's LimitNOFILE raises that."""

    name = "TOO_MANY_OPEN_FILES"


class PartitionOffline(UnavailableError):
    """The partition's files are damaged or unreadable; ``cordwood segment verify`` says where."""

    code, name, exit_code = 56, "PARTITION_OFFLINE", 5


class Overloaded(UnavailableError):
    """The bounded buffer before the writer is full."""

    code, name = 7, "OVERLOADED"


class ShuttingDown(UnavailableError):
    """The broker is draining and takes no new work."""

    code, name = 7, "SHUTTING_DOWN"


class Indefinite(UnavailableError):
    """The metadata store failed before saying whether a change holds; read before deciding."""

    name = "INDEFINITE"


# --- ConfigError ----------------------------------------------------------------------------


class DirectoryInUse(ConfigError):
    """Another process holds the data directory's lock."""

    name, exit_code = "DIRECTORY_IN_USE", 4


class UnknownFormat(ConfigError):
    """The data directory was written by a program with another format version."""

    name = "UNKNOWN_FORMAT"


class NotDataDirectory(ConfigError):
    """The path is not a cordwood data directory."""

    name, exit_code = "NOT_A_DATA_DIRECTORY", 3


class InvalidOption(ConfigError):
    """A Spark source or sink option that does not exist or does not hold."""

    name = "INVALID_OPTION"
