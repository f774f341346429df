"""What host and launcher tell each other: small JSON objects over a seqpacket socket, one a packet.

The host asks, with the worker's end of the channel attached:

    {"op": "fork", "id": 7, "memoryBytes": n, "cpuSeconds": n, "walls": [...], "required": [...]}
    {"op": "probe", ...}                      the same, for a worker that reports its walls and waits for its end

The launcher reports, with the pidfd attached to the first:

    {"op": "forked", "id": 7, "pid": n}
    {"op": "failed", "id": 7, "reason": "..."}
    {"op": "exited", "id": 7, "status": n}    once the process is reaped; minus the signal's number when killed

Nothing of a run's content passes here: later workers copy the launcher's memory.
"""

import array
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from loopwarden_engine.confinement import WALLS, WorkerLimits

__all__ = [
    "CONTROL_BYTES",
    "WALL_STATUS_FIRST",
    "ControlError",
    "Exited",
    "Failed",
    "ForkRequest",
    "Forked",
    "LauncherReport",
    "pack_report",
    "pack_request",
    "receive_packet",
    "send_packet",
    "unpack_report",
    "unpack_request",
]

CONTROL_BYTES: Final = 4096
"""The longest packet of either side."""

WALL_STATUS_FIRST: Final = 80
"""A worker whose required wall number n of `WALLS` did not stand leaves with this status plus n, having run nothing."""

_DESCRIPTOR_BYTES: Final = array.array("i").itemsize
_MOST_DESCRIPTORS: Final = 1
_LONGEST_REASON_CHARS: Final = 200
_LARGEST_NUMBER: Final = 2**63 - 1


class ControlError(Exception):
    """The other side sent something that is no message of this protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """One worker, please. `is_probe`: one that only reports its walls."""

    id: int
    limits: WorkerLimits
    walls: frozenset[str]
    required: frozenset[str]
    is_probe: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """Worker `id` exists; its pidfd is attached."""

    id: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Worker `id` could not be made."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """Worker `id` is gone and reaped. `status` as `subprocess` gives it: minus the signal's number when killed."""

    id: int
    status: int


LauncherReport = Forked | Failed | Exited


def pack_request(request: ForkRequest) -> bytes:
    """The packet of a request."""
    return _pack(
        {
            "op": "probe" if request.is_probe else "fork",
            "id": request.id,
            "memoryBytes": request.limits.memory_bytes,
            "cpuSeconds": request.limits.cpu_seconds,
            "walls": sorted(request.walls),
            "required": sorted(request.required),
        }
    )


def unpack_request(packet: bytes) -> ForkRequest:
    """Read a request. Raises `ControlError`."""
    message = _unpack(packet)
    if message.get("op") not in ("fork", "probe"):
        raise ControlError("unknown operation")
    limits = WorkerLimits(
        memory_bytes=_number(message, "memoryBytes", 1), cpu_seconds=_number(message, "cpuSeconds", 1)
    )
    return ForkRequest(
        id=_number(message, "id", 0),
        limits=limits,
        walls=_wall_names(message, "walls"),
        required=_wall_names(message, "required"),
        is_probe=message["op"] == "probe",
    )


def pack_report(report: LauncherReport) -> bytes:
    """The packet of a report."""
    match report:
        case Forked():
            return _pack({"op": "forked", "id": report.id, "pid": report.pid})
        case Failed():
            return _pack({"op": "failed", "id": report.id, "reason": report.reason[:_LONGEST_REASON_CHARS]})
        case Exited():
            return _pack({"op": "exited", "id": report.id, "status": report.status})


def unpack_report(packet: bytes) -> LauncherReport:
    """Read a report. Raises `ControlError`."""
    message = _unpack(packet)
    match message.get("op"):
        case "forked":
            return Forked(id=_number(message, "id", 0), pid=_number(message, "pid", 1))
        case "failed":
            reason = message.get("reason")
            if not isinstance(reason, str):
                raise ControlError("reason is missing")
            return Failed(id=_number(message, "id", 0), reason=reason[:_LONGEST_REASON_CHARS])
        case "exited":
            return Exited(id=_number(message, "id", 0), status=_number(message, "status", -_LARGEST_NUMBER))
        case _:
            raise ControlError("unknown operation")


def send_packet(control: socket.socket, packet: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one packet with descriptors attached. Raises `OSError`, `BlockingIOError` when the other side is slow.

    Here and below not the functions of `socket` for this: they drop their flags, and a broken socket must not raise a
    signal in an embedding program, nor may a descriptor be inherited by what it starts.
    """
    attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    control.sendmsg([packet], attached, socket.MSG_NOSIGNAL)


def receive_packet(control: socket.socket) -> tuple[bytes, list[int]]:
    """The next packet, empty when the other side hung up, and its descriptors, none inheritable. Raises `OSError`."""
    room = socket.CMSG_LEN(_MOST_DESCRIPTORS * _DESCRIPTOR_BYTES)
    packet, attachments, _, _ = control.recvmsg(CONTROL_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in attachments:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
    return packet, list(descriptors)


def _pack(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def _unpack(packet: bytes) -> dict[str, Any]:
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError):
        raise ControlError("not JSON") from None
    if not isinstance(message, dict):
        raise ControlError("not an object")
    return message


def _number(message: dict[str, Any], name: str, smallest: int) -> int:
    value = message.get(name)
    if type(value) is not int or not smallest <= value <= _LARGEST_NUMBER:
        raise ControlError(f"{name} is not a number that can be used")
    return value


def _wall_names(message: dict[str, Any], name: str) -> frozenset[str]:
    value = message.get(name)
    if not isinstance(value, list) or not all(isinstance(wall, str) and wall in WALLS for wall in value):
        raise ControlError(f"{name} is not a list of walls")
    return frozenset(value)
