"""From source to code: parse, check, rewrite, compile. Whatever is wrong becomes one ScriptRejected."""

import ast
import types
import warnings
from dataclasses import dataclass
from typing import Final

from .survey import check_main, survey
from .transformer import PolicyTransformer
from .violations import ScriptRejected, Violation

SCRIPT_FILENAME: Final = "<script>"
_SUMMARY_CHARS: Final = 200
_MESSAGE_CHARS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledScript:
    """`code` is the module body, to be executed in `script_namespace()`; `summary` the docstring's first line or ""."""

    code: types.CodeType
    summary: str


def compile_script(source: str) -> CompiledScript:
    """Check and compile a script.

    Raises ScriptRejected with every violation that was found, in source order. A source that cannot be parsed has one.
    """
    try:
        with warnings.catch_warnings():
            # The parser warns about odd escapes; showing a warning would look for a source file.
            warnings.simplefilter("ignore")
            return _compiled(source)
    except SyntaxError as error:
        violation = _syntax_violation(error)
    except RecursionError:
        violation = _unplaced("too-deep", "the script is nested too deeply", "split it into smaller functions")
    except MemoryError:
        violation = _unplaced("too-deep", "the script is too large or nested too deeply", "split it into smaller parts")
    except UnicodeError:
        violation = _unplaced("syntax", "the script is not valid Unicode text", "save it as UTF-8")
    except (ValueError, OverflowError) as error:
        violation = _unplaced("syntax", f"the script cannot be parsed: {error}", "save it as plain UTF-8 text")
    raise ScriptRejected((violation,)) from None


def _compiled(source: str) -> CompiledScript:
    tree = ast.parse(source.removeprefix("\ufeff"), SCRIPT_FILENAME)  # editors leave a byte order mark there
    surveyed = survey(tree)
    if surveyed.too_deep is not None:
        raise ScriptRejected((surveyed.too_deep,))
    docstring = ast.get_docstring(tree) or ""
    main_violation = check_main(tree)
    transformer = PolicyTransformer(surveyed.bound_names)
    transformer.visit(tree)
    violations = [*transformer.violations, *([main_violation] if main_violation else [])]
    if violations:
        raise ScriptRejected(tuple(sorted(violations, key=lambda violation: (violation.line, violation.column))))
    # dont_inherit: the __future__ imports of this module are not the script's.
    code = compile(tree, SCRIPT_FILENAME, "exec", dont_inherit=True)
    return CompiledScript(code=code, summary=_sendable(docstring.partition("\n")[0], _SUMMARY_CHARS))


def _sendable(text: str, max_chars: int) -> str:
    # An escape can put a lone surrogate into a text, and the parser quotes names of any length.
    if len(text) > max_chars:
        text = text[: max_chars - 1] + "…"
    return text.encode("utf-8", "replace").decode("utf-8")


def _syntax_violation(error: SyntaxError) -> Violation:
    return Violation(
        line=max(error.lineno or 1, 1),
        column=max(error.offset or 1, 1),
        rule="syntax",
        message=_sendable(f"the script is not valid Python: {error.msg}", _MESSAGE_CHARS),
        hint="correct the line; Python reports only the first such error",
    )


def _unplaced(rule: str, message: str, hint: str) -> Violation:
    return Violation(line=1, column=1, rule=rule, message=message, hint=hint)
