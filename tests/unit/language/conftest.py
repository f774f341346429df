"""Running scripts in this process: the language wall alone, with hooks that answer at once."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from loopwarden_engine.language import (
    ScriptFault,
    ScriptRejected,
    Violation,
    compile_script,
    describe_exception,
    script_namespace,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a script ended: one of the three is set."""

    value: object = None
    violations: tuple[Violation, ...] = ()
    fault: ScriptFault | None = None


def run_script(source: str, args: object = None, replies: object = ()) -> Ending:
    """Compile and run a script. Its value is copied as JSON when it is JSON data."""
    prompts: list[str] = []

    def agent(prompt: str, **_options: object) -> object:
        prompts.append(prompt)
        if isinstance(replies, Mapping):
            fitting = sorted((key for key in replies if key in prompt), key=len)
            return replies[fitting[-1]] if fitting else "reply"
        assert isinstance(replies, list | tuple)
        return replies[len(prompts) - 1] if len(prompts) <= len(replies) else "reply"

    def parallel(thunks: list[Callable[[], object]]) -> list[object]:
        return [thunk() for thunk in list(thunks)]

    def tell(_text: str) -> None:
        return None

    try:
        compiled = compile_script(source)
    except ScriptRejected as rejection:
        return Ending(violations=rejection.violations)
    namespace = script_namespace({"agent": agent, "parallel": parallel, "phase": tell, "log": tell})
    try:
        exec(compiled.code, namespace)
        main: Any = namespace["main"]
        value = main(args)
    except BaseException as error:
        return Ending(fault=describe_exception(error))
    try:
        return Ending(value=json.loads(json.dumps(value)))
    except (TypeError, ValueError):
        return Ending(value=value)


@pytest.fixture
def run() -> Callable[..., Ending]:
    """`run(source, args, replies)` gives the Ending of a whole script."""
    return run_script


@pytest.fixture
def value_of() -> Callable[[str], object]:
    """`value_of(body)` gives what a main with this body returns; the test fails if it is refused or raises."""

    def evaluate(body: str, before: str = "") -> object:
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        ending = run_script(f"{before}\ndef main(args):\n{lines}")
        assert not ending.violations, ending.violations
        assert ending.fault is None, ending.fault
        return ending.value

    return evaluate


@pytest.fixture
def fault_of() -> Callable[[str], ScriptFault]:
    """`fault_of(body)` gives how a main with this body fails."""

    def evaluate(body: str, before: str = "") -> ScriptFault:
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        ending = run_script(f"{before}\ndef main(args):\n{lines}")
        assert ending.fault is not None, ending
        return ending.fault

    return evaluate


@pytest.fixture
def refusals_of() -> Callable[[str], list[tuple[int, str]]]:
    """`refusals_of(source)` gives (line, rule) of every violation."""

    def evaluate(source: str) -> list[tuple[int, str]]:
        return [(violation.line, violation.rule) for violation in run_script(source).violations]

    return evaluate
