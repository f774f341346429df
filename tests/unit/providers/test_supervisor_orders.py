"""What the host asks of a supervisor, and what the supervisor reads."""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopwarden.lease_view import LeaseView, boot_seconds
from loopwarden.providers.order import Order
from loopwarden.providers.renewals import Renewals
from loopwarden.providers.supervision.lease import ENDLESS
from loopwarden.providers.supervision.supervisor import HostLink


@dataclass
class Ends:
    """Both ends of the socket between a host and a supervisor."""

    host: socket.socket
    far: socket.socket
    supervisor: HostLink


@pytest.fixture
def ends() -> Iterator[Ends]:
    near, far = socket.socketpair()
    near.settimeout(0)
    host = os.pidfd_open(os.getpid())
    yield Ends(near, far, HostLink(far.fileno(), host))
    os.close(host)
    near.close()
    far.close()


def order(**changes: Any) -> Order:
    """An order with something in every field."""
    fields: dict[str, Any] = {
        "path": "/bin/agent",
        "arguments": ["agent", "", "é"],
        "environment": {"A": "1=2", "B": ""},
        "folder": Path("/work place"),
        "private_folders": [Path("/one"), Path("/two")],
        "grace_seconds": 2.5,
        "lease": None,
    }
    return Order(**(fields | changes))


def test_a_supervisor_reads_what_the_host_has_ordered(ends: Ends) -> None:
    ends.host.send(order(lease=LeaseView(12345.678901234567, kill_grace_seconds=3.0)).encode())
    read = ends.supervisor.read_order()
    assert (read.grace_seconds, read.program, read.folder) == (2.5, b"/bin/agent", b"/work place")
    assert read.private_folders == [b"/one", b"/two"]
    assert read.arguments == [b"agent", b"", "é".encode()]
    assert read.environment == {b"A": b"1=2", b"B": b""}
    assert (read.lease.deadline, read.lease.grace_seconds) == (12345.678901234567, 1.5)


@pytest.mark.parametrize("lease", [None, LeaseView(1.0, kills=False)], ids=["no store", "lease_lost = hold"])
def test_an_order_without_a_deadline_never_is_over(ends: Ends, lease: LeaseView | None) -> None:
    ends.host.send(order(lease=lease).encode())
    assert ends.supervisor.read_order().lease.deadline == ENDLESS
    assert not ends.supervisor.is_lease_over()


@pytest.mark.parametrize("changes", [{"arguments": ["a\0b"]}, {"environment": {"A": "\0"}}, {"path": "/bin\0/a"}])
def test_an_order_cannot_hold_a_zero_character(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="zero character"):
        order(**changes).encode()


def test_a_renewal_that_waits_to_be_read_counts_before_the_start(ends: Ends) -> None:
    lease = LeaseView(boot_seconds() - 1)
    ends.host.send(order(lease=lease).encode())
    renewals = Renewals(lease)
    renewals.follow(ends.host)
    lease.renew(boot_seconds() - 0.5)
    lease.renew(boot_seconds() + 600)
    link = ends.supervisor
    assert link.read_order().lease.is_over()
    assert not link.is_lease_over()
    assert link.lease.deadline == lease.ends_at


def test_a_lease_is_over_before_the_start_also_when_the_host_says_nothing_or_is_gone(ends: Ends) -> None:
    ends.host.send(order(lease=LeaseView(boot_seconds() - 1)).encode())
    link = ends.supervisor
    link.read_order()
    assert link.is_lease_over()
    ends.host.close()
    assert link.is_lease_over()
    assert link.gone


def test_renewals_and_the_end_travel_on_one_socket_and_nothing_follows_the_last_word(ends: Ends) -> None:
    lease = LeaseView(100.0)
    ends.host.send(order(lease=lease).encode())
    link = ends.supervisor
    link.read_order()
    renewals = Renewals(lease)
    lease.renew(101.0)
    renewals.follow(ends.host)
    renewals.follow(ends.host)
    assert link.read_request() is None
    assert link.lease.deadline == 101.0
    lease.renew(102.0)
    ends.host.send(b"end 7.5\nend 3.0\nunt")
    assert link.read_request() == 3.0
    assert link.lease.deadline == 102.0
    ends.host.send(b"il 103.0\n")
    assert link.read_request() is None
    assert link.lease.deadline == 103.0
    renewals.close()
    renewals.close()
    lease.renew(104.0)
    with pytest.raises(BlockingIOError):
        ends.far.recv(16, socket.MSG_DONTWAIT)
