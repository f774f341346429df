"""What a store cannot do, as exceptions. Each message is a sentence for an operator, without secrets."""

from loopwarden.failures import LoopwardenError


class StoreError(LoopwardenError):
    """A store cannot do what it was asked. The message is a sentence for an operator, without secrets."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or its disk is full. What was asked did not happen; ask again later."""


class StoreTooNew(StoreError):
    """A newer Loopwarden wrote this store. This host must not touch it."""


class StoreCorrupt(StoreError):
    """What is stored for one run is damaged. Other runs are not affected."""

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(f"what the store holds for run {run_id} is damaged: {problem}")
        self.run_id = run_id
        self.problem = problem


class KeyConflict(StoreError):
    """A run was submitted before under the same key, with other content."""


class UnknownRun(StoreError):
    """The store holds no run with that id."""


class WorkspaceBusy(StoreError):
    """Another live run works in the named workspace that a run was to be started or claimed for."""
