"""The first thing that is wrong with a table of the settings, in words: its place as the file has it, and a reason."""

import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

_OF_A_MODEL: Final = re.compile(r"table or instance of \w+")
"""How pydantic names a table that has a model."""


def describe_problem(error: ValidationError, model: type[BaseModel]) -> tuple[tuple[str | int, ...], str]:
    """Place and reason of the first problem of a table that `model` checked."""
    first = error.errors(include_url=False, include_context=True)[0]
    given = tuple(part for part in first["loc"] if part != "[key]")
    place, _ = _follow(model, given)
    match first["type"]:
        case "extra_forbidden":
            _, kind = _follow(model, given[:-1])
            keys = ", ".join(_keys(kind))
            return place, "there is no such key" + (f"; there are: {keys}" if keys else "")
        case "missing":
            return place, "this key is missing"
        case "union_tag_not_found":
            return (*place, _discriminator(first)), "this key is missing"
        case "union_tag_invalid":
            context = first.get("ctx", {})
            known = str(context["expected_tags"]).replace("'", '"')
            reason = f'there is no {_discriminator(first)} "{str(context["tag"])[:100]}"; there are: {known}'
            return (*place, _discriminator(first)), reason
        case "value_error":
            return place, str(first["msg"]).removeprefix("Value error, ")
        case _:
            message = str(first["msg"]).replace("valid dictionary", "table").replace("valid list", "list")
            message = message.removesuffix(" or object to extract fields from")
            message = _OF_A_MODEL.sub("table", message).replace(" after validation, not 0", "")
            return place, message[:1].lower() + message[1:]


def _discriminator(problem: Mapping[str, Any]) -> str:
    return str(problem["ctx"]["discriminator"]).strip("'")


def _follow(model: type[BaseModel], path: Sequence[str | int]) -> tuple[tuple[str | int, ...], Any]:
    """The place in the file that pydantic means by `path`, and the kind of value that belongs there.

    Inside of a union that a key tells apart, pydantic puts the value of that key into the path; the file has no such
    step. The kind is None when it cannot be told.
    """
    kind: Any = model
    place: list[str | int] = []
    for part in path:
        branches = _branches(kind)
        if branches:
            kind = branches.get(part)
            continue
        place.append(part)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kinds = [_field_kind(item) for name, item in kind.model_fields.items() if part in (name, item.alias)]
            kind = kinds[0] if kinds else None
        else:  # a mapping or a list of tables
            kind = (get_args(kind) or (None,))[-1]
        kind = _table_kind(kind)
    return tuple(place), kind


def _keys(kind: Any) -> tuple[str, ...]:
    """The keys of a table of this kind; none when that cannot be told."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return ()
    return tuple(item.alias or name for name, item in kind.model_fields.items())


def _field_kind(item: FieldInfo) -> Any:
    return item.annotation if item.discriminator is None else Annotated[item.annotation, item]


def _branches(kind: Any) -> dict[str | int, Any]:
    """Per value of the key that tells a union apart, the model; empty for anything else."""
    if get_origin(kind) is not Annotated:
        return {}
    union, *metadata = get_args(kind)
    names = [item.discriminator for item in metadata if isinstance(item, FieldInfo)]
    return {
        value: model
        for name in names
        if isinstance(name, str)
        for model in get_args(union)
        for value in get_args(model.model_fields[name].annotation)
    }


def _table_kind(kind: Any) -> Any:
    """`kind` without `Annotated` and without the None beside it; None when several kinds are left."""
    if _branches(kind):
        return kind
    if get_origin(kind) is Annotated:
        return _table_kind(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        kinds = [item for item in get_args(kind) if item is not type(None)]
        return _table_kind(kinds[0]) if len(kinds) == 1 else None
    return kind
