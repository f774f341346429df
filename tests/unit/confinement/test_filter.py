"""The seccomp filters of both architectures, in an interpreter: every verdict is the one that the page documents.

The expectations are stated here once more, from the page and from the kernel's own numbers, not from the policy.
"""

import itertools
import struct
from collections.abc import Callable, Iterator

import pytest

from loopwarden_engine.confinement.seccomp import build_filter
from loopwarden_engine.confinement.syscalls import AARCH64, ARCHITECTURES, X86_64, Architecture
from support.bpf_machine import is_permitted, pack_data, run_instructions
from support.filter_table import documented_calls, make_table, read_table

ALLOW, EPERM, KILL = 0x7FFF0000, 0x00050001, 0x80000000
CHANNEL_FD = 3
LAST_NUMBER = 1024
LOW, ALL = 2**32 - 1, 2**64 - 1
Arguments = tuple[int, ...]

both = pytest.mark.parametrize("architecture", [X86_64, AARCH64], ids=lambda architecture: architecture.name)

# fmt: off
RECORDED = {
    # linux/arch/x86/entry/syscalls/syscall_64.tbl
    "x86_64": {
        "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "lseek": 8, "mmap": 9, "munmap": 11, "brk": 12,
        "ioctl": 16, "access": 21, "mremap": 25, "madvise": 28, "sendto": 44, "recvfrom": 45,
        "getcwd": 79, "readlink": 89, "futex": 202, "clock_gettime": 228, "exit_group": 231, "openat": 257,
        "newfstatat": 262, "readlinkat": 267, "faccessat": 269, "statx": 332, "openat2": 437, "faccessat2": 439,
    },
    # linux/include/uapi/asm-generic/unistd.h
    "aarch64": {
        "getcwd": 17, "ioctl": 29, "faccessat": 48, "openat": 56, "close": 57, "lseek": 62, "readlinkat": 78,
        "newfstatat": 79, "fstat": 80, "exit_group": 94, "futex": 98, "clock_gettime": 113,
        "sendto": 206, "recvfrom": 207, "brk": 214, "munmap": 215, "mremap": 216, "mmap": 222, "madvise": 233,
        "statx": 291, "openat2": 437, "faccessat2": 439,
    },
}
# fmt: on
AUDIT_VALUES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

CONDITIONS: dict[str, tuple[Callable[[Arguments], bool], Arguments]] = {
    "on the channel, without an address, with no flag or MSG_NOSIGNAL": (
        lambda a: a[0] == CHANNEL_FD and a[4] == 0 and a[3] in (0, 0x4000),
        (CHANNEL_FD, 0x7000, 100, 0, 0, 0),
    ),
    "private memory of no file, for reading and writing at most; fixed, unreserved or a stack if asked": (
        lambda a: a[2] in (0, 1, 2, 3) and a[4] & LOW == LOW and a[3] & ~0x24032 == 0,
        (0, 4096, 3, 0x22, ALL, 0),
    ),
    "to wherever there is room, and nothing else": (lambda a: a[3] == 1, (0x7000, 4096, 8192, 1, 0, 0)),
    "no longer needed, may be freed, huge pages": (lambda a: a[2] & LOW in (4, 8, 14), (0x7000, 4096, 4, 0, 0, 0)),
    "wait, wake, and their bitset forms, within the own process, with or without the clock flag": (
        lambda a: a[1] in {form + flags for form in (0, 1, 9, 10) for flags in (128, 384)},
        (0x7000, 137, 0, 0, 0, ALL),
    ),
    "clocks 0 to 11: of the machine and of the own process": (lambda a: a[0] & LOW < 12, (1, 0x7000, 0, 0, 0, 0)),
}
"""What the sentences of the page mean, with arguments that are allowed."""


def expected(verdict: str, arguments: Arguments) -> int:
    """The verdict of a cell of the page on a call with these arguments."""
    if verdict == "`EPERM`":
        return EPERM
    rule = verdict.removeprefix("allowed").removeprefix(": ")
    return ALLOW if not rule or CONDITIONS[rule][0](arguments) else KILL


def patterns(base: Arguments) -> Iterator[Arguments]:
    """`base` with one argument changed in every way that could be looked at, and with several changed at once."""
    edges = (0, 1, 3, 4, 11, 12, 0x3FFF, 0x4000, 0x4001, 0x7FFF, 2**31 - 1, 2**31, LOW - 1, LOW, LOW + 1, LOW + 4, ALL)
    yield base
    yield (0,) * 6
    yield (ALL,) * 6
    for index, value in enumerate(base):
        for bit in range(64):
            yield (*base[:index], value ^ 1 << bit, *base[index + 1 :])
            yield (*base[:index], 1 << bit, *base[index + 1 :])
        for edge in (*edges, *range(16), 128, 129, 137, 256, 265, 384, 393, 394, 512, 513):
            yield (*base[:index], edge, *base[index + 1 :])
    for first, second in itertools.combinations(range(6), 2):
        for one, other in itertools.product(edges, repeat=2):
            yield tuple(one if index == first else other if index == second else base[index] for index in range(6))


class Filter:
    """The filter of one architecture, taken apart once."""

    def __init__(self, architecture: Architecture, channel_fd: int = CHANNEL_FD) -> None:
        self.program = build_filter(architecture, channel_fd)
        self._instructions = list(struct.iter_unpack("=HBBI", self.program))
        self._audit_value = AUDIT_VALUES[architecture.name]

    def verdict(self, number: int, arguments: Arguments, audit_value: int | None = None) -> int:
        data = pack_data(number, self._audit_value if audit_value is None else audit_value, arguments)
        return run_instructions(self._instructions, struct.unpack("<16I", data))


def documented(architecture: Architecture) -> dict[int, str]:
    """The verdict that the page has for each number."""
    return {
        numbers[architecture.name]: verdict
        for numbers, verdict in documented_calls().values()
        if architecture.name in numbers
    }


def test_the_page_shows_the_policy() -> None:
    assert read_table() == make_table(), "run `python -m support.filter_table` in tests/"


def test_the_page_has_every_rule_that_is_checked_here() -> None:
    verdicts = {verdict.removeprefix("allowed: ") for _, verdict in documented_calls().values()}
    assert verdicts == {"allowed", "`EPERM`", *CONDITIONS}


@both
def test_numbers_are_the_recorded_ones_in_the_policy_and_on_the_page(architecture: Architecture) -> None:
    assert dict(architecture.numbers) == RECORDED[architecture.name]
    assert architecture.audit_value == AUDIT_VALUES[architecture.name]
    calls = documented_calls()
    assert {
        name: numbers[architecture.name] for name, (numbers, _) in calls.items() if architecture.name in numbers
    } == RECORDED[architecture.name]
    assert set(ARCHITECTURES) == set(RECORDED)


@both
def test_every_number_has_the_documented_verdict(architecture: Architecture) -> None:
    program, page = Filter(architecture), documented(architecture)
    bases = [base for _, base in CONDITIONS.values()]
    shapes = [(0,) * 6, (ALL,) * 6, (CHANNEL_FD,) * 6, *bases]
    for number, arguments in itertools.product(range(LAST_NUMBER), shapes):
        verdict = KILL if number not in page else expected(page[number], arguments)
        assert program.verdict(number, arguments) == verdict, (number, arguments)


@both
@pytest.mark.parametrize("call", sorted(documented_calls()))
def test_every_argument_pattern_has_the_documented_verdict(architecture: Architecture, call: str) -> None:
    numbers, verdict = documented_calls()[call]
    rule = verdict.removeprefix("allowed: ")
    base = CONDITIONS[rule][1] if rule in CONDITIONS else (CHANNEL_FD, 0x7000, 100, 0, 0, 0)
    if architecture.name not in numbers:
        assert call in ("open", "stat", "lstat", "access", "readlink")
        return
    program, number = Filter(architecture), numbers[architecture.name]
    seen = set()
    for arguments in patterns(base):
        found = program.verdict(number, arguments)
        assert found == expected(verdict, arguments), arguments
        seen.add(found)
    assert seen == ({ALLOW, KILL} if rule in CONDITIONS else {ALLOW if verdict == "allowed" else EPERM})


@both
@pytest.mark.parametrize("channel_fd", [0, 5, 1000, 2**31 - 1])
def test_another_channel_is_the_only_one_then(architecture: Architecture, channel_fd: int) -> None:
    program = Filter(architecture, channel_fd)
    for name, descriptor in itertools.product(("sendto", "recvfrom"), (0, 3, 5, 1000, 2**31 - 1, LOW + 6, ALL)):
        verdict = ALLOW if descriptor == channel_fd else KILL
        assert program.verdict(RECORDED[architecture.name][name], (descriptor, 0x7000, 9, 0, 0, 0)) == verdict


@both
def test_any_other_convention_kills_whatever_the_number(architecture: Architecture) -> None:
    program, own = Filter(architecture), AUDIT_VALUES[architecture.name]
    i386, arm, others = 0x40000003, 0x40000028, set(AUDIT_VALUES.values()) - {own}
    values = {i386, arm, *others, 0, LOW, *(own ^ 1 << bit for bit in range(32))}
    for value, number in itertools.product(values, range(LAST_NUMBER)):
        assert program.verdict(number, (CHANNEL_FD, 0, 0, 0, 0, 0), value) == KILL, (number, hex(value))


@both
def test_numbers_beyond_the_table_kill_x32_and_negative_ones_included(architecture: Architecture) -> None:
    program = Filter(architecture)
    starts = (0x3FFFFFFF, 0x7FFFFFFF, 0x80000000, LOW)
    shifted = (number | high for number in range(LAST_NUMBER) for high in (0x40000000, 0x80000000, 0xC0000000))
    powers = (1 << bit for bit in range(10, 32))
    for number in (*starts, *shifted, *powers, *range(LAST_NUMBER, 2 * LAST_NUMBER), *range(-LAST_NUMBER, 0)):
        for arguments in ((0,) * 6, (CHANNEL_FD, 0x7000, 100, 0, 0, 0)):
            assert program.verdict(number, arguments) == KILL, number


@both
def test_the_kernel_takes_the_program_and_it_is_short_enough_for_a_quick_start(architecture: Architecture) -> None:
    program = Filter(architecture).program
    assert is_permitted(program)
    assert len(program) // 8 <= 100
