"""A host that renews the lease of its one agent while it runs. argv: workspace, mark, lease, grace, agent's program.

Prints how the agent ended: class and reason.
"""

import asyncio
import sys
from pathlib import Path

from loopwarden.lease_view import LeaseView, boot_seconds
from loopwarden.provider import AgentFailed
from loopwarden.providers.command import CommandProvider
from support.agents import request

KILL_GRACE_SECONDS = 0.4
RENEW_EACH_SECONDS = 0.05

workspace, mark, lease_text, grace_text, *argv = sys.argv[1:]
lease_seconds = float(lease_text)


async def renew(lease: LeaseView) -> None:
    """As often as the event loop runs."""
    while True:
        lease.renew(boot_seconds() + lease_seconds)
        await asyncio.sleep(RENEW_EACH_SECONDS)


async def main() -> str:
    """Run the agent."""
    lease = LeaseView(boot_seconds() + lease_seconds, kill_grace_seconds=KILL_GRACE_SECONDS)
    renewing = asyncio.create_task(renew(lease))
    provider = CommandProvider(argv, env={"TEST_MARK": mark})
    try:
        await provider.reply(request(Path(workspace), grace_seconds=float(grace_text), lease=lease))
    except AgentFailed as failed:
        return f"{failed.failure_class}: {failed.reason}"
    finally:
        renewing.cancel()
    return "answered"


sys.stdout.write(asyncio.run(main()) + "\n")
