"""Checks: commands that the host runs itself, after an agent claimed completion. Only they make a run "verified"."""

import asyncio
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loopwarden.lease_view import LeaseView
from loopwarden.limits import Limits
from loopwarden.providers.process import Ending, Program, SupervisedProcess
from loopwarden.providers.program import ProgramNotStarted, absolute_name, allowed_environment, check_folder
from loopwarden.receipt import CheckRecord

TAIL_CHARS: Final = 4000
WHAT: Final = "check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One command. It passes when it ends by itself with exit 0."""

    argv: tuple[str, ...]

    @classmethod
    def parse(cls, command: str) -> "Check":
        """Split a command line as a shell would; no shell runs it. Raises ValueError with a sentence."""
        try:
            argv = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"the check {command!r} cannot be split into words: {str(error).lower()}") from None
        if not argv or not argv[0].strip():
            raise ValueError("a check needs a command, such as 'make test'")
        if any("\0" in argument for argument in argv):
            raise ValueError("a check cannot hold a zero character")
        return cls(argv=(absolute_name(argv[0]), *argv[1:]))


async def run_leased_check(
    check: Check,
    *,
    workspace: Path,
    limits: Limits,
    lease: LeaseView | None,
) -> CheckRecord:
    """Run one check of a run. One that was ended because the host had lost the lease runs again once it is back."""
    while True:
        lapses = 0 if lease is None else lease.lapses
        record = await run_check(
            check,
            workspace=workspace,
            timeout_seconds=limits.check_timeout_seconds,
            grace_seconds=limits.agent_grace_seconds,
            max_output_bytes=limits.max_output_bytes,
            env=allowed_environment(os.environ, (), {}),
            lease=lease,
        )
        if lease is None or (lease.is_alive() and lease.lapses == lapses):
            return record
        await lease.renewed()


async def run_check(
    check: Check,
    *,
    workspace: Path,
    timeout_seconds: float,
    grace_seconds: float,
    max_output_bytes: int,
    env: Mapping[str, str],
    lease: LeaseView | None = None,
) -> CheckRecord:
    """Run one check in the workspace. Never raises for what the check does; being cancelled ends the check.

    `env` is its whole environment. It reads nothing; what it prints on both streams is kept in order, the end of it.
    The end of the `lease` ends it, too.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    program = Program(
        what=WHAT, argv=check.argv, folder=workspace, environment=env, stdin=None, grace_seconds=grace_seconds,
        max_output_bytes=max_output_bytes, merge_errors=True, keep_output=False, lease=lease,
    )  # fmt: skip
    try:
        check_folder(workspace)
        process = await SupervisedProcess.start(program)
    except ProgramNotStarted as error:
        return CheckRecord(
            argv=list(check.argv), exit=None, problem=str(error), seconds=loop.time() - began, output_tail=""
        )
    try:
        async with asyncio.timeout(timeout_seconds):
            ending = await process.wait()
        in_time = True
    except TimeoutError:
        ending = await process.end(grace_seconds)
        in_time = False
    except asyncio.CancelledError:
        await process.end(grace_seconds)
        raise
    problem = _problem(ending, timeout_seconds if not in_time else None, max_output_bytes)
    return CheckRecord(
        argv=list(check.argv),
        exit=ending.exit if problem is None else None,
        problem=problem,
        seconds=ending.seconds,
        output_tail=ending.output.decode("utf-8", "replace")[-TAIL_CHARS:],
    )


def _problem(ending: Ending, passed_limit_seconds: float | None, max_output_bytes: int) -> str | None:
    if passed_limit_seconds is not None:
        return f"the check was ended: it took longer than {passed_limit_seconds:g} seconds"
    if ending.output_excess:
        return f"the check was ended: it printed more than {max_output_bytes} bytes"
    if ending.is_lease_over:
        return f"the check was ended: {ending.problem}"
    if ending.problem is not None:
        return f"the check failed: {ending.problem}"
    if ending.signal is not None:
        return f"the check {ending.how}"
    return None
