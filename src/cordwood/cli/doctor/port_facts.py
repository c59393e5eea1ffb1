"""The facts about the addresses that a broker would listen on, and who holds those in use."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cordwood.address import Address, parse_address
from cordwood.config import BrokerConfig
from cordwood.decide.doctor.facts import PortFacts

LISTENERS = ("kafka", "ingress", "control", "http")
LISTENING = "0A"  # TCP_LISTEN, as /proc/net/tcp writes it


def port_facts(config: BrokerConfig) -> Iterator[PortFacts]:
    """Try to bind every address of the settings, and release it at once."""
    for name in LISTENERS:
        for setting in (name, f"{name}.tls"):
            text = str(getattr(config, setting.replace(".", "_")))
            for address in filter(None, (each.strip() for each in text.split(","))):
                if address != "off":
                    yield probe(setting, parse_address(address, setting=setting))


def probe(setting: str, address: Address) -> PortFacts:
    """Bind one address as a broker would."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.listen(1)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        pid = holder_pid(address.port) if is_taken else None
        why = error.strerror or str(error)
        return PortFacts(setting, str(address), why, is_taken, pid, command_of(pid))
    return PortFacts(setting, str(address), None)


def holder_pid(port: int) -> int | None:
    """The process that listens on a port; None if it is another user's."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for directory in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):
            for entry in list(directory.iterdir()):
                with suppress(OSError):
                    if str(entry.readlink()) in sockets:
                        return int(directory.parent.name)
    return None


def _listening(port: int) -> Iterator[str]:
    """The inodes of the sockets that listen on a port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                    yield words[9]


def command_of(pid: int | None) -> str:
    """The name of a process; empty if it is not known."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() if pid else ""
    except OSError:
        return ""
