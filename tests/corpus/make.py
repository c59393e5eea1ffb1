"""Writes ``lines/*.bin``: inputs that line listeners must survive. Run it after a change.

Each file is one connection's bytes. They are kept as files so that any client can be fed them:
``nc -N 127.0.0.1 5673 < tests/corpus/lines/tls_hello.bin``.
"""

from __future__ import annotations

from pathlib import Path

CASES: dict[str, bytes] = {
    "empty_lines": b"\n\n\r\n\n",
    "no_newline": b"test.k|17|1|never ended",
    "only_bars": b"||||||||\n|||\n||\n|\n",
    "bad_numbers": b"k|x|1|p\nk|1|x|p\nk|99999999999999999999|1|p\nk|1|-1|p\n",
    "long_key": b"k" * 250 + b"|1|1|p\n",
    "control_key": b"a\tb|1|1|p\n\x7f|1|1|p\n",
    "nul_fourth": b"abc\0|1|1|p\n",
    "nul_everywhere": bytes(64) + b"\n",
    "not_utf8": b"\xff\xfe\xfd|1|1|\x80\x81\nGET_ACK \xff\n",
    "hello_late": b"k|1|1|p\nHELLO late\nk|1|2|p\n",
    "hello_bad": b"HELLO\n",
    "hello_wrap": b"HELLO wrap\nk|1|2147483647|a\nk|1|0|b\nk|1|1|c\nk|1|1|again\n",
    "hello_gap": b"HELLO gap\nk|1|1|a\nk|1|100|b\nk|1|50|old\nk|1|101|c\n",
    "tls_hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2,
    "tls_like_text": b"\x16\x03\x01 no handshake|1|1|p\n",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "kafka_api_versions": b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff",
    "frame_empty": bytes(4) + b"\x07\0\0\0GET_ACK",
    "frame_cut": b"\x40\0\0\0only a little",
    "frame_huge": b"\x01\0\0\0x\xff\xff\xff\x7f" + b"y" * 1000,
    "frame_negative": b"\x01\0\0\0x\xff\xff\xff\xff",
    "frame_then_text": b"\x07\0\0\0GET_ACKGET_ACK\n",
    "commands_wrong": b"PUT\nGET\nACK a b c\nSUBSCRIBE\nRESET t r -1\nCONFIGURE t =\nCUT a b\n",
    "commands_right": b"PUT t a\nGET t\nSTATE t\nREADERS\nMETRICS\nHELP\nQUIT\nPUT t never\n",
    "subscribe_twice": b"PUT t a\nSUBSCRIBE t FROM_START\nSUBSCRIBE t\nGET_ACK t\n",
    "put_spaces": b"PUT t   \nPUT  t x\nput t \r\n",
    "escape_like": b"PUT t \\N\nPUT t \\e\nGET t\nGET t\n",
}

if __name__ == "__main__":
    room = Path(__file__).parent / "lines"
    room.mkdir(exist_ok=True)
    for name, data in CASES.items():
        (room / f"{name}.bin").write_bytes(data)
