"""How a run ended, as an exit code (design section 11)."""

from typing import Final

from loopwarden.contract import Standing
from loopwarden.failures import (
    EXIT_BLOCKED,
    EXIT_CHECK_FAILED,
    EXIT_COMPLETE,
    EXIT_FAILED,
    EXIT_ROUND_FAILED,
    EXIT_ROUNDS_USED,
    MEANINGS,
    Code,
)
from loopwarden.receipt import Receipt

_BY_STANDING: Final = {
    Standing.COMPLETE: EXIT_COMPLETE,
    Standing.BLOCKED: EXIT_BLOCKED,
    Standing.ROUNDS_USED: EXIT_ROUNDS_USED,
    Standing.ROUND_FAILED: EXIT_ROUND_FAILED,
}


def exit_code(receipt: Receipt, *, checks_asked: bool = False) -> int:
    """The exit code of a run that is over. A signal has the last word; that is the caller's to say.

    Checks that were asked for and did not come to an end verify nothing, so they count as failed.
    """
    if receipt.failure is not None:
        return MEANINGS[Code(receipt.failure.code)].exit
    if receipt.standing is None:
        return EXIT_FAILED
    standing = Standing(receipt.standing)
    if standing is Standing.COMPLETE and (receipt.verified is False or (checks_asked and receipt.verified is None)):
        return EXIT_CHECK_FAILED
    return _BY_STANDING[standing]
