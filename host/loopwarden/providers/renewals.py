"""Passing the renewals of a run's lease on to the supervisor of one agent."""

import contextlib
import socket
from collections.abc import Callable

from loopwarden.lease_view import LeaseView


class Renewals:
    """Tells one supervisor that the lease moved. Does nothing for a program without a lease."""

    def __init__(self, lease: LeaseView | None) -> None:
        self._lease = lease if lease is not None and lease.kills else None
        self._unsubscribe: Callable[[], None] | None = None

    def follow(self, link: socket.socket) -> None:
        """Begin, when the whole order was sent: a line in the midst of it would be taken for a part of it."""
        lease = self._lease
        if lease is None or self._unsubscribe is not None:
            return

        def tell() -> None:
            # The socket does not wait. It is full when a stopped supervisor has left hundreds of renewals unread, and
            # closed when there is none any more: a later renewal may find it better.
            with contextlib.suppress(OSError):
                link.send(f"until {lease.ends_at!r}\n".encode())

        self._unsubscribe = lease.subscribe(tell)
        tell()  # it may have moved since the order was written

    def close(self) -> None:
        """Nobody listens any more. Harmless when repeated."""
        if self._unsubscribe is not None:
            self._unsubscribe()
