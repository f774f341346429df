"""The seccomp filter's verdict on every system call and every argument that it looks at, for both architectures."""

import re
from collections.abc import Callable

import pytest

from loopwarden_engine.confinement.seccomp import (
    ALLOW,
    ALWAYS_ALLOWED,
    KILL_PROCESS,
    REFUSE_WITH_EPERM,
    REFUSED,
    build_filter,
)
from loopwarden_engine.confinement.syscalls import AARCH64, X86_64, Architecture

CHANNEL_FD = 3
LAST_NUMBER = 1024
HIGH = 1 << 32
both = pytest.mark.parametrize("architecture", [X86_64, AARCH64], ids=lambda architecture: architecture.name)


@pytest.fixture
def verdict(run_filter: Callable[..., int]) -> Callable[..., int]:
    def ask(architecture: Architecture, name: str, *arguments: int) -> int:
        program = build_filter(architecture, CHANNEL_FD)
        return run_filter(
            program,
            number=architecture.numbers[name],
            architecture=architecture.audit_value,
            arguments=arguments,
        )

    return ask


@both
def test_every_number_that_is_not_named_kills(architecture: Architecture, run_filter: Callable[..., int]) -> None:
    program = build_filter(architecture, CHANNEL_FD)
    named = set(architecture.numbers.values())
    survivors = [
        number
        for number in range(LAST_NUMBER)
        if number not in named
        and run_filter(program, number=number, architecture=architecture.audit_value, arguments=(CHANNEL_FD,))
        != KILL_PROCESS
    ]
    assert survivors == []


@both
def test_plain_calls_are_allowed_whatever_their_arguments(
    architecture: Architecture, verdict: Callable[..., int]
) -> None:
    for name in ALWAYS_ALLOWED:
        assert verdict(architecture, name) == ALLOW
        assert verdict(architecture, name, *[2**64 - 1] * 6) == ALLOW


@both
def test_what_the_library_tries_by_itself_answers_eperm(
    architecture: Architecture, verdict: Callable[..., int]
) -> None:
    present = [name for name in REFUSED if name in architecture.numbers]
    assert {"openat", "newfstatat", "fstat", "statx", "lseek", "readlinkat", "getcwd", "faccessat", "ioctl"} <= set(
        present
    )
    assert [name for name in present if verdict(architecture, name) != REFUSE_WITH_EPERM] == []


@both
def test_another_architecture_kills_whatever_the_number(
    architecture: Architecture, run_filter: Callable[..., int]
) -> None:
    program = build_filter(architecture, CHANNEL_FD)
    i386, arm, other = 0x40000003, 0x40000028, AARCH64 if architecture is X86_64 else X86_64
    for value in (i386, arm, other.audit_value, 0):
        for number in range(LAST_NUMBER):
            assert run_filter(program, number=number, architecture=value, arguments=()) == KILL_PROCESS


def test_x32_kills_even_for_numbers_that_are_allowed(run_filter: Callable[..., int]) -> None:
    program = build_filter(X86_64, CHANNEL_FD)
    for number in [*X86_64.numbers.values(), 0x3FFFFFFF]:
        called = number | 0x40000000
        assert run_filter(program, number=called, architecture=X86_64.audit_value, arguments=()) == KILL_PROCESS
    assert run_filter(program, number=-1, architecture=X86_64.audit_value, arguments=()) == KILL_PROCESS


@both
@pytest.mark.parametrize("name", ["sendto", "recvfrom"])
def test_bytes_go_through_the_channel_only(architecture: Architecture, name: str, verdict: Callable[..., int]) -> None:
    assert verdict(architecture, name, CHANNEL_FD, 0x7000, 100, 0, 0, 0) == ALLOW
    assert verdict(architecture, name, CHANNEL_FD, 0x7000, 100, 0x4000, 0, 0) == ALLOW
    for descriptor in (0, 1, 2, 4, 100, CHANNEL_FD + HIGH, 2**64 - 1):
        assert verdict(architecture, name, descriptor, 0x7000, 100, 0, 0, 0) == KILL_PROCESS
    for flags in (*(1 << bit for bit in range(64) if bit != 14), 0x4001, 0x4000 + HIGH, 2**64 - 1):
        assert verdict(architecture, name, CHANNEL_FD, 0x7000, 100, flags, 0, 0) == KILL_PROCESS
    for address in (1, 0x7000, HIGH, 2**63, 2**64 - 1):
        assert verdict(architecture, name, CHANNEL_FD, 0x7000, 100, 0, address, 0) == KILL_PROCESS


@both
def test_memory_is_never_executable(architecture: Architecture, verdict: Callable[..., int]) -> None:
    for protection in range(4):
        assert verdict(architecture, "mmap", 0, 4096, protection, 0x22, 2**64 - 1, 0) == ALLOW
    for protection in (*range(4, 64), *(1 << bit for bit in range(2, 64)), 3 + HIGH, 2**64 - 1):
        assert verdict(architecture, "mmap", 0, 4096, protection, 0x22, 2**64 - 1, 0) == KILL_PROCESS


@both
def test_futex_waits_and_wakes_and_does_nothing_else(architecture: Architecture, verdict: Callable[..., int]) -> None:
    allowed = {0, 1, 9, 10}
    for operation in range(32):
        for modifiers in (0, 128, 256, 128 | 256):
            expected = ALLOW if operation in allowed else KILL_PROCESS
            assert verdict(architecture, "futex", 0x7000, operation | modifiers) == expected
    for operation in (0 + HIGH, 512, 1 << 31, 2**64 - 1):
        assert verdict(architecture, "futex", 0x7000, operation) == KILL_PROCESS


@both
def test_the_filter_is_short_enough_for_the_kernel_and_for_a_quick_start(architecture: Architecture) -> None:
    assert len(build_filter(architecture, CHANNEL_FD)) // 8 <= 100


@both
def test_every_call_that_the_policy_names_has_a_number_or_is_an_older_form(architecture: Architecture) -> None:
    older_forms = {"open", "stat", "lstat", "access", "readlink"}
    wanted = {"mmap", "futex", "sendto", "recvfrom", *ALWAYS_ALLOWED, *REFUSED}
    assert wanted - set(architecture.numbers) <= older_forms
    assert set(architecture.numbers) <= wanted
    assert len(set(architecture.numbers.values())) == len(architecture.numbers)


def test_no_call_that_makes_opens_or_signals_has_a_number_in_either_table() -> None:
    never = re.compile(
        r"clone|fork|exec|socket|connect|bind|kill|ptrace|prctl|mprotect|dup|pipe|write|read$|bpf|io_uring"
    )
    for architecture in (X86_64, AARCH64):
        assert [name for name in architecture.numbers if never.search(name)] == []
