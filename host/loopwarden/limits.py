"""The limits of a deployment, and what a single request may ask of them.

`Limits` are resolved values of the deployment. A request carries overrides; None means "not given"; an override may
lower a limit, never raise it (design section 9).
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Final, TypedDict

from loopwarden.failures import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All limits, with the shipped defaults. Raises ValueError for a value that cannot be a limit."""

    max_total_agents: int = 1000
    """Agents that one run may start. Exact: counted by the host, charged before the provider is asked."""
    max_extra_attempts: int | None = None
    """Repeats of every kind that one run may ask of providers, on top of `max_total_agents`. None: 0 without a store;
    with one, the smaller of `max_total_agents` and 3 x `max_concurrent_agents`, for agents that a crash interrupted."""
    max_cost_usd: float | None = None
    """Money that the agents of one run may use, as their providers measure it. None: no cap. Looked at before each ask,
    so agents that are live when it is reached may still add to it."""
    max_concurrent_agents: int = 16
    """Agents of one run that may be live at once. Agents wait, they do not compute: cores do not matter."""
    max_live_agents: int = 64
    """Agents of all runs of one host that may be live at once."""
    max_live_runs: int = 256
    """Runs of one host that may be live at once."""
    max_items_per_call: int = 4096
    """Items that one `parallel` or `pipeline` call may receive."""
    agent_timeout_seconds: float = 7200.0
    """How long one attempt may take."""
    agent_idle_seconds: float = 900.0
    """How long an agent that streams may be silent."""
    wrap_up_seconds: float = 300.0
    """So long before its end an attempt that can be spoken to is asked to hand over; at most half of its time."""
    agent_grace_seconds: float = 5.0
    """How long agents may wind down when they are cancelled."""
    drain_seconds: float | None = None
    """How long agents that are live when a run ends by a cap or a budget may go on, so that a store keeps what they
    bring. None: as long as `agent_timeout_seconds`. Without a store they are cancelled."""
    check_timeout_seconds: float = 600.0
    """How long one check may take."""
    run_deadline_seconds: float = 86400.0
    """How long one run may take, from its start."""
    cpu_seconds_per_turn: float = 5.0
    """Processor time of a script between two waits. Compiling and the module body are turns too."""
    cpu_seconds_per_run: float = 600.0
    """Processor time of a worker in all."""
    memory_bytes: int = 512 * 1024 * 1024
    """Address space of a worker."""
    max_narration: int = 10_000
    """`phase`, `log` and `itemFailed` messages of one run."""
    max_frame_bytes: int = 1024 * 1024
    """One message of a worker; so also the largest prompt, result and reply. At least 64 KiB: any log message fits."""
    max_source_bytes: int = 512 * 1024
    """The source of a script, in UTF-8."""
    max_args_bytes: int = 512 * 1024
    """The arguments of a run, as JSON."""
    max_held_bytes: int = 256 * 1024 * 1024
    """What the prompts, options and replies of one run may take in the memory of its host, all together."""
    max_output_bytes: int = 16 * 1024 * 1024
    """What is kept and read of one output stream of an agent program."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            problem = _problem(field.name, getattr(self, field.name))
            if problem is not None:
                raise ValueError(problem)

    @property
    def extra_attempts(self) -> int:
        """`max_extra_attempts`, once it is resolved."""
        return self.max_extra_attempts or 0

    @property
    def seconds_to_drain(self) -> float:
        """`drain_seconds`, resolved."""
        return self.agent_timeout_seconds if self.drain_seconds is None else self.drain_seconds

    def resolved(self, *, has_store: bool) -> "Limits":
        """These limits with a number in place of a `max_extra_attempts` that was left out."""
        if self.max_extra_attempts is not None:
            return self
        repeats = min(self.max_total_agents, 3 * self.max_concurrent_agents) if has_store else 0
        return dataclasses.replace(self, max_extra_attempts=repeats)

    def lowered(self, overrides: "LimitOverrides") -> "Limits":
        """These limits with the overrides of one request. Raises `InvalidRequest`, which names limit and ceiling."""
        changes: dict[str, int | float] = {}
        for name, value in overrides.items():
            if value is None:
                continue
            if name not in OVERRIDABLE:
                raise InvalidRequest(f"{name} is set by the deployment; a request cannot change it")
            problem = _problem(name, value)
            if problem is not None:
                raise InvalidRequest(problem)
            assert isinstance(value, int | float)
            ceiling = getattr(self, name)
            if ceiling is not None and value > ceiling:
                raise InvalidRequest(
                    f"{name} {value} is above the ceiling of this deployment, {ceiling}; "
                    "ask for less, or have the operator raise it",
                    details={"limit": name, "asked": value, "ceiling": ceiling},
                )
            changes[name] = value
        return dataclasses.replace(self, **changes) if changes else self  # type: ignore[arg-type]


class LimitOverrides(TypedDict, total=False):
    """What a request may lower. None means "not given"."""

    max_total_agents: int | None
    max_extra_attempts: int | None
    max_cost_usd: float | None
    max_concurrent_agents: int | None
    max_items_per_call: int | None
    agent_timeout_seconds: float | None
    agent_idle_seconds: float | None
    wrap_up_seconds: float | None
    agent_grace_seconds: float | None
    drain_seconds: float | None
    check_timeout_seconds: float | None
    run_deadline_seconds: float | None
    cpu_seconds_per_turn: float | None
    cpu_seconds_per_run: float | None
    memory_bytes: int | None
    max_narration: int | None
    max_held_bytes: int | None


OVERRIDABLE: Final = frozenset(LimitOverrides.__annotations__)
_MAY_BE_ZERO: Final = frozenset(
    {"max_extra_attempts", "wrap_up_seconds", "agent_grace_seconds", "drain_seconds", "max_narration"}
)
_MAY_BE_NONE: Final = frozenset({"max_cost_usd", "max_extra_attempts", "drain_seconds"})
_COUNTS: Final = frozenset(
    field.name for field in dataclasses.fields(Limits) if field.type in (int, int | None, "int", "int | None")
)
_SMALLEST: Final = {"memory_bytes": 64 * 1024 * 1024, "max_frame_bytes": 64 * 1024}
_LARGEST: Final = {"max_frame_bytes": 64 * 1024 * 1024}
_LARGEST_NUMBER: Final = 2**53 - 1


def _problem(name: str, value: object) -> str | None:
    """Say in a sentence why `value` cannot be the limit `name`; None when it can."""
    if value is None and name in _MAY_BE_NONE:
        return None
    kind = "a whole number" if name in _COUNTS else "an amount" if name.endswith("_usd") else "a number of seconds"
    if isinstance(value, bool) or not isinstance(value, int if name in _COUNTS else int | float):
        return f"{name} must be {kind}, not {value!r}"
    if not math.isfinite(value) or value > _LARGEST.get(name, _LARGEST_NUMBER):
        return f"{name} {value} is too large"
    smallest = _SMALLEST.get(name, 0 if name in _MAY_BE_ZERO or name not in _COUNTS else 1)
    if value < smallest or (value == 0 and name not in _MAY_BE_ZERO):
        return f"{name} must be {'at least ' + str(smallest) if smallest else 'above zero'}, not {value!r}"
    return None
