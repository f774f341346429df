"""A contract at work on one run. Contracts are trusted, but not to be free of mistakes: theirs end their run alone."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from loopwarden.agent_reply import provider_words
from loopwarden.call_options import DecodedCall
from loopwarden.contract import Conclusion, Contract, ContractBroken, Facts, ProvenanceBroken
from loopwarden.failures import Code, Failure, LoopwardenError
from loopwarden_engine.plain import JsonValue

ArgsT = TypeVar("ArgsT")
ResultT = TypeVar("ResultT")


class Refused(LoopwardenError):
    """The result is not believed; `failure` ends the run."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Judge(Generic[ArgsT, ResultT]):
    """Asks the contract of a run about its calls and its result."""

    def __init__(
        self, contract: Contract[ArgsT, ResultT], args: ArgsT, facts: Facts, note: Callable[..., None]
    ) -> None:
        self._contract = contract
        self._args = args
        self._facts = facts
        self._note = note

    def check_call(self, call: DecodedCall) -> None:
        """Check a call before it is charged. Raises `ContractBroken`."""
        try:
            self._contract.check_call(self._args, call.facts, self._facts)
        except ContractBroken:
            raise
        except Exception as error:  # noqa: BLE001 -- a mistake must end this run, and leave the host's others alone
            raise ContractBroken(self._mistake(error)) from None

    def decode(self, value: JsonValue) -> tuple[ResultT, Conclusion]:
        """Decode what the script returned. Raises `Refused`."""
        try:
            result = self._contract.decode_result(self._args, value, self._facts)
            conclusion: Any = self._contract.conclusion(self._args, result)
            if not isinstance(conclusion, Conclusion):
                raise TypeError(f"its conclusion is a {type(conclusion).__name__}")
        except ContractBroken as broken:
            raise Refused(Failure(code=Code.CONTRACT, message=str(broken))) from None
        except ProvenanceBroken as broken:
            raise Refused(Failure(code=Code.PROVENANCE, message=str(broken))) from None
        except Exception as error:  # noqa: BLE001 -- as above
            raise Refused(Failure(code=Code.CONTRACT, message=self._mistake(error))) from None
        return result, conclusion

    def _mistake(self, error: Exception) -> str:
        self._note("error", "the contract failed", exc_info=error)
        words = provider_words(error)
        return f"the contract itself failed with {type(error).__name__}: {words}; its author has to mend it"
