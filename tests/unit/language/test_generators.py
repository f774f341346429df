"""Generators of a script behave as Python's, although every `try` in them is rewritten to notice GeneratorExit."""

from typing import Any

import pytest

_BODIES = {
    "finally": """
try:
    out.append((yield 1))
finally:
    out.append('finally')
""",
    "except": """
try:
    yield 1
except ValueError as e:
    out.append(str(e))
    yield 2
""",
    "all parts": """
try:
    got = yield 1
    if got:
        1 / 0
except ZeroDivisionError:
    yield 2
    out.append('handled')
else:
    yield 3
finally:
    out.append('finally')
""",
    "return in finally": """
try:
    yield 1
finally:
    return 5
""",
    "yield in finally": """
try:
    yield 1
finally:
    yield 2
    out.append('late')
""",
    "raise in finally": """
try:
    yield 1
finally:
    raise KeyError('k')
""",
    "loop": """
for i in range(3):
    try:
        if (yield i):
            break
        continue
    finally:
        out.append(i)
else:
    out.append('else')
""",
    "nested": """
try:
    try:
        yield 1
    except KeyError:
        yield 2
    finally:
        out.append('in')
except ValueError:
    yield 3
finally:
    out.append('out')
""",
    "bare raise": """
try:
    yield 1
except Exception:
    out.append('seen')
    raise
finally:
    out.append('finally')
""",
    "yield in a handler's class": """
try:
    yield 1
except (yield 2):
    out.append('no')
finally:
    out.append('finally')
""",
    "delegation": """
def inner():
    try:
        yield 1
    finally:
        out.append('inner')
try:
    yield from inner()
finally:
    out.append('outer')
""",
    "handler in a function": """
def f():
    try:
        return {}['k']
    except KeyError:
        return 'none'
    finally:
        out.append('f')
yield f()
""",
}
_DRIVES = {
    "to the end": "[NEXT for _ in range(4)]",
    "send": "[NEXT, step(lambda: g.send(7)), NEXT, NEXT]",
    "throw": "[NEXT, step(lambda: g.throw(ValueError('v'))), NEXT, NEXT]",
    "throw a class": "[NEXT, step(lambda: g.throw(KeyError)), NEXT, step(lambda: g.close())]",
    "close": "[NEXT, step(lambda: g.close()), NEXT, step(lambda: g.close())]",
    "close at once": "[step(lambda: g.close()), NEXT]",
}
_SCRIPT = """
def step(call):
    try:
        return [call()]
    except Exception as e:
        return [repr(e)]

def main(args):
    out = []
    def made():
{body}
    g = made()
    steps = {drive}
    g = None
    return [steps, out]
"""


@pytest.mark.parametrize("drive", _DRIVES)
@pytest.mark.parametrize("body", _BODIES)
def test_a_generator_does_what_it_does_in_python(body: str, drive: str, run: Any) -> None:
    """The same steps, the same effects, in the same order: next, send, throw, close, and the last reference gone."""
    lines = "\n".join("        " + line for line in _BODIES[body].strip().splitlines())
    source = _SCRIPT.format(body=lines, drive=_DRIVES[drive].replace("NEXT", "step(lambda: next(g))"))
    plain: dict[str, Any] = {}
    exec(source, plain)
    ending = run(source)
    try:
        expected = plain["main"]({})
    except GeneratorExit:  # a generator that ignored its closing and is resumed
        assert ending.fault is not None
        assert ending.fault.type_name == "GeneratorExit"
    else:
        assert ending.fault is None, ending
        assert ending.value == expected
