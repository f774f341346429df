"""Closed sets and the tables about them agree; what is public is what is listed."""

import inspect
import types

import pytest

import loopwarden
import loopwarden.testing
import loopwarden_engine
from loopwarden import failures
from loopwarden.failures import MEANINGS, Code, RunFailed, StartRefused
from loopwarden_engine import hook_rules, messages


def test_every_code_has_one_row_in_the_table() -> None:
    """Code, class, exit and status live in one table, and it is complete."""
    assert set(MEANINGS) == set(Code)


def test_refusals_have_a_class_of_their_own_and_the_table_names_it() -> None:
    """Before a run: one class per code."""
    refusals = {kind.code: kind for kind in StartRefused.__subclasses__()}
    named = {code: row.exception for code, row in MEANINGS.items() if issubclass(row.exception, StartRefused)}
    assert refusals == named
    assert all(issubclass(row.exception, StartRefused | RunFailed) for row in MEANINGS.values())


def test_exits_of_the_command_line_are_those_of_the_design() -> None:
    """0 complete, 1 failed after start, 2 nothing started, 75 try later, 124 deadline, 130 interrupted."""
    exits = {code: row.exit for code, row in MEANINGS.items()}
    assert {code for code, number in exits.items() if number == 75} == {
        Code.WORKSPACE_BUSY,
        Code.STORE_UNAVAILABLE,
        Code.SCOPE_BUDGET,
    }
    assert {code for code, number in exits.items() if number == 124} == {Code.DEADLINE}
    assert {code for code, number in exits.items() if number == 130} == {Code.CANCELLED}
    assert all(
        number == (2 if issubclass(MEANINGS[code].exception, StartRefused) else 1)
        for code, number in exits.items()
        if number not in {75, 124, 130}
    )
    assert (failures.EXIT_BLOCKED, failures.EXIT_ROUNDS_USED, failures.EXIT_ROUND_FAILED) == (3, 4, 5)
    assert (failures.EXIT_CHECK_FAILED, failures.EXIT_TERMINATED) == (6, 143)


def test_codes_that_a_worker_may_send_are_codes_of_the_host() -> None:
    """The wire cannot bring in a code that the table does not know."""
    assert {Code(code) for code in messages.FATAL_CODES | messages.FAILED_CODES} < set(Code)


def test_public_names_are_listed_sorted_and_documented() -> None:
    """`__all__` is what is really public, and each thing says what it is."""
    for module in (loopwarden, loopwarden.testing, loopwarden_engine):
        assert module.__all__ == sorted(module.__all__)
        public = {
            name
            for name, thing in vars(module).items()
            if not name.startswith("_")
            and not isinstance(thing, types.ModuleType)
            and getattr(thing, "__module__", "").startswith("loopwarden")
        }
        assert public == {
            name for name in module.__all__ if getattr(getattr(module, name), "__module__", "").startswith("loopwarden")
        }
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert inspect.getdoc(thing), name


def test_hooks_outside_of_a_run_explain_themselves() -> None:
    """The names that the sandbox resolves, typed for editors."""
    for name in hook_rules.HOOK_NAMES:
        hook = getattr(loopwarden_engine, name)
        with pytest.raises(loopwarden_engine.HookUnavailableError, match="loopwarden run"):
            hook("x")
