"""One command per loop under `loopwarden run`: its options come from the arguments model of its contract."""

import inspect
import types
import typing
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from loopwarden.cli import values
from loopwarden.cli.request import Request, Target
from loopwarden.failures import ArgsInvalid, StartRefused
from loopwarden_engine.plain import JsonObject

RunAction = Callable[[Request, "RunOptions"], int]
"""What a command does with the request of its options."""

PLAIN_HELP: Final = "Run a script of your own."
PROGRAM_HELP: Final = (
    "The agent is a provider of the settings, or any program: -- PROGRAM ARG... takes a prompt on its standard input "
    "and prints a report. Whole arguments can be {workspace}, {schema} or {schema_file}. The arguments are kept in the "
    "folder of the run: give secrets by environment variables, named by --pass-env or in pass_env of a provider."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How the run is to be shown."""

    dry_run: bool
    json: bool
    more: Mapping[str, Any] = field(default_factory=dict)
    """The options of the command that `run` does not have."""


def _option(*names: str, **more: Any) -> Any:
    return typer.Option(*names, show_default=False, **more)


_SHARED: Final[Mapping[str, tuple[Any, Any]]] = {
    "workspace": (
        Annotated[Path | None, _option("--workspace", metavar="FOLDER", help="Where agents work; the current folder.")],
        None,
    ),
    "check": (
        Annotated[
            list[str] | None,
            _option(
                "--check", metavar="CMD", help="Run after a claimed completion, in the workspace; may be repeated."
            ),
        ],
        None,
    ),
    "agent_timeout": (
        Annotated[
            float | None,
            _option("--agent-timeout", parser=values.seconds, metavar="TIME", help="For one agent: 90s, 15m, 2h; 2h."),
        ],
        None,
    ),
    "deadline": (
        Annotated[
            float | None,
            _option(
                "--deadline", parser=values.seconds, metavar="TIME", help="For the whole run: 90s, 15m, 8h, 1d; 8h."
            ),
        ],
        None,
    ),
    "provider": (
        Annotated[
            str | None,
            _option(
                "--provider",
                metavar="NAME",
                help="A provider of the settings, or claude, codex, opencode, qwen, gemini.",
            ),
        ],
        None,
    ),
    "pass_env": (
        Annotated[
            list[str] | None,
            _option(
                "--pass-env",
                parser=values.variable,
                metavar="NAME",
                help="A variable of yours that the agents get too; may be repeated.",
            ),
        ],
        None,
    ),
    "model": (
        Annotated[str | None, _option("--model", metavar="NAME", help="The model of an agent program or endpoint.")],
        None,
    ),
    "max_extra_attempts": (
        Annotated[
            int | None,
            _option(
                "--max-extra-attempts",
                parser=values.count,
                metavar="N",
                help="Repeats that the provider's policy may ask for, in the whole run; 0.",
            ),
        ],
        None,
    ),
    "max_cost": (
        Annotated[
            float | None,
            _option(
                "--max-cost",
                parser=values.amount,
                metavar="USD",
                help="Money that the agents may use, such as 5; no cap.",
            ),
        ],
        None,
    ),
    "share_workspace": (
        Annotated[bool, _option("--share-workspace", help="Run even while another run works in the workspace.")],
        False,
    ),
    "isolation": (
        Annotated[
            Any,
            _option(
                "--isolation",
                parser=values.isolation,
                metavar="worktree",
                help="Agents work in a git worktree and branch of their own, which are kept.",
            ),
        ],
        None,
    ),
    "dry_run": (
        Annotated[bool, _option("--dry-run", help="Print what would be done and the first prompt; start no agent.")],
        False,
    ),
    "json": (Annotated[bool, _option("--json", help="One JSON object on standard output.")], False),
    "config": (
        Annotated[
            Path | None, _option("--config", metavar="FILE", help="The settings; else the user's loopwarden.toml.")
        ],
        None,
    ),
}

_PLAIN: Final[Mapping[str, tuple[Any, Any]]] = {
    "args_json": (
        Annotated[
            dict[str, Any] | None,
            _option(
                "--args-json",
                parser=values.json_object,
                metavar="JSON|@FILE|-",
                help="The arguments of main: an object.",
            ),
        ],
        None,
    ),
    "max_total_agents": (
        Annotated[
            int | None,
            _option(
                "--max-total-agents",
                parser=values.positive_number,
                metavar="N",
                help="At most this many agents; required unless the settings set it.",
            ),
        ],
        None,
    ),
}


def shared_options(*names: str) -> dict[str, tuple[Any, Any]]:
    """The annotations and defaults of options that several commands have: these, or all of them."""
    return {name: _SHARED[name] for name in names or _SHARED}


def loop_command(
    target: Target,
    *,
    total_is_set: bool,
    program: Sequence[str],
    action: RunAction,
    more: Mapping[str, tuple[Any, Any]] | None = None,
) -> Callable[..., int]:
    """The command that runs `target`. `total_is_set`: the settings give `max_total_agents`. `more`: further options."""
    model = target.script.contract.args_model
    further = more or {}
    own = {} if model is None else _fields_by_parameter(model, {*_SHARED, *further})
    parameters = dict(_PLAIN) if model is None else {name: _field_option(name, item) for name, item in own.items()}

    def run(**given: Any) -> int:
        args = (given["args_json"] or {}) if model is None else _args(own, given)
        total = given.get("max_total_agents")
        if model is None and total is None and not total_is_set:
            raise typer.BadParameter(
                "--max-total-agents N is required: say how many agents this script may start at most"
            )
        request = Request(
            target=target,
            args=args,
            workspace=given["workspace"],
            checks=tuple(given["check"] or ()),
            agent_timeout_seconds=given["agent_timeout"],
            deadline_seconds=given["deadline"],
            max_total_agents=total,
            max_extra_attempts=given["max_extra_attempts"],
            max_cost_usd=given["max_cost"],
            provider=given["provider"],
            program=tuple(program),
            pass_env=tuple(given["pass_env"] or ()),
            model=given["model"],
            share_workspace=given["share_workspace"],
            isolation=given["isolation"],
        )
        try:
            options = RunOptions(
                dry_run=given["dry_run"], json=given["json"], more={name: given[name] for name in further}
            )
            return action(request, options)
        except ArgsInvalid as error:
            raise in_words_of_options(error, {name: key for name, (key, _) in own.items()}) from None

    return as_command(run, {**parameters, **_SHARED, **further})


def as_command(function: Callable[..., int], parameters: Mapping[str, tuple[Any, Any]]) -> Callable[..., int]:
    """Give `function` the signature that typer reads options from: name to annotation and default."""
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, (annotation, default) in parameters.items()
        ]
    )
    function.__annotations__ = {name: annotation for name, (annotation, _) in parameters.items()}
    return function


# ---- a field of an arguments model as an option


def _fields_by_parameter(model: type[BaseModel], taken: Container[str]) -> dict[str, tuple[str, FieldInfo]]:
    """Python name of the option, to the key in JSON and the field. A name that is taken gets `arg_` in front."""
    return {
        f"arg_{name}" if name in taken else name: (item.alias or name, item)
        for name, item in model.model_fields.items()
    }


def _field_option(name: str, named: tuple[str, FieldInfo]) -> tuple[Any, Any]:
    _, item = named
    option = _option_name(name)
    help_text = item.description or ""
    kind = _bare_type(item.annotation)
    if kind is bool:
        return Annotated[bool | None, _option(f"{option}/--no-{option[2:]}", help=help_text)], None
    parser, metavar = {
        str: (values.text_or_file, "TEXT|@FILE|-"),
        int: (values.whole_number, "N"),
        float: (values.real_number, "NUMBER"),
    }.get(kind, (values.json_value, "JSON|@FILE|-"))
    annotation = Annotated[Any, _option(option, parser=parser, metavar=metavar, help=help_text)]
    return annotation, ... if item.is_required() else None


def _option_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def _bare_type(annotation: Any) -> Any:
    """The one type that an annotation allows beside None; None when there are several."""
    if typing.get_origin(annotation) is Annotated:
        return _bare_type(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = {_bare_type(item) for item in typing.get_args(annotation) if item is not type(None)}
        return kinds.pop() if len(kinds) == 1 else None
    return annotation


def _args(own: Mapping[str, tuple[str, FieldInfo]], given: Mapping[str, Any]) -> JsonObject:
    """The arguments in JSON form; what was not given is left to the contract."""
    return {key: given[name] for name, (key, _) in own.items() if given.get(name) is not None}


def in_words_of_options(error: ArgsInvalid, keys: Mapping[str, str]) -> StartRefused:
    """A contract names arguments as JSON does; a person typed options. `keys`: name of the option to key in JSON."""
    message = error.message
    for name, key in keys.items():
        if message.startswith(f"{key} "):
            message = _option_name(name) + message[len(key) :]
    return ArgsInvalid(message, line=error.line, details={**error.details})
