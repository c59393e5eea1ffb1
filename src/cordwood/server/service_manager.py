"""Tells systemd about the broker: ready, stopping, alive (``sd_notify``, ``Type=notify``).

Without ``NOTIFY_SOCKET`` in the environment nothing is sent. A message that cannot be sent is
logged and never stops the broker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import MutableMapping

logger = logging.getLogger("cordwood.server")

BEATS = 3  # watchdog messages per period, so that one late message does not count as a hang


class ServiceManager:
    """The datagram socket of the service manager that started this process, if there is one."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        """An address that begins with @ is an abstract socket, as systemd writes it."""
        self._address = address.replace("@", "\0", 1) if address else None
        self.watchdog_s = watchdog_s if address else None

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """Read and remove systemd's variables: child processes must not notify it."""
        address = environment.pop("NOTIFY_SOCKET", None)
        period_us = environment.pop("WATCHDOG_USEC", "")
        is_ours = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watches = is_ours and period_us.isdecimal() and int(period_us) > 0
        return cls(address, int(period_us) / 1e6 if watches else None)

    def ready(self, addresses: dict[str, list[str]]) -> None:
        """Report that every listener is open."""
        open_at = ", ".join(f"{name} {','.join(bound)}" for name, bound in addresses.items())
        self._send(f"READY=1\nSTATUS=serving {open_at}")

    def stopping(self) -> None:
        """Report that the broker drains its connections and closes the log."""
        self._send("STOPPING=1\nSTATUS=stopping")

    async def keep_alive(self) -> None:
        """Report from the event loop that it turns; returns at once if nobody asked for it."""
        while self.watchdog_s is not None:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / BEATS)

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode(), self._address)
        except OSError as error:
            logger.warning("service_manager.unreachable %s", error.strerror)
