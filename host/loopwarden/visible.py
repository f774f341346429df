"""What counts as trimmed, visible and clean text, by literal tables (design section 10).

Literal, because the Unicode tables differ between Python versions and a report must mean the same on each. `loop.py`
holds its own copy of the tables; a test compares the two.
"""

import re
from typing import Final, TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]

SPACE_RANGES: Final[Ranges] = (
    (0x09, 0x0D),
    (0x1C, 0x20),
    (0x85, 0x85),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
"""What `str.strip()` removes, and U+FEFF."""

INVISIBLE_RANGES: Final[Ranges] = (
    (0x00, 0x20),
    (0x7F, 0xA0),
    (0xAD, 0xAD),
    (0x034F, 0x034F),
    (0x0600, 0x0605),
    (0x061C, 0x061C),
    (0x06DD, 0x06DD),
    (0x070F, 0x070F),
    (0x0890, 0x0891),
    (0x08E2, 0x08E2),
    (0x115F, 0x1160),
    (0x1680, 0x1680),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2000, 0x200F),
    (0x2028, 0x202F),
    (0x205F, 0x2064),
    (0x2066, 0x206F),
    (0x2800, 0x2800),
    (0x3000, 0x3000),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF9, 0xFFFB),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0001, 0xE0001),
    (0xE0020, 0xE007F),
)
"""Cc, Cf, Zs, Zl, Zp as of Unicode 15.1, with U+034F, 115F, 1160, 17B4-17B5, 180B-180F, 2800, 3164, FE00-FE0F, FFA0."""

REFUSED_RANGES: Final[Ranges] = ((0x00, 0x08), (0x0B, 0x1F), (0x7F, 0x9F), (0xD800, 0xDFFF))
"""Control characters but tab and line feed, and surrogates, which are no text."""


def _character_class(ranges: Ranges) -> str:
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


_SPACES = "".join(chr(code) for first, last in SPACE_RANGES for code in range(first, last + 1))
_VISIBLE = re.compile(f"[^{_character_class(INVISIBLE_RANGES)}]")
_REFUSED = re.compile(f"[{_character_class(REFUSED_RANGES)}]")
_INVISIBLE_BUT_SPACE = re.compile(f"(?![\\n \u00a0\u3000])[{_character_class(INVISIBLE_RANGES)}]")


def trim(text: str) -> str:
    """`text` without space at its ends, U+FEFF counted as space."""
    return text.strip(_SPACES)


def is_visible(text: str) -> bool:
    """True when a reader would see something: one character at least outside of `INVISIBLE_RANGES`."""
    return _VISIBLE.search(text) is not None


def is_clean(text: str) -> bool:
    """True when `text` holds no control character but tab and line feed, and no surrogate."""
    return _REFUSED.search(text) is None


def escape_invisible(json_text: str) -> str:
    """Write what a reader cannot see as JSON escapes. The JSON value stays the same."""
    return _INVISIBLE_BUT_SPACE.sub(_json_escape, json_text)


def _json_escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be")
    return "".join(f"\\u{units[index] * 256 + units[index + 1]:04x}" for index in range(0, len(units), 2))
