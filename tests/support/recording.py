"""Recorded frames of Kafka clients, and replies read from a plain socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from struct import unpack_from

import kafka

from support.kafka_clients import Confluent, KafkaPython, Sent, create_topic


class Recorder:
    """A proxy that forwards both ways and records the client's bytes."""

    def __init__(self) -> None:
        """Start listening; set ``target`` before a client connects."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.target = ""
        self._streams: list[bytearray] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                host, _, port = self.target.rpartition(":")
                broker = socket.create_connection((host, int(port)))
                self._streams.append(bytearray())
                for ends in ((client, broker, self._streams[-1]), (broker, client, None)):
                    thread = threading.Thread(target=_pump, args=ends, daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def close(self) -> None:
        """Stop listening and wait until every connection has ended."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def frames(self) -> list[bytes]:
        """Return every complete request with its length prefix."""
        return [frame for stream in self._streams for frame in split(bytes(stream))]


def _pump(source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            if kept is not None:
                kept += data
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    source.close()


def split(stream: bytes) -> list[bytes]:
    """Return the complete frames at the start of a stream."""
    frames, position = [], 0
    while position + 4 <= len(stream):
        end = position + 4 + unpack_from(">i", stream, position)[0]
        if end > len(stream):
            break
        frames.append(stream[position:end])
        position = end
    return frames


def read_reply(listener: socket.socket) -> bytes:
    """Read one complete reply from a connection, without its length prefix."""
    (length,) = unpack_from(">i", _read_exactly(listener, 4))
    return _read_exactly(listener, length)


def _read_exactly(listener: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = listener.recv(count - len(data))
        assert more, "closed before the reply was whole"
        data += more
    return bytes(data)


def converse(address: str) -> None:
    """Use most request types with two clients: metadata, produce, fetch, offsets and a group."""
    create_topic(address, "talk", partitions=2)
    records = [Sent(b"value %d" % number, b"key", (("h", b"v"),)) for number in range(20)]
    for client in (Confluent(), KafkaPython()):
        client.send(address, "talk", records, codec="lz4")
        assert len(client.read(address, "talk", 20)) == 20
    consumer = kafka.KafkaConsumer(
        "talk", bootstrap_servers=address, group_id="talkers", auto_offset_reset="earliest"
    )
    while not consumer.poll(500):
        pass
    consumer.commit()
    consumer.close()
