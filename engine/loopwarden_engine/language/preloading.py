"""Touch everything that the standard library imports only when first used: a worker opens no files."""

import copyreg
import encodings.aliases
import encodings.ascii
import encodings.latin_1
import encodings.utf_8
import unicodedata
from typing import Final

from .compilation import compile_script
from .encoding import ENCODINGS, ERROR_HANDLERS, decode, encode
from .namespace import script_namespace
from .violations import ScriptRejected

# Imported so that they are loaded, used or not: the names keep linters and readers from removing them.
PRELOADED_MODULES: Final = (
    copyreg,
    encodings.aliases,
    encodings.ascii,
    encodings.latin_1,
    encodings.utf_8,
    unicodedata,
)

_SCRIPT: Final = '''"""Every construct whose first use in CPython or in the standard library imports something."""
import json, math, re, textwrap

class Failure(Exception):
    pass

def main(args):
    é = "\\N{DIGIT ONE}" + "ß".casefold() + "Ⅷ".lower()
    pattern = re.compile(r"(?P<d>\\d)+", re.I)
    text = pattern.sub(r"<\\g<d>>", "a1b2") + re.sub("x", lambda m: m.group(), "x") + pattern.match("1").expand(r"\\1")
    data = json.loads(json.dumps({"a": [1, 2.5, None, True, text]}, indent=1, sort_keys=True))
    lines = textwrap.wrap(textwrap.dedent(" a b c\\n"), 3) + [textwrap.shorten("a b c d e f", 9), textwrap.fill("x", 9)]
    try:
        json.loads("{")
    except json.JSONDecodeError as error:
        lines.append(str(error))
    try:
        re.compile("(")
    except re.error as error:
        lines.append(str(error))
    try:
        {}[Failure("x")]
    except KeyError as error:
        lines.append(f"{error!r:>20} {math.pi:.3f} {1234567:n} {'%5.1f|%s' % (1.5, data)}")
    return lines
'''


def preload() -> None:
    """Load what a script may need later. Call once, before workers are forked; costs a few milliseconds."""
    for encoding in ENCODINGS:
        for handler in ERROR_HANDLERS:
            decode(encode("a\N{LATIN SMALL LETTER E WITH ACUTE}b", encoding, "replace"), encoding, handler)
    for bad in ("def main(:", "x = '\0'", "\ud800", "async def main(args): pass", "import os"):
        _refused(bad)
    namespace = script_namespace({})
    exec(compile_script(_SCRIPT).code, namespace)  # noqa: S102 -- a script of ours, so that all that scripts use is loaded
    main = namespace["main"]
    main({})  # type: ignore[operator]


def _refused(source: str) -> None:
    try:
        compile_script(source)
    except ScriptRejected:
        return
    raise AssertionError(f"the policy accepted {source!r}")
