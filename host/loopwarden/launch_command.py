"""How the launcher is started: the interpreter, its options, and the folders of the few packages it needs."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from loopwarden.failures import LaunchFailed

__all__ = ["PRODUCTION", "LaunchCommand", "find_package_folders", "spawn_launcher"]

_NEEDED: Final = ("loopwarden_engine", "RestrictedPython", "greenlet", "multiprocess")

# Appended, behind the standard library: nothing in a package folder can stand in for a module of it.
_BOOTSTRAP: Final = """\
import sys
sys.path += sys.argv[3:]
from loopwarden_engine.preloading import preload
make_worker = preload({module!r}, {factory!r})
from loopwarden_engine.launcher import run_launcher
run_launcher(make_worker)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """What lives in the workers of a launcher: made by `factory` of `module`, a `MakeWorker`.

    `extra_folders` are searched first.
    """

    module: str
    factory: str
    extra_folders: tuple[str, ...] = ()


PRODUCTION: Final = LaunchCommand(module="loopwarden_engine.worker", factory="Worker")


def find_package_folders() -> list[str]:
    """The folders that hold the packages which the launcher imports, as this process finds them. Raises `LaunchFailed`.

    The launcher runs without site-packages, user folders and PYTHONPATH, so it sees these and the standard library
    only, and the same versions as this process, however it was installed.
    """
    folders: dict[str, None] = {}
    for name in _NEEDED:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise LaunchFailed(f"The package {name} is missing. Install loopwarden again, with its dependencies.")
        folders[os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))] = None
    return list(folders)


def spawn_launcher(command: LaunchCommand, control_fd: int, host_pidfd: int, error_fd: int) -> subprocess.Popen[bytes]:
    """Start the process; its two descriptors are passed, everything else of ours stays here. Raises `LaunchFailed`."""
    if not sys.executable:
        raise LaunchFailed(
            "This program does not know its Python interpreter, so it cannot start the launcher. Set sys.executable."
        )
    bootstrap = _BOOTSTRAP.format(module=command.module, factory=command.factory)
    # -P and -s as in isolated mode, which itself would ignore PYTHONHASHSEED; -S because site-packages may run code
    # at start.
    arguments = [sys.executable, "-P", "-s", "-S", "-c", bootstrap, str(control_fd), str(host_pidfd)]
    try:
        return subprocess.Popen(
            [*arguments, *command.extra_folders, *find_package_folders()],
            env={"PYTHONHASHSEED": "0"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=error_fd,
            pass_fds=(control_fd, host_pidfd),
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchFailed(
            f"The Python interpreter could not be started for the launcher: {error.strerror}. "
            "Free some memory or processes, and try again."
        ) from None
