"""What a store refuses, as refusals of a request."""

import contextlib
from collections.abc import Iterator, Sequence

from loopwarden.custody import Custody
from loopwarden.failures import InvalidRequest, StoreRefused, WorkspaceBusy
from loopwarden.store import errors
from loopwarden.store.errors import StoreError


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Raise what a store refuses within this block as a subclass of `StartRefused`."""
    try:
        yield
    except (errors.KeyConflict, errors.UnknownRun) as error:
        raise InvalidRequest(str(error)) from None
    except errors.WorkspaceBusy as error:
        raise WorkspaceBusy(str(error)) from None
    except StoreError as error:
        raise StoreRefused(str(error)) from None


async def refuse_unknown_scopes(custody: Custody, scopes: Sequence[str]) -> None:
    """Refuse budgets that nobody made: a typo would leave a run without its budget. Raises `StoreError`."""
    if not scopes:
        return
    known = {use.scope.name for use in await custody.store.scopes()}
    for name in sorted(set(scopes) - known):
        raise InvalidRequest(f"there is no budget {name!r}; make it with `loopwarden budget set`, or by the settings")
