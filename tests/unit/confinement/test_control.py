"""What host and launcher tell each other survives the trip, and nothing else is read."""

import json

import pytest

from loopwarden_engine.confinement import WALLS, WorkerLimits
from loopwarden_engine.control import (
    CONTROL_BYTES,
    ControlError,
    Exited,
    Failed,
    Forked,
    ForkRequest,
    LauncherReport,
    pack_report,
    pack_request,
    unpack_report,
    unpack_request,
)

REQUEST = ForkRequest(
    id=7,
    limits=WorkerLimits(memory_bytes=2**40, cpu_seconds=600),
    walls=frozenset(WALLS),
    required=frozenset({"seccomp"}),
    is_probe=False,
)


@pytest.mark.parametrize("is_probe", [False, True])
def test_a_request_survives_the_trip(is_probe: bool) -> None:
    request = ForkRequest(
        id=1, limits=REQUEST.limits, walls=REQUEST.walls, required=REQUEST.required, is_probe=is_probe
    )
    packet = pack_request(request)
    assert unpack_request(packet) == request
    assert len(packet) < CONTROL_BYTES


@pytest.mark.parametrize(
    "report",
    [Forked(id=3, pid=4711), Failed(id=3, reason="no memory"), Exited(id=3, status=-9), Exited(id=0, status=83)],
)
def test_a_report_survives_the_trip(report: LauncherReport) -> None:
    assert unpack_report(pack_report(report)) == report


def test_a_reason_of_any_length_fits_into_a_packet() -> None:
    packet = pack_report(Failed(id=1, reason="ü" * 100_000))
    assert len(packet) < CONTROL_BYTES
    assert unpack_report(packet) == Failed(id=1, reason="ü" * 200)


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 4000,
        b'{"op":"leave","id":1}',
        b'{"op":"forked","id":1}',
        b'{"op":"forked","id":1,"pid":0}',
        b'{"op":"forked","id":true,"pid":5}',
        b'{"op":"exited","id":1,"status":1.5}',
        b'{"op":"exited","id":-1,"status":1}',
        b'{"op":"failed","id":1,"reason":5}',
    ],
)
def test_anything_else_is_no_report(packet: bytes) -> None:
    with pytest.raises(ControlError):
        unpack_report(packet)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "forked"},
        {"id": None},
        {"id": "7"},
        {"memoryBytes": 0},
        {"memoryBytes": 2**63},
        {"cpuSeconds": 0},
        {"cpuSeconds": 1.5},
        {"walls": "seccomp"},
        {"walls": ["moat"]},
        {"required": [1]},
        {"required": None},
    ],
)
def test_a_request_with_one_wrong_member_is_no_request(change: dict[str, object]) -> None:
    message = json.loads(pack_request(REQUEST)) | change
    with pytest.raises(ControlError):
        unpack_request(json.dumps(message).encode())
