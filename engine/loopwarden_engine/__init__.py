"""What a script author imports: the hooks, typed for editors. The sandbox supplies the real ones.

Importing this package outside of a run is fine; calling a hook there raises `HookUnavailableError`, which says how to
run a script.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, overload

from loopwarden_engine.plain import JsonObject, JsonValue

__all__ = ["HookUnavailableError", "JsonObject", "JsonValue", "agent", "log", "parallel", "phase", "pipeline"]

_ItemT = TypeVar("_ItemT")
_ValueT = TypeVar("_ValueT")


class HookUnavailableError(RuntimeError):
    """A hook was called outside of a Loopwarden run."""


def _unavailable(hook: str) -> NoReturn:
    raise HookUnavailableError(
        f"{hook}() works only inside a script that Loopwarden runs. "
        "Start it with: loopwarden run FILE.py --args-json '{}' --max-total-agents N"
    )


@overload
def agent(
    prompt: str,
    *,
    label: str | None = None,
    phase: str | None = None,
    schema: None = None,
    provider: str | None = None,
    model: str | None = None,
) -> str | None: ...
@overload
def agent(
    prompt: str,
    *,
    schema: dict[str, Any],
    label: str | None = None,
    phase: str | None = None,
    provider: str | None = None,
    model: str | None = None,
) -> JsonObject | None: ...
def agent(
    prompt: str,
    *,
    label: str | None = None,
    phase: str | None = None,
    schema: dict[str, Any] | None = None,
    provider: str | None = None,
    model: str | None = None,
) -> str | JsonObject | None:
    """Start one agent with `prompt` and wait for it.

    Returns its text, or with `schema` (object-rooted JSON Schema) its validated structured value; None when the agent
    failed. Misuse (an empty prompt, an unknown option, one call too many) ends the run and cannot be caught.
    """
    _unavailable("agent")


# Not Callable[[], …]: mypy cannot infer `lambda n=n: …` against it, the usual way to bind a loop's variable.
def parallel(thunks: Sequence[Callable[..., _ValueT]]) -> list[_ValueT | None]:
    """Call every function at the same time; return their results in order when all are done.

    An exception in one makes that item None, which observers see as `itemFailed`.
    """
    _unavailable("parallel")


def pipeline(items: Sequence[_ItemT], *stages: Callable[[Any, _ItemT, int], Any]) -> list[Any]:
    """Send each item through the stages on its own; a stage gets `(previous, item, index)`.

    The first stage's previous value is the item. There is no barrier between stages.
    """
    _unavailable("pipeline")


def phase(title: str) -> None:
    """Tell observers what the run does now: 1 to 200 characters. Later agents carry the title."""
    _unavailable("phase")


def log(message: str) -> None:
    """Tell observers something: at most 4,096 characters."""
    _unavailable("log")
