"""What a worker has loaded is a list, and the list is frozen: everything on it can be reached behind the first wall."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from loopwarden import AgentRequest, Host, Run, Script
from loopwarden.launch_command import find_package_folders

FROZEN = Path(__file__).parent / "worker_modules.json"
FORBIDDEN = {
    "asyncio",
    "pydantic",
    "loopwarden",
    "structlog",
    "httpx",
    "typer",
    "rich",
    "ssl",
    "urllib.request",
    "http",
}
LIST_MODULES = """
import json, sys
sys.path += sys.argv[1:]
from loopwarden_engine.preloading import preload
preload("loopwarden_engine.worker", "Worker")
print(json.dumps(sorted(sys.modules)))
"""


def launcher_modules() -> set[str]:
    """The modules of a launcher, which its workers inherit."""
    # As `launch_command` starts it: without site-packages, with the folders of the few packages it needs.
    arguments = [sys.executable, "-P", "-s", "-S", "-c", LIST_MODULES, *find_package_folders()]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    return set(json.loads(output))


def family(modules: set[str]) -> list[str]:
    """Top-level names outside of the standard library, and every module of the engine."""
    standard = sys.stdlib_module_names
    outside = {name for name in modules if name.split(".")[0] not in standard}
    return sorted(name for name in outside if "." not in name or name.startswith("loopwarden_engine"))


def test_a_worker_has_loaded_no_host_code_and_no_event_loop() -> None:
    """No asyncio, no pydantic, nothing of the host."""
    assert launcher_modules() & FORBIDDEN == set()


def test_the_list_of_loaded_modules_is_the_frozen_one() -> None:
    """A new module in a worker is a decision, not an accident: add it to the list in the same commit."""
    assert family(launcher_modules()) == json.loads(FROZEN.read_text(encoding="utf-8"))


async def unused(request: AgentRequest) -> str:
    """No agent is called for."""
    return "never asked"


def test_a_run_loads_nothing_more(runner: asyncio.Runner) -> None:
    """Behind the second wall no file can be opened, so a lazy import would end this run."""
    source = """
import json, math, re, textwrap
def main(args):
    try:
        {}["missing"]
    except KeyError as error:
        text = repr(error)
    parts = [f"{math.pi:.3f}", re.sub("a+", "b", "caaat"), textwrap.fill("a b c", 3), json.dumps({"k": [1]}, indent=1)]
    return [text, parts, f"{1e300!r:>20}", "x".upper().encode("utf-8").decode("utf-8"), sorted({3, 1, 2})]
"""

    async def play() -> Run[object]:
        async with Host(providers={"default": unused}) as host:
            run = await host.start(Script.from_text(source))
            (await run.wait()).raise_for_failure()
            return run

    assert runner.run(play()).is_over
