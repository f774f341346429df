"""The reference of hooks and language in docs/write-a-loop.md is what the engine and the host really have."""

import inspect

import loopwarden_engine
from loopwarden.schema_dialect import NOTES, Dialect
from loopwarden_engine.hook_rules import HOOK_NAMES
from loopwarden_engine.language.facades import MODULES
from loopwarden_engine.language.grammar import REFUSED_NODES
from loopwarden_engine.language.names import _ATTRIBUTE_HINTS, ALWAYS_REFUSED, REFUSED_BUILTINS
from loopwarden_engine.language.namespace import BUILTINS
from support.pages import between, code, table

PAGE = "docs/write-a-loop.md"


def signature(name: str) -> str:
    """A hook with its parameters, without types."""
    shown = inspect.signature(getattr(loopwarden_engine, name))
    bare = [item.replace(annotation=inspect.Parameter.empty) for item in shown.parameters.values()]
    return f"{name}{inspect.Signature(bare)}"


def hooks_table() -> str:
    """A row per hook: signature, and the first sentence of its docstring."""
    rows = [("hook", "what it does")]
    for name in sorted(HOOK_NAMES):
        text = inspect.getdoc(getattr(loopwarden_engine, name)) or ""
        rows.append((f"`{signature(name)}`", text.split("\n\n")[0].replace("\n", " ")))
    return table(*rows)


def schema_list() -> str:
    """Every keyword that schemas may have."""
    return code(*sorted({*Dialect({})._keywords, *NOTES})) + "\n"


def builtins_table() -> str:
    """Functions and types; exception classes."""
    errors = {name for name, value in BUILTINS.items() if isinstance(value, type) and issubclass(value, Exception)}
    return table(
        ("kind", "names"),
        ("functions, types, constants", code(*sorted(BUILTINS.keys() - errors, key=str.lower))),
        ("exceptions", code(*sorted(errors))),
    )


def modules_table() -> str:
    """A row per module that a script may import."""
    return table(("module", "members"), *((f"`{name}`", code(*sorted(MODULES[name]))) for name in MODULES))


def refused_table() -> str:
    """What the policy refuses by name or by kind, with its own hint."""
    kinds = dict.fromkeys(REFUSED_NODES.values())
    nodes = [(what.replace(" is not allowed", "").replace(" are not allowed", ""), hint) for what, hint in kinds]
    named = [(f"`{name}`", hint) for name, hint in ALWAYS_REFUSED.items()]
    attributes = [(f"`.{name}`", hint) for name, hint in _ATTRIBUTE_HINTS.items()]
    by_hint: dict[str, list[str]] = {}
    for name, hint in REFUSED_BUILTINS.items():
        by_hint.setdefault(hint, []).append(name)
    grouped = [(code(*names), hint) for hint, names in by_hint.items()]
    return table(("refused", "instead"), *named, *grouped, *attributes, *nodes)


def test_the_page_of_loops_lists_every_hook_with_its_parameters() -> None:
    assert between(PAGE, "hooks") == hooks_table()


def test_the_page_of_loops_lists_every_keyword_of_schemas() -> None:
    assert between(PAGE, "schema") == schema_list()


def test_the_page_of_loops_lists_every_builtin() -> None:
    assert between(PAGE, "builtins") == builtins_table()


def test_the_page_of_loops_lists_every_member_of_every_module() -> None:
    assert between(PAGE, "modules") == modules_table()


def test_the_page_of_loops_lists_what_is_refused_with_the_hints_of_the_policy() -> None:
    assert between(PAGE, "refused") == refused_table()
