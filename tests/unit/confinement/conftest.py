"""A machine for classic BPF, as seccomp runs it, written from the kernel's description and not from our assembler."""

import struct
from collections.abc import Callable

import pytest

Verdict = Callable[..., int]


def run_program(program: bytes, *, number: int, architecture: int, arguments: tuple[int, ...]) -> int:
    """Run `program` over one `seccomp_data` and return its verdict."""
    padded = (arguments + (0,) * 6)[:6]
    data = struct.pack(
        "<iIQ6Q", number, architecture, 0x7F0000000000, *(value & 0xFFFFFFFFFFFFFFFF for value in padded)
    )
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator = 0
    position = 0
    while True:
        code, if_true, if_false, constant = instructions[position]
        position += 1
        match code:
            case 0x20:  # ld [k]
                assert constant % 4 == 0
                accumulator = struct.unpack_from("<I", data, constant)[0]
            case 0x54:  # and #k
                accumulator &= constant
            case 0x15:  # jeq
                position += if_true if accumulator == constant else if_false
            case 0x35:  # jge
                position += if_true if accumulator >= constant else if_false
            case 0x45:  # jset
                position += if_true if accumulator & constant else if_false
            case 0x06:  # ret #k
                return int(constant)
            case _:
                raise AssertionError(f"instruction {code:#x} is not one that our filters use")


@pytest.fixture
def run_filter() -> Verdict:
    """`run_program`."""
    return run_program
