"""Text to bytes and back, with the few encodings that a worker can serve.

Looking up any other codec would import a module, and a worker opens no files.
"""

from typing import Final

from .errors import TextDecodeError, TextEncodeError

ENCODINGS: Final = {
    "utf-8": "utf-8", "utf8": "utf-8", "ascii": "ascii", "us-ascii": "ascii",
    "latin-1": "latin-1", "latin1": "latin-1", "iso-8859-1": "latin-1",
}  # fmt: skip
ERROR_HANDLERS: Final = frozenset({"strict", "ignore", "replace", "backslashreplace", "xmlcharrefreplace"})


def encode(text: str, encoding: str = "utf-8", errors: str = "strict") -> bytes:
    """`text.encode(...)`. Raises LookupError for an encoding or error handler that is not offered."""
    try:
        return str.encode(text, _checked(encoding, errors), errors)
    except UnicodeEncodeError as error:
        raise TextEncodeError(error.encoding, error.object, error.start, error.end, error.reason) from None


def decode(data: bytes, encoding: str = "utf-8", errors: str = "strict") -> str:
    """`data.decode(...)`. Raises LookupError for an encoding or error handler that is not offered."""
    try:
        return bytes.decode(data, _checked(encoding, errors), errors)
    except UnicodeDecodeError as error:
        raise TextDecodeError(error.encoding, error.object, error.start, error.end, error.reason) from None


def _checked(encoding: str, errors: str) -> str:
    if type(encoding) is not str or type(errors) is not str:
        raise TypeError("encoding and errors must be strings")
    known = ENCODINGS.get(encoding.lower().replace("_", "-"))
    if known is None:
        raise LookupError(f"unknown encoding: {encoding[:40]} (scripts have utf-8, ascii and latin-1)")
    if errors not in ERROR_HANDLERS:
        raise LookupError(f"unknown error handler name {errors[:40]!r}")
    return known
