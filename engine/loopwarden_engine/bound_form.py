"""How the bound of a script crosses from worker to host: a table of nodes, each made of nodes before it.

A row is `[operation, operand, …]`. Operands are places of earlier rows or literals, as the table below says. The last
row is the bound. Rows say two kinds of things. A **count** is a natural number: how often something can happen. A
**value** is what an expression of the script gives, computed from its args and from constants alone. Where computing a
value raises in the script, what would have been counted with it does not happen: the count is 0.
"""

from collections.abc import Mapping
from typing import Final

MAX_NODES: Final = 2_000
MAX_OPERANDS: Final = 6_000
"""Of all rows together."""
MAX_DIGITS: Final = 400
"""Of one constant, in decimal."""
MAX_TEXT_CHARS: Final = 200
"""Of one literal text: a key of args."""
MAX_REASONS: Final = 20
MAX_REASON_CHARS: Final = 300
MAX_CALLS: Final = 500
"""`agent()` calls that are listed."""
MAX_LINES: Final = 500
"""Lines that are listed for one hook."""
MAX_LOOPS: Final = 20
"""Enclosing loops that are listed for one call."""
MAX_OPTIONS: Final = 20
MAX_OPTION_CHARS: Final = 40

# c: place of a count. v: place of a value. n: natural number, or its digits as text. k: a key, text or integer.
# l: a literal (null, true, false, integer, float, text). d: the digits of an integer. c+ and v+: one or more.
OPERATIONS: Final[Mapping[str, tuple[str, str]]] = {
    "count": ("c", "n"),
    "sum": ("c", "c+"),
    "product": ("c", "c+"),
    "max": ("c", "c+"),
    "min": ("c", "c+"),
    "items": ("c", "v"),  # how often `for … in v` goes round
    "range": ("c", "vvv"),  # the length of range(start, stop, step)
    "first": ("c", "cv"),  # the length of x[:v], where x has c items
    "rest": ("c", "cv"),  # the length of x[v:]
    "parts": ("c", "cv"),  # into how many parts of v items c items can be cut
    "cut": ("c", "v"),  # the length of x[:v], whatever x is: v, and not known where v is negative or null
    "literal": ("v", "l"),
    "integer": ("v", "d"),
    "args": ("v", ""),
    "item": ("v", "vk"),  # v[k]
    "get": ("v", "vkv"),  # v.get(k, default), of a dict
    "length": ("v", "v"),  # len(v)
    "int": ("v", "v"),  # int(v)
    "negate": ("v", "v"),
    "add": ("v", "vv"),
    "subtract": ("v", "vv"),
    "multiply": ("v", "vv"),
    "divide": ("v", "vv"),  # v // w
    "modulo": ("v", "vv"),
    "smallest": ("v", "v+"),  # min(v, w, …)
    "largest": ("v", "v+"),  # max(v, w, …)
    "or": ("v", "v+"),  # v or w
}
"""Operation: what it gives, and its operands."""
