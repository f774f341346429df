"""Install agent programs into the cache folder of this tree: `python -m agents.install claude codex`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from agents.programs import CACHE, NODE_FOLDER, PROGRAMS, AgentProgram

NPM: Final = NODE_FOLDER.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
# No install scripts: some build native add-ons that the programs do without. No lock file: the versions are pinned.
NPM_OPTIONS: Final = ("--ignore-scripts", "--no-save", "--no-package-lock", "--no-audit", "--no-fund")
INSTALL_SECONDS: Final = 900


def main(names: Sequence[str]) -> int:
    """Install what is missing. Returns 0, or 1 with a sentence on standard error."""
    for name in names:
        if name not in PROGRAMS:
            return _refuse(f"{name} is none of the programs that are tested: {', '.join(PROGRAMS)}")
    for program in (PROGRAMS[name] for name in names):
        try:
            _install(program)
        except (OSError, subprocess.SubprocessError) as error:
            return _refuse(f"{program.package} {program.version} could not be installed: {error}")
    return 0


def _install(program: AgentProgram) -> None:
    """Install one program, unless it is there. Half an installation never has the final name."""
    if program.path.exists():
        return
    part = program.folder.with_name(f"{program.folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(program.folder, ignore_errors=True)
    part.mkdir(parents=True)
    package = f"{program.package}@{program.version}"
    _node(str(NPM), "install", *NPM_OPTIONS, "--prefix", str(part), package, folder=str(part))
    if program.link_script is not None:
        _node(program.link_script, folder=str(part / "node_modules" / program.package))
    version = subprocess.run(
        [part / program.path.relative_to(program.folder), "--version"], env=_environment(), timeout=60, check=True,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    part.rename(program.folder)
    sys.stdout.write(f"installed {package}: {version.stdout.strip()}\n")


def _node(*arguments: str, folder: str) -> None:
    subprocess.run(
        [str(NODE_FOLDER / "node"), *arguments],
        cwd=folder, env=_environment(), stdin=subprocess.DEVNULL, timeout=INSTALL_SECONDS, check=True,
    )  # fmt: skip


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{NODE_FOLDER}{os.pathsep}{os.environ['PATH']}", "DISABLE_AUTOUPDATER": "1"}


def _refuse(why: str) -> int:
    sys.stderr.write(f"{why}; see {CACHE.name}/ and the package index that npm is set up for\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
