"""What can be chosen when a session with an agent begins: its model, and how to log in."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from acp import schema
from acp.meta import AGENT_METHODS

from loopwarden.provider import ProviderStartError

SET_MODEL: Final = "session/set_model"
"""Agents had this before models became options of a session. The SDK does not know it any more; agents do."""
MAX_NAMED: Final = 20


def find_model(model: str, session: schema.NewSessionResponse, answer: object) -> tuple[str, dict[str, Any]]:
    """The method and its parameters that make the session use `model`, which is a model's number or its name.

    `answer` is what `session` was decoded from. Raises `ProviderStartError`.
    """
    offered: list[tuple[str, str]] = []
    for option in session.config_options or []:
        if isinstance(option, schema.SessionConfigOptionSelect) and option.category == "model":
            offered = [(choice.name, choice.value) for choice in _choices(option)]
            chosen = _chosen(model, offered)
            if chosen is not None:
                return AGENT_METHODS["session_set_config_option"], {"configId": option.id, "value": chosen}
    if not offered:
        offered = list(_older_models(answer))
        chosen = _chosen(model, offered)
        if chosen is not None:
            return SET_MODEL, {"modelId": chosen}
    if not offered:
        raise ProviderStartError(
            "the agent does not let its client choose a model; leave model out, or choose it by the agent's arguments"
        )
    more = f" and {len(offered) - MAX_NAMED} more" if len(offered) > MAX_NAMED else ""
    shown = ", ".join(number[:100] for _, number in offered[:MAX_NAMED])
    raise ProviderStartError(f"the agent does not offer the model {model!r}; it offers {shown}{more}")


def find_login(
    offered: Sequence[schema.EnvVarAuthMethod | schema.TerminalAuthMethod | schema.AuthMethodAgent],
    wanted: str | None,
    variables: AbstractSet[str],
) -> str | None:
    """The method of logging in that needs nobody: the one that the deployment names, or one whose variables are set."""
    for method in offered:
        if wanted is not None:
            if method.id == wanted:
                return wanted
        elif isinstance(method, schema.EnvVarAuthMethod) and all(
            variable.optional or variable.name in variables for variable in method.vars
        ):
            return method.id
    return None


def _choices(option: schema.SessionConfigOptionSelect) -> Iterator[schema.SessionConfigSelectOption]:
    for choice in option.options:
        if isinstance(choice, schema.SessionConfigSelectGroup):
            yield from choice.options
        else:
            yield choice


def _older_models(answer: object) -> Iterator[tuple[str, str]]:
    models = answer.get("models") if isinstance(answer, Mapping) else None
    available = models.get("availableModels") if isinstance(models, Mapping) else None
    for model in available if isinstance(available, list) else ():
        if isinstance(model, Mapping) and isinstance(model.get("modelId"), str):
            yield str(model.get("name")), model["modelId"]


def _chosen(model: str, offered: Sequence[tuple[str, str]]) -> str | None:
    by_number = [number for _, number in offered if number == model]
    by_name = [number for name, number in offered if name == model]
    return next(iter(by_number + by_name), None)
