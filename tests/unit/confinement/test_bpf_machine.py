"""The interpreter of filters agrees with the kernel, and the recorded numbers with the system's headers."""

import json
import platform
import random
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwarden_engine.confinement.seccomp import ALLOW, KILL_PROCESS, REFUSE_WITH_EPERM, build_filter
from loopwarden_engine.confinement.syscalls import ARCHITECTURES
from support.bpf_machine import ARITHMETIC, JUMPS, Instruction, is_permitted, run_program

TESTS = Path(__file__).parent.parent.parent
HERE = ARCHITECTURES[platform.machine()]
UNKNOWN_CALL = 999
ENOSYS, EPERM = 38, 1
ALL = 2**64 - 1


class Kernel:
    """A running `support.filter_lab`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.filter_lab"],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program: bytes, calls: list[list[int]]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"program": program.hex(), "calls": calls}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.close()


def pack(instructions: list[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


GUARD: list[Instruction] = [(0x20, 0, 0, 0), (0x15, 1, 0, UNKNOWN_CALL), (0x06, 0, 0, ALLOW)]
"""All calls but one are allowed: the process has to be able to leave."""
FOLD: list[Instruction] = [(0x07, 0, 0, 0), (0x74, 0, 0, 11), (0xAC, 0, 0, 0)]
ANSWER: list[Instruction] = [*FOLD, *FOLD, (0x54, 0, 0, 0xFFF), (0x44, 0, 0, 0x00050000), (0x16, 0, 0, 0)]
"""The accumulator as an error number, into which all its bits go."""


DATA = (0, 4, *range(16, 64, 4))
"""Of a call, without the instruction pointer, which is another one in each process."""


def random_program(source: random.Random) -> bytes:
    """A program that may end in many ways, or that reads scratch words which it did not store."""
    body: list[Instruction] = []
    length = source.randrange(5, 40)
    for index in range(length):
        left = length - index - 1
        constant = source.choice((0, 1, 31, 2**31, *(source.getrandbits(32) for _ in range(4))))
        kinds: list[Instruction] = [
            (0x20, 0, 0, source.choice(DATA)),
            (0x00, 0, 0, constant),
            (0x01, 0, 0, constant),
            (source.choice((0x60, 0x61, 0x02, 0x03)), 0, 0, source.randrange(16)),
            (source.choice((0x80, 0x81, 0x84, 0x07, 0x87)), 0, 0, 0),
            (0x05, 0, 0, source.randrange(left + 1)),
            (
                0x05 | source.choice(list(JUMPS)) | source.choice((0, 8)),
                source.randrange(left + 1),
                source.randrange(left + 1),
                constant,
            ),
            *[arithmetic(source, constant)] * 5,
        ]
        body.append(source.choice(kinds))
    return pack([*GUARD, *body, *ANSWER])


def arithmetic(source: random.Random, constant: int) -> Instruction:
    operation, of_x = source.choice(list(ARITHMETIC)), source.choice((0, 8))
    if operation in (0x60, 0x70) and not of_x:
        constant %= 32
    return 0x04 | operation | of_x, 0, 0, constant or 7


def observed(verdict: int) -> int | str:
    """What a caller of a call that does not exist sees of a verdict."""
    if verdict == ALLOW:
        return ENOSYS
    if verdict & 0xFFFF0000 == 0x00050000:
        return min(verdict & 0xFFFF, 4095)
    return "killed"


def test_random_programs_end_in_the_kernel_as_in_the_interpreter(kernel: Kernel) -> None:
    source = random.Random(5)
    answers: set[int | str] = set()
    refused = 0
    for _ in range(60):
        program = random_program(source)
        calls = [[UNKNOWN_CALL, *(source.getrandbits(64) for _ in range(6))] for _ in range(2)]
        found = kernel.run(program, calls)
        assert (found is not None) == is_permitted(program), program.hex()
        if found is None:
            refused += 1
            continue
        assert found == [observed(interpreted(program, call)) for call in calls], program.hex()
        answers |= set(found)
    assert len(answers) > 20
    assert refused > 3


def interpreted(program: bytes, call: list[int]) -> int:
    return run_program(program, number=call[0], architecture=HERE.audit_value, arguments=tuple(call[1:]))


REFUSED: list[tuple[str, list[Instruction]]] = [
    ("nothing", []),
    ("no end", [(0x20, 0, 0, 0)]),
    ("data that is not there", [(0x20, 0, 0, 64), (0x06, 0, 0, 0)]),
    ("data between words", [(0x20, 0, 0, 2), (0x06, 0, 0, 0)]),
    ("half a word", [(0x28, 0, 0, 0), (0x06, 0, 0, 0)]),
    ("a jump out", [(0x15, 1, 0, 0), (0x06, 0, 0, 0)]),
    ("a long jump out", [(0x05, 0, 0, 1), (0x06, 0, 0, 0)]),
    ("a division by zero", [(0x34, 0, 0, 0), (0x06, 0, 0, 0)]),
    ("a shift too far", [(0x64, 0, 0, 32), (0x06, 0, 0, 0)]),
    ("a seventeenth word", [(0x02, 0, 0, 16), (0x06, 0, 0, 0)]),
    ("a word that was not stored", [(0x60, 0, 0, 1), (0x06, 0, 0, 0)]),
    ("a remainder", [(0x94, 0, 0, 3), (0x06, 0, 0, 0)]),
    ("an instruction of packets", [(0xB1, 0, 0, 0), (0x06, 0, 0, 0)]),
]


@pytest.mark.parametrize("instructions", [row for _, row in REFUSED], ids=[name for name, _ in REFUSED])
def test_what_the_kernel_does_not_take_the_interpreter_does_not_either(
    kernel: Kernel, instructions: list[Instruction]
) -> None:
    program = pack(instructions)
    assert not is_permitted(program)
    assert kernel.run(program, [[UNKNOWN_CALL]]) is None


def sample_calls() -> list[list[int]]:
    """Calls whose verdicts differ, harmless in case that they are carried out."""
    numbers = HERE.numbers
    calls = [[number] for name, number in numbers.items() if name != "exit_group"]
    calls += [[number, 99, 0, 0, 0, 0, 0] for name, number in numbers.items() if name in ("close", "fstat", "ioctl")]
    for name in ("sendto", "recvfrom"):
        calls += [[numbers[name], 3, 0, 0, flags, address, 0] for flags in (0, 0x4000, 0x40) for address in (0, 1)]
        calls += [[numbers[name], fd, 0, 0, 0, 0, 0] for fd in (0, 2, 4, 3 + 2**32)]
    calls += [[numbers["mmap"], 0, 4096, rights, 0x22, ALL, 0] for rights in (0, 1, 3, 4, 7, 2**32)]
    calls += [[numbers["mmap"], 0, 4096, 1, 0x22, fd, 0] for fd in (2**32 - 1, 3, 0)]
    calls += [[numbers["futex"], 0, operation] for operation in (1, 129, 10 | 384, 2, 3, 6, 1 | 2**32)]
    calls += [[numbers["clock_gettime"], clock] for clock in (0, 1, 11, 12, 2**32 - 6, 2**32 + 1)]
    rest = sorted(set(range(460)) - set(numbers.values()))
    return [*calls, *([number] for number in random.Random(5).sample(rest, 40)), [0x40000000 + 39], [2**31]]


def test_the_real_filter_answers_in_the_kernel_as_in_the_interpreter(kernel: Kernel) -> None:
    program, calls = build_filter(HERE, 3), sample_calls()
    verdicts = [interpreted(program, call) for call in calls]
    assert set(verdicts) == {ALLOW, REFUSE_WITH_EPERM, KILL_PROCESS}
    for call, verdict, found in zip(calls, verdicts, kernel.run(program, calls), strict=True):
        if verdict == ALLOW:
            assert found not in ("killed", EPERM), call
        else:
            assert found == observed(verdict), call


HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}


@pytest.mark.parametrize("name", sorted(HEADERS))
def test_numbers_are_those_of_the_headers_where_there_are_headers(name: str) -> None:
    numbers = dict(ARCHITECTURES[name].numbers)
    for path in filter(Path.exists, map(Path, HEADERS[name])):
        text = path.read_text(encoding="utf-8")
        defined = dict(re.findall(r"#\s*define\s+__NR(?:3264)?_(\w+)\s+(\d+)", text))
        if name == "aarch64":
            defined["newfstatat"] = defined["fstatat"]  # one number, two names, by the width of the processor
        assert {call: int(defined[call]) for call in numbers} == numbers
