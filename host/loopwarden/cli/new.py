"""`loopwarden new`: begin a loop of one's own, as a package that works at once."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.display import shown_line
from loopwarden.loop_package import module_name, refuse_name, write_loop_package
from loopwarden.loops import find_loops
from loopwarden.settings import load_settings


def new_command(config: Path | None) -> Callable[..., int]:
    """The command that writes a loop package."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        name, folder = given["name"], given["folder"] or Path()
        catalogue = find_loops(load_settings(config))
        refuse_name(name, [*catalogue.loops, *catalogue.problems])
        files = write_loop_package(name, folder)
        target = folder / name
        output.show_object(
            {"exit": 0, "name": name, "folder": str(target), "files": [str(path) for path in files]},
        )
        output.show(_text(name, target, files))
        return 0

    name = Annotated[str, typer.Argument(metavar="NAME", help="Of the loop, such as review-answers.")]
    folder = Annotated[
        Path | None,
        typer.Option("--in", metavar="FOLDER", help="Where to make it; the current folder.", show_default=False),
    ]
    return as_command(run, {"name": (name, ...), "folder": (folder, None), **shared_options("json", "config")})


def _text(name: str, target: Path, files: list[Path]) -> str:
    package = shlex.quote(str(target / "src" / module_name(name)))
    quoted = shlex.quote(str(target))
    steps = [
        (f"python -m pytest {quoted}", "run its tests; they need no model"),
        (f"loopwarden vet {package}", "check the script"),
        (f"pip install -e {quoted}", "then it is run by its name:"),
        (f"loopwarden run {name} --help", ""),
    ]
    lines = [f"the loop {name}, with {len(files)} files in {target}:", ""]
    lines += [f"  {path.relative_to(target)}" for path in files]
    width = max(len(command) for command, _ in steps)
    lines += ["", "next:", "", *[f"  {command:<{width}}  {why}".rstrip() for command, why in steps]]
    return "\n".join(shown_line(line, 2000) for line in lines)
