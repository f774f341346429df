"""The loop as it is shipped: source as text, one meaning in script and host."""

import sys
import unicodedata
from typing import Any

import loopwarden_scripts.ralph as package
from loopwarden import visible
from loopwarden.provider import Capabilities
from loopwarden_engine.language import compile_script, script_namespace
from loopwarden_engine.plain import canonical_bytes
from loopwarden_scripts.ralph.report import REPORT_KEYS, REPORT_SCHEMA

EXTRA = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164, *range(0xFE00, 0xFE10), 0xFFA0}


def namespace_of_script() -> dict[str, Any]:
    hooks = dict.fromkeys(("agent", "log", "parallel", "phase", "pipeline"), lambda *args, **options: None)
    namespace: dict[str, Any] = script_namespace(hooks)
    exec(compile_script(package.script.source).code, namespace)
    return namespace


def codes(ranges: visible.Ranges) -> set[int]:
    return {code for first, last in ranges for code in range(first, last + 1)}


def test_the_public_names_are_sorted_and_there() -> None:
    assert package.__all__ == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)


def test_loop_py_is_never_imported() -> None:
    assert "loopwarden_scripts.ralph.loop" not in sys.modules


def test_the_loop_object_builds_the_shipped_script() -> None:
    built = package.loop.build(package.loop.settings_model())
    assert (built.name, built.digest) == ("ralph", package.script.digest)
    assert package.loop.readme.startswith("# Ralph\n")


def test_the_script_keeps_the_language_policy_and_says_what_it_does() -> None:
    assert compile_script(package.script.source).summary.startswith("Give one fixed objective to a fresh agent")


def test_the_provider_must_give_structured_output_and_a_fresh_context() -> None:
    assert package.script.contract.requires == Capabilities(structured_output=True, fresh_context=True)
    assert package.script.contract.continues
    assert package.script.contract.args_model is package.Args


def test_script_and_host_hold_the_same_schema_and_the_same_tables() -> None:
    script = namespace_of_script()
    assert canonical_bytes(script["REPORT_SCHEMA"]) == canonical_bytes(REPORT_SCHEMA)
    assert script["REPORT_KEYS"] == REPORT_KEYS
    assert script["SPACE_RANGES"] == visible.SPACE_RANGES
    assert script["INVISIBLE_RANGES"] == visible.INVISIBLE_RANGES
    assert script["REFUSED_RANGES"] == visible.REFUSED_RANGES


def test_space_is_what_strip_removes_and_the_byte_order_mark() -> None:
    assert codes(visible.SPACE_RANGES) == {code for code in range(sys.maxunicode + 1) if chr(code).isspace()} | {0xFEFF}


def test_the_invisible_characters_are_those_of_the_design() -> None:
    categories = {"Cc", "Cf", "Zs", "Zl", "Zp"}
    here = {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in categories} | EXTRA
    # An older Python does not know the newest of them: those it calls unassigned or a symbol.
    newer = codes(visible.INVISIBLE_RANGES) - here
    assert here <= codes(visible.INVISIBLE_RANGES)
    assert newer <= set(range(0x13439, 0x13440))


def test_the_refused_characters_are_control_characters_and_surrogates() -> None:
    expected = {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in ("Cc", "Cs")}
    assert codes(visible.REFUSED_RANGES) == expected - {ord("\t"), ord("\n")}
