"""Reference pages cannot lag behind the code: their tables are compared with it."""

import dataclasses
import inspect
import re

from loopwarden.failures import MEANINGS, RunFailed
from loopwarden.limits import OVERRIDABLE, Limits
from support.pages import between


def limits_table() -> str:
    """A row per limit, from its docstring in the source."""
    source = inspect.getsource(Limits)
    rows = ["| setting | default | a request may lower it | what it limits |", "|---|---|---|---|"]
    for field in dataclasses.fields(Limits):
        words = re.search(rf'{field.name}: [\w |]+ = [^\n]+\n    """(.+?)"""', source, re.DOTALL)
        assert words is not None, field.name
        default = f"{field.default:g}" if isinstance(field.default, float) else str(field.default).lower()
        lowered = "yes" if field.name in OVERRIDABLE else "no"
        rows.append(f"| `{field.name}` | {default} | {lowered} | {' '.join(words.group(1).split())} |")
    return "\n".join(rows) + "\n"


def codes_table() -> str:
    """A row per failure code."""
    rows = ["| code | when | exception | exit | HTTP |", "|---|---|---|---|---|"]
    for code, meaning in MEANINGS.items():
        when = "in a run" if issubclass(meaning.exception, RunFailed) else "before a run"
        rows.append(f"| `{code}` | {when} | `{meaning.exception.__name__}` | {meaning.exit} | {meaning.http_status} |")
    return "\n".join(rows) + "\n"


def test_the_page_of_limits_lists_every_limit_as_the_code_has_it() -> None:
    """Name, default, and whether a request may lower it."""
    assert between("docs/limits.md", "limits") == limits_table()


def test_the_page_of_codes_lists_every_code_as_the_code_has_it() -> None:
    """Code, class, exit and status."""
    assert between("docs/codes.md", "codes") == codes_table()
