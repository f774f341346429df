"""One run from start to end for code without an event loop."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, Unpack

from loopwarden.checks import Check
from loopwarden.host import Host
from loopwarden.limits import LimitOverrides, Limits
from loopwarden.outcome import Outcome
from loopwarden.provider import Provider, ReplyFunction
from loopwarden.script import Script

ArgsT = TypeVar("ArgsT")
ResultT = TypeVar("ResultT")


def run_sync(
    script: Script[ArgsT, ResultT],
    args: object = None,
    *,
    providers: Mapping[str, Provider | ReplyFunction],
    limits: Limits | None = None,
    workspace: Path | str | None = None,
    provider: str | None = None,
    checks: Sequence[Check] = (),
    state_folder: Path | str | None = None,
    **overrides: Unpack[LimitOverrides],
) -> Outcome[ResultT]:
    """One run from start to end for code without an event loop. Raises a subclass of `StartRefused`.

    Each call starts a launcher of its own (about 80 ms); a service that runs many loops keeps a `Host`.
    """

    async def main() -> Outcome[ResultT]:
        async with Host(
            providers=providers,
            limits=limits,
            default_provider=provider or "default",
            state_folder=state_folder,
        ) as host:
            return await host.run(script, args, workspace=workspace, checks=checks, **overrides)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    raise RuntimeError("run_sync() cannot be used where an event loop runs; use `await Host.run(…)` there")
