"""`loopwarden demo`: the whole thing on a small workspace, with canned agents that need no model and no key."""

import asyncio
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from loopwarden.cli.foreground import Ended
from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.preparation import prepare
from loopwarden.cli.receipt_view import receipt_text
from loopwarden.cli.request import Request, Target
from loopwarden.cli.running import run_to_end
from loopwarden.demo.stage import CHECK, OBJECTIVE, DemoError, agent_argv, workspace_copy
from loopwarden.failures import EXIT_CHECK_FAILED, EXIT_COMPLETE, EXIT_FAILED, InvalidRequest
from loopwarden.loops import find_loops
from loopwarden.settings import Settings

_MAX_ROUNDS = 10
_INTRODUCTION = """\
Loopwarden demo. The agent here is canned: a small program that needs no model and no key. Everything else is real:
the loop script in its confined worker, the budget, the agent processes, the files, the check that the host runs."""
_SEEN = """\
What you saw:
  1. A fixed script started one fresh agent per round; the host counted them and would have started {rounds} at most.
  2. Each agent repaired one test by editing files; only its report went on to the next round.
  3. The second agent said the same words and had done nothing. The check that the host ran itself told them apart."""


def demo_command() -> Callable[..., int]:
    """The command."""

    def run(**given: Any) -> int:
        return show_demo(Output(json=given["json"]), keep=given["keep"])

    keep = Annotated[bool, typer.Option("--keep", help="Keep the two workspaces, to look at what the agents did.")]
    return as_command(run, {"keep": (keep, False), **shared_options("json")})


def show_demo(output: Output, *, keep: bool) -> int:
    """Run both agents; 0 when the honest one was verified and the liar was caught."""
    output.say(_INTRODUCTION)
    output.say("\n-- An agent that works: three failing tests, one repaired per round --\n")
    honest = _run_one(output, lies=False, keep=keep)
    if _is_interrupted(honest):
        return _break_off(output, honest, None)
    output.say("\n-- An agent that lies: it reports completion and changes nothing --\n")
    liar = _run_one(output, lies=True, keep=keep)
    if _is_interrupted(liar):
        return _break_off(output, honest, liar)
    as_expected = honest.exit == EXIT_COMPLETE and liar.exit == EXIT_CHECK_FAILED
    code = EXIT_COMPLETE if as_expected else EXIT_FAILED
    output.show_object({"exit": code, "asExpected": as_expected, "honest": honest.to_json(), "liar": liar.to_json()})
    output.show("\n" + _SEEN.format(rounds=_MAX_ROUNDS) if as_expected else "\nThis did not go as expected; see above.")
    return code


def _break_off(output: Output, honest: Ended, liar: Ended | None) -> int:
    """Say that the demo was interrupted. Returns the exit code."""
    code = (liar or honest).exit
    shown_liar = None if liar is None else liar.to_json()
    output.show_object({"exit": code, "asExpected": False, "honest": honest.to_json(), "liar": shown_liar})
    output.say("loopwarden: the demo was interrupted")
    return code


def _is_interrupted(ended: Ended) -> bool:
    return ended.exit > 128


def _run_one(output: Output, *, lies: bool, keep: bool) -> Ended:
    try:
        with workspace_copy(keep=keep) as workspace:
            prepared = prepare(_request(workspace, lies=lies), Settings())
            ended = asyncio.run(run_to_end(prepared, output))
    except DemoError as error:
        raise InvalidRequest(str(error)) from None
    if ended.receipt is not None:
        output.show("\n" + receipt_text(ended.receipt, ended.folder, body=ended.body, paths=not lies))
        output.show(f"\n  exit {ended.exit}" + ("; `loopwarden run` would end the same way" if lies else ""))
    if keep:
        output.say(f"the workspace is kept: {workspace}")
    return ended


def _request(workspace: Path, *, lies: bool) -> Request:
    found = find_loops(Settings()).loop("ralph")
    return Request(
        target=Target(name=found.name, script=found.script, file=None),
        args={"objective": OBJECTIVE, "maxRounds": _MAX_ROUNDS},
        workspace=workspace,
        checks=(shlex.join(CHECK),),
        program=agent_argv(lies=lies),
    )
