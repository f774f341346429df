"""Whether a generator is being discarded: then its `finally` blocks run wherever its last reference went.

When that happens must never decide what a script calls (design section 4), so no hook works then.
"""

import sys
from typing import Any, Final

_MARK: Final = "_loopwarden_discarding"


def is_discarding() -> bool:
    """True while GeneratorExit is being handled, or stands in the chain of contexts of what is.

    Scripts have no name for GeneratorExit, so that only Python brings it up.
    """
    handled = sys.exception()
    while handled is not None:
        if isinstance(handled, GeneratorExit) or getattr(handled, _MARK, False):
            return True
        handled = handled.__context__
    return False


def raised(error: Any) -> Any:
    """What a `raise` statement or `throw` of a script raises: the same, marked while a generator is being discarded.

    Raising an exception that stands in the chain already cuts the chain behind it, and GeneratorExit with it.
    """
    if isinstance(error, BaseException) and is_discarding():
        setattr(error, _MARK, True)
    return error
