"""Loopwarden on a system that is not Linux: what Linux alone has is taken out of Python before anything is imported.

`python -m support.other_system NAME ARGUMENT…`: the command line with these arguments, on a system that calls itself
NAME (a value of `sys.platform`). With the one argument `host` a Host starts a run instead, opted in and not.
"""

import asyncio
import ctypes
import fcntl
import os
import platform
import resource
import select
import selectors
import signal
import socket
import sys
import sysconfig
from types import ModuleType
from typing import Any

# Libraries of others look at the system too; they are not what is tried here.
import httpx  # noqa: F401
import jsonschema_rs  # noqa: F401
import pydantic.alias_generators
import rich.console  # noqa: F401
import structlog  # noqa: F401
import typer  # noqa: F401

LINUX_ALONE: dict[Any, tuple[str, ...]] = {
    os: (
        "pidfd_open", "pipe2", "memfd_create", "setresuid", "setresgid", "getresuid", "getresgid", "P_PIDFD",
        "O_TMPFILE", "O_PATH", "unshare", "setns", "getrandom", "eventfd",
        "splice", "posix_fadvise", "getxattr", "setxattr", "listxattr", "copy_file_range", "waitid", "closerange",
    ),
    signal: ("pidfd_send_signal", "SIGPWR", "SIGSTKFLT", "SIGRTMIN", "SIGRTMAX", "sigtimedwait", "sigwaitinfo"),
    select: ("epoll", *(name for name in dir(select) if name.startswith("EPOLL"))),
    selectors: ("EpollSelector",),
    socket: ("SOCK_CLOEXEC", "SOCK_NONBLOCK", "MSG_CMSG_CLOEXEC", "MSG_NOSIGNAL", "SO_PEERCRED", "SO_DOMAIN",
             "AF_NETLINK", "AF_VSOCK"),
    resource: ("prlimit", "RLIMIT_AS", "RLIMIT_NPROC", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING"),
    fcntl: ("F_GETPIPE_SZ", "F_SETPIPE_SZ", "F_ADD_SEALS", "F_GET_SEALS", "F_OFD_SETLK", "F_NOTIFY"),
}  # fmt: skip


class OtherLibrary:
    """A C library without what Linux adds."""

    def __init__(self, name: str | None, **options: Any) -> None:
        self._real = REAL_LIBRARY(name, **options)

    def __getattr__(self, name: str) -> Any:
        if name in ("prctl", "syscall", "capset", "capget", "unshare", "setns", "pidfd_open"):
            raise AttributeError(name)
        return getattr(self._real, name)


REAL_LIBRARY = ctypes.CDLL


def become(name: str) -> None:
    """Let Python run on a system of this name."""
    for module, attributes in LINUX_ALONE.items():
        for attribute in attributes:
            if hasattr(module, attribute):
                delattr(module, attribute)
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc, assignment]
    sysconfig.get_config_vars()  # reads a file that is named after the system
    assert pydantic.BaseModel  # imported at first use
    proxies = ModuleType("_scproxy")
    proxies._get_proxies = proxies._get_proxy_settings = dict  # type: ignore[attr-defined]
    sys.modules["_scproxy"] = proxies  # of the standard library on macOS
    platform._uname_cache = None  # type: ignore[attr-defined]
    ctypes.CDLL = OtherLibrary  # type: ignore[assignment, misc]
    sys.platform = name
    uname = os.uname_result((name.capitalize(), "there", "24.1.0", "24.1.0", "arm64"))
    os.uname = lambda: uname


async def start_runs() -> None:
    """Print the code and the sentence with which each start is refused."""
    from loopwarden import Host, Limits, Script, StartRefused

    async def reply(request: Any) -> str:
        return "never asked"

    for is_weak in (False, True):
        limits = Limits(max_total_agents=1)
        async with Host(providers={"default": reply}, limits=limits, allow_weak_confinement=is_weak) as host:
            try:
                await host.start(Script.from_text("def main(args):\n    return 1\n"), {})
            except StartRefused as refusal:
                sys.stdout.write(f"{refusal.code}: {refusal.message}\n")


if __name__ == "__main__":
    become(sys.argv[1])
    if sys.argv[2:] == ["host"]:
        asyncio.run(start_runs())
    else:
        from loopwarden.cli import app

        sys.exit(app.run(sys.argv[2:]))
