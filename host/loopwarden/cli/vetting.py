"""`loopwarden vet`: scripts are checked in a confined worker, without running them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from loopwarden.bound_rule import shown_most
from loopwarden.cli import values
from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.subjects import PATHS_HELP, Finder, Subject, Unreadable, script_args
from loopwarden.display import plural, shown_line
from loopwarden.failures import EXIT_FAILED, EXIT_NOT_STARTED, LaunchFailed, ScriptRejected
from loopwarden.findings import AgentCall, Findings
from loopwarden.host import Host
from loopwarden.settings import Settings
from loopwarden.vetting import Vetted
from loopwarden_engine.hook_rules import OPTIONS
from loopwarden_engine.plain import MAX_SAFE_INTEGER, JsonObject

_MAX_CHARS = 1000
_MOST_CALLS = 20
"""Calls that are shown to a person."""


def vet_command(config: Path | None) -> Callable[..., int]:
    """The command."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        if given["args"] is not None and len(given["paths"]) > 1:
            raise typer.BadParameter("the arguments are those of one script; name one PATH")
        finder = Finder(config, output)
        reports = vet_all(finder.find(given["paths"]), finder.settings, args=given["args"])
        exit_code = exit_of(reports)
        output.show_object({"exit": exit_code, "scripts": [report.to_json() for report in reports]})
        output.show("\n\n".join(report.text() for report in reports))
        return exit_code

    paths = Annotated[list[str], typer.Argument(metavar="PATH…", help=PATHS_HELP)]
    args = Annotated[
        dict[str, Any] | None,
        typer.Option(
            "--args-json",
            "--args",
            parser=values.json_object,
            metavar="JSON|@FILE|-",
            help="Arguments, to say how many agents the bound is with them.",
            show_default=False,
        ),
    ]
    return as_command(run, {"paths": (paths, ...), "args": (args, None), **shared_options("json", "config")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What vetting came to, for one word of the command line. Exactly one of the last three is there."""

    place: str
    subject: Subject | None = None
    agents: int | None = None
    """The bound with the arguments that were given; None without them, or when it cannot be said."""
    has_args: bool = False
    vetted: Vetted | None = None
    violations: Sequence[Mapping[str, Any]] = ()
    problem: str | None = None
    """Why it could not be vetted."""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        shown: dict[str, Any] = {
            "place": self.place,
            "name": None if self.subject is None else self.subject.script.name,
            "source": None if self.subject is None else self.subject.script.digest,
            "contract": None if self.subject is None else self.subject.code.digest,
            "violations": [dict(violation) for violation in self.violations],
            "problem": self.problem,
        }
        if self.vetted is not None:
            findings = self.vetted.findings
            shown["summary"] = self.vetted.summary
            shown["hooks"] = {name: list(lines) for name, lines in findings.hooks.items() if lines}
            shown["calls"] = [_call_json(call) for call in findings.calls]
            shown["moreCalls"] = findings.more_calls
            shown["bound"] = findings.bound.to_json()
            shown["agents"] = None if self.agents is None else min(self.agents, MAX_SAFE_INTEGER)
        return shown

    def text(self) -> str:
        """For people. What a script holds is shown so that it cannot mislead a terminal."""
        place = shown_line(self.place, _MAX_CHARS)
        if self.problem is not None:
            return f"{place}: not vetted: {shown_line(self.problem, _MAX_CHARS)}"
        if self.vetted is None:
            lines = [_violation(place, violation) for violation in self.violations]
            return "\n".join([*lines, f"{place}: refused: {plural(len(lines), 'violation')}"])
        return "\n".join([f"{place}: accepted", *(f"  {name:<10} {value}" for name, value in self._rows())])

    def _rows(self) -> list[tuple[str, str]]:
        assert self.vetted is not None
        assert self.subject is not None
        findings = self.vetted.findings
        rows = [("says", self.vetted.summary or "nothing: it has no docstring")]
        hooks = ", ".join(f"{name} ({_lines(lines)})" for name, lines in findings.hooks.items() if lines)
        rows.append(("hooks", hooks or "none"))
        rows += _under("agents", _calls(findings) or ["none"])
        rows += bound_rows(findings)
        if self.has_args:
            most = "cannot be told with these arguments" if self.agents is None else shown_most(self.agents)
            note = "; these are the arguments of main, since the contract of a folder is not asked"
            rows.append(("at most", most + (note if self.subject.is_folder_of_contract else "")))
        rows += [("source", self.subject.script.digest), ("contract", self.subject.code.digest or "cannot be told")]
        return [(name, shown_line(value, _MAX_CHARS)) for name, value in rows]


def exit_of(reports: Sequence[Report]) -> int:
    """0 when all scripts were accepted, 1 when one is refused, 2 when one could not be vetted."""
    if any(report.violations for report in reports):
        return EXIT_FAILED
    return EXIT_NOT_STARTED if any(report.problem is not None for report in reports) else 0


def vet_all(
    found: Sequence[Subject | Unreadable], settings: Settings, *, args: JsonObject | None = None
) -> list[Report]:
    """Vet scripts with one launcher. Raises `ConfinementUnavailable`, and what a contract makes of `args`."""
    return asyncio.run(_vet_all(found, settings, args))


async def _vet_all(found: Sequence[Subject | Unreadable], settings: Settings, args: JsonObject | None) -> list[Report]:
    async with Host(
        providers={}, limits=settings.limits, allow_weak_confinement=settings.allow_weak_confinement
    ) as host:
        return [await _vet(host, each, args) for each in found]


async def _vet(host: Host, found: Subject | Unreadable, args: JsonObject | None) -> Report:
    if isinstance(found, Unreadable):
        return Report(place=found.place, problem=found.problem)
    try:
        vetted = await host.vet(found.script)
    except ScriptRejected as refused:
        return Report(place=found.place, subject=found, violations=_violations(refused))
    except LaunchFailed as failed:
        return Report(place=found.place, subject=found, problem=failed.message)
    agents = None if args is None else vetted.findings.bound.evaluate(script_args(found.script, args))
    return Report(place=found.place, subject=found, vetted=vetted, agents=agents, has_args=args is not None)


def _violations(refused: ScriptRejected) -> list[Mapping[str, Any]]:
    """What a script is refused for; a refusal of the whole, such as a source that is too large, counts as one."""
    violations = refused.details.get("violations")
    if isinstance(violations, list) and violations:
        return violations
    rule = refused.details.get("rule", "refused")
    return [{"line": refused.line or 1, "column": 1, "rule": rule, "message": refused.message, "hint": ""}]


# ---- words


def _violation(place: str, violation: Mapping[str, Any]) -> str:
    hint = f"; {violation['hint']}" if violation["hint"] else ""
    text = f"{violation['line']}:{violation['column']}: {violation['rule']}: {violation['message']}{hint}"
    return f"{place}:{shown_line(text, _MAX_CHARS)}"


def bound_rows(findings: Findings) -> list[tuple[str, str]]:
    """The bound, or every line that makes it unknown."""
    bound = findings.bound
    if bound.is_known:
        return [("bound", bound.text)]
    return _under("bound", ["unknown", *(f"line {reason.line}: {reason.message}" for reason in bound.reasons)])


def _under(name: str, values: Sequence[str]) -> list[tuple[str, str]]:
    return [(name if index == 0 else "", value) for index, value in enumerate(values)]


def _lines(lines: Sequence[int]) -> str:
    return ("line " if len(lines) == 1 else "lines ") + ", ".join(map(str, lines))


def _calls(findings: Findings) -> list[str]:
    """A line for each call; the first ones, if there are many."""
    lines = [_call(call) for call in findings.calls[:_MOST_CALLS]]
    more = len(findings.calls) + findings.more_calls - len(lines)
    if more:
        listed = f"the first {len(findings.calls)}" if findings.more_calls else "all"
        lines.append(f"and {plural(more, 'more call')}; --json lists {listed}")
    return lines


def _call(call: AgentCall) -> str:
    parts = [f"line {call.line}: {_schema_words(call)}"]
    others = [option for option in call.options if option != "schema"]
    if others:
        parts.append(f"options {', '.join(others)}")
    parts += _mistakes(call)
    parts += [
        f"in the loop of line {loop.line}, which has {'a' if loop.has_bound else 'no visible'} bound"
        for loop in call.loops
    ]
    return "; ".join(parts)


def _schema_words(call: AgentCall) -> str:
    if not call.has_schema and "**" in call.options and "schema" not in call.options:
        return "whether it has a schema cannot be told"
    return f"{'with' if call.has_schema else 'without'} a schema"


def _mistakes(call: AgentCall) -> list[str]:
    """Why every run ends at this call, whatever its arguments."""
    given = call.positionals
    known = (*OPTIONS, "**", *(() if given else ("prompt",)))
    mistakes = []
    for option in call.options:
        if option not in known:
            near = get_close_matches(option, OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(OPTIONS)}"
            mistakes.append(f"{option}: no such option, the run ends here: {hint}")
    if given == 0 and "prompt" not in call.options and "**" not in call.options:
        mistakes.append("no prompt, the run ends here")
    if given is not None and given > 1:
        mistakes.append(f"{given} arguments without a name, the run ends here: give the prompt, and options by name")
    return mistakes


def _call_json(call: AgentCall) -> dict[str, Any]:
    return {
        "line": call.line,
        "column": call.column,
        "positionals": call.positionals,
        "options": list(call.options),
        "hasSchema": call.has_schema,
        "loops": [{"line": loop.line, "hasBound": loop.has_bound} for loop in call.loops],
    }
