"""The entry point of `loopwarden`: reads the command line, sends it to a command, turns every ending into an exit code.

Two things are read before typer sees the command line. What stands after the first `--` is the program of the agent,
word for word. And the settings decide which loops there are, and so which commands `run` has.
"""

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.main import get_command

from loopwarden.cli.approving import approve_command
from loopwarden.cli.budget import budget_app
from loopwarden.cli.command_help import PlainCommand
from loopwarden.cli.continuing import continue_command
from loopwarden.cli.demo import demo_command
from loopwarden.cli.doctor import doctor_command
from loopwarden.cli.dry_run import dry_run
from loopwarden.cli.history import runs_command, show_command
from loopwarden.cli.hosting import host_command
from loopwarden.cli.journals import export_command, replay_command, verify_command
from loopwarden.cli.loop_commands import PLAIN_HELP, PROGRAM_HELP, RunOptions, loop_command
from loopwarden.cli.new import new_command
from loopwarden.cli.output import Output, OutputLostError, give_up_output, prepare_streams
from loopwarden.cli.preparation import prepare
from loopwarden.cli.providers import providers_command
from loopwarden.cli.queue import queue_app
from loopwarden.cli.request import Request, Target, is_file_name
from loopwarden.cli.resuming import resume_command
from loopwarden.cli.run_changes import cancel_command, prune_command
from loopwarden.cli.running import run_and_report
from loopwarden.cli.schedule import schedule_app
from loopwarden.cli.submitting import SUBMIT_OPTIONS, rerun_command, submit
from loopwarden.cli.vetting import vet_command
from loopwarden.cli.watching import events_command
from loopwarden.failures import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NOT_STARTED, Code, Failure, StartRefused
from loopwarden.logs import LEVELS, configure_logs
from loopwarden.loops import find_loops
from loopwarden.run_folder import RunFolderError, default_state_folder, make_private_folder, write_private_file
from loopwarden.script import Script
from loopwarden.settings import Settings, load_settings

_TAKING_PROGRAMS: Final = ("run", "continue", "resume")
"""Commands after which a program may stand behind `--`."""
_ROOT_OPTIONS_WITH_VALUE: Final = ("--config", "--log-level")
_GROUPS: Final = ("run", "submit", "budget", "queue", "schedule")
"""Commands that are nothing without the word that follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A command line, taken apart as far as it must be before typer reads it."""

    head: tuple[str, ...]
    """Everything before the first `--`."""
    program: tuple[str, ...]
    """Everything after it."""
    has_program: bool
    config: Path | None
    command: str | None
    target: str | None
    """The word after the command."""

    @classmethod
    def read(cls, argv: Sequence[str]) -> "Line":
        """Take `argv` (without the name of the program) apart."""
        split = argv.index("--") if "--" in argv else len(argv)
        head = tuple(argv[:split])
        words = iter(head)
        command: str | None = None
        target: str | None = None
        for word in words:
            if word in _ROOT_OPTIONS_WITH_VALUE:
                next(words, None)
            elif not word.startswith("-"):
                command = word
                target = next(words, None)
                break
        return cls(
            head=head,
            program=tuple(argv[split + 1 :]),
            has_program=split < len(argv),
            config=_config(head),
            command=command,
            target=None if target is None or target.startswith("-") else target,
        )


def _config(head: Sequence[str]) -> Path | None:
    found: str | None = None
    for index, word in enumerate(head):
        if word == "--config" and index + 1 < len(head):
            found = head[index + 1]
        elif word.startswith("--config="):
            found = word.removeprefix("--config=")
    return None if found is None else Path(found)


def main() -> None:
    """Run the command line of this process."""
    prepare_streams()
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:  # noqa: PLR0911 -- one return for each kind of ending
    """Run one command line and return its exit code. Never raises."""
    line = Line.read(argv)
    output = Output(json="--json" in line.head)
    try:
        app = build_app(line)
        unsaid = line.head in ((), *((group,) for group in _GROUPS))
        args = [*line.head, "--help"] if unsaid else list(line.head)
        answer = get_command(app)(args=args, prog_name="loopwarden", standalone_mode=False)
        return EXIT_NOT_STARTED if unsaid else answer if isinstance(answer, int) else 0
    except StartRefused as refused:
        return output.refuse(refused.failure)
    except RunFolderError as error:
        return output.refuse(Failure(code=Code.INVALID_REQUEST, message=str(error)))
    except typer.TyperException as error:
        return output.refuse(Failure(code=Code.INVALID_REQUEST, message=_usage_sentence(error)))
    except (KeyboardInterrupt, typer.Abort):
        return output.break_down("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        give_up_output()
        return EXIT_FAILED
    except OutputLostError as error:
        give_up_output()
        output.say(f"loopwarden: {error}")
        return EXIT_FAILED
    except Exception as error:  # noqa: BLE001 -- a fault of ours: a sentence now, the details where they are found
        return output.break_down(_fault_sentence(error, debug="--debug" in line.head), EXIT_FAILED)


def _usage_sentence(error: typer.TyperException) -> str:
    sentence = error.format_message().rstrip(".")
    return f"{sentence[:1].lower()}{sentence[1:]}; `--help` shows what can be given"


def _fault_sentence(error: Exception, *, debug: bool) -> str:
    details = "".join(traceback.format_exception(error))
    if debug:
        sys.stderr.write(details)
        return "this is a fault of Loopwarden; the details stand above"
    try:
        path = default_state_folder() / "last-fault.txt"
        make_private_folder(path.parent)
        write_private_file(path, details.encode("utf-8", "backslashreplace"))
    except RunFolderError:
        return f"a fault of Loopwarden ({type(error).__name__}); run the command again with --debug for the details"
    return f"a fault of Loopwarden ({type(error).__name__}); the details are in {path}, and --debug prints them"


# ---- commands


def build_app(line: Line) -> typer.Typer:
    """The application for one command line. Raises a subclass of `StartRefused` when the settings cannot be used."""
    app = typer.Typer(
        name="loopwarden",
        help="Run vetted agent loops under an exact agent budget. It confines the loop script, not your agent.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    runner = typer.Typer(
        help="Run a loop, or a script of your own (FILE.py). `run LOOP --help` shows the options of a loop.",
        rich_markup_mode=None,
    )
    submitter = typer.Typer(
        help="Put a loop, or a script of your own (FILE.py), into a queue. `submit LOOP --help` shows its options.",
        rich_markup_mode=None,
    )
    if line.command == "run":
        _add_loops(runner, line)
    if line.command == "submit":
        _add_submissions(submitter, line)
    app.add_typer(runner, name="run")
    program = line.program if line.command in _TAKING_PROGRAMS else ()
    goes_on = "Start a new run from the receipt of an earlier one. What is not given is as it was there."
    _add(app, "continue", continue_command(program, line.config), goes_on)
    in_place = "Let a run go on where it stopped, here in the foreground. What it paid for is not paid again."
    _add(app, "resume", resume_command(program, line.config), in_place)
    app.add_typer(submitter, name="submit")
    _add(app, "host", host_command(line.config), "Drive runs of queues until SIGTERM or Ctrl-C.")
    _add(app, "runs", runs_command(line.config), "List runs: those of the store, and what runs without a journal left.")
    _add(app, "show", show_command(line.config), "Show a receipt, and where each agent's prompt and output lie.")
    _add(app, "events", events_command(line.config), "Print what happened in a run; --follow goes on.")
    _add(app, "cancel", cancel_command(line.config), "Cancel a run, whichever host drives it.")
    _add(app, "rerun", rerun_command(line.config), "Submit a run with the content of an earlier one.")
    replay = "Run the script of a run again against its journal, and compare. Asks nobody, changes nothing."
    _add(app, "replay", replay_command(line.config), replay)
    _add(app, "verify", verify_command(line.config), "Say what the journal of a run proves, and what not.")
    _add(app, "export", export_command(line.config), "Write the journal of a run into one file.")
    _add(app, "prune", prune_command(line.config), "Remove runs that ended long ago.")
    providers_help = "List the providers, what they can do and whether they are in use; --probe asks one."
    _add(app, "providers", providers_command(line.config), providers_help)
    _add(app, "new", new_command(line.config), "Write a loop package of your own, with a contract and a test.")
    _add(app, "vet", vet_command(line.config), "Check scripts in a confined worker, without running them.")
    approve_help = "Write what was vetted into the lock, by content; --check compares with it, for CI."
    _add(app, "approve", approve_command(line.config), approve_help)
    _add(app, "doctor", doctor_command(line.config), "Show platform, walls, settings in force and loops found.")
    app.add_typer(budget_app(line.config), name="budget")
    app.add_typer(queue_app(line.config), name="queue")
    app.add_typer(schedule_app(line.config), name="schedule")
    _add(app, "demo", demo_command(), "Run the Ralph loop with a canned agent that needs no model.")
    if line.has_program and line.command not in (*_TAKING_PROGRAMS, "submit"):
        raise typer.BadParameter("a program after -- belongs to `run`, `continue` and `resume` only")
    return app


def _add(app: typer.Typer, name: str, command: Callable[..., int], help_text: str) -> None:
    epilog = PROGRAM_HELP if name in _TAKING_PROGRAMS else None
    app.command(name, cls=PlainCommand, help=help_text, epilog=epilog)(command)


def _add_loops(runner: typer.Typer, line: Line) -> None:
    def act(request: Request, options: RunOptions, settings: Settings) -> int:
        if line.has_program and not line.program:
            raise typer.BadParameter("the program after -- is missing")
        return _run(request, options, settings)

    _add_targets(runner, line, act, epilog=PROGRAM_HELP)


def _add_submissions(submitter: typer.Typer, line: Line) -> None:
    def act(request: Request, options: RunOptions, settings: Settings) -> int:
        return submit(request, options, settings, line.config)

    _add_targets(submitter, line, act, more=SUBMIT_OPTIONS)


def _add_targets(
    group: typer.Typer,
    line: Line,
    act: Callable[[Request, RunOptions, Settings], int],
    *,
    epilog: str | None = None,
    more: Mapping[str, tuple[Any, Any]] | None = None,
) -> None:
    """A command for each loop, and for the script of one's own that the line names."""
    settings = load_settings(line.config)
    catalogue = find_loops(settings)
    total_is_set = "max_total_agents" in settings.limits_given

    def add(name: str, target: Target, help_text: str) -> None:
        command = loop_command(
            target,
            total_is_set=total_is_set,
            program=line.program,
            action=lambda request, options: act(request, options, settings),
            more=more,
        )
        group.command(name, help=help_text, epilog=epilog)(command)

    for found in catalogue.loops.values():
        add(found.name, Target(name=found.name, script=found.script, file=found.path), found.summary)
    if line.target is None:
        return
    if is_file_name(line.target):
        path = Path(line.target)
        add(line.target, Target(name=path.stem, script=Script.from_file(path), file=path), PLAIN_HELP)
    else:
        catalogue.loop(line.target)


def _run(request: Request, options: RunOptions, settings: Settings) -> int:
    prepared = prepare(request, settings)
    output = Output(json=options.json)
    return dry_run(prepared, output) if options.dry_run else run_and_report(prepared, output)


def _print_version(value: bool) -> None:  # noqa: FBT001 -- typer gives it
    if value:
        sys.stdout.write(f"loopwarden {version('loopwarden')}\n")
        raise typer.Exit(0)


def _level(text: str) -> str:
    if text not in LEVELS:
        raise typer.BadParameter(f"{text!r} is not a level; choose one of {', '.join(LEVELS)}")
    return text


def _root(
    *,
    config: Annotated[  # noqa: ARG001 -- read before typer, in Line.read; here for --help
        Path | None, typer.Option("--config", metavar="FILE", help="The settings; else the user's loopwarden.toml.")
    ] = None,
    verbose: Annotated[int, typer.Option("-v", "--verbose", count=True, help="Log more; -vv logs everything.")] = 0,
    log_level: Annotated[
        Any, typer.Option("--log-level", parser=_level, metavar="LEVEL", help="debug, info, warning or error.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Print the details of a fault of Loopwarden itself.")] = False,
    show_version: Annotated[  # noqa: ARG001 -- its callback does it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    configure_logs(log_level or ("debug" if verbose > 1 or debug else "info" if verbose else "warning"))
