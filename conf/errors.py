"""Turns pydantic's validation errors into sentences: what was given, what is allowed.

Works on the schema itself, so that a new key or choice needs no message of its own.
"""

import difflib
import typing
from typing import Any

from pydantic import BaseModel, ValidationError


def describe(
    error: ValidationError, schema: type[BaseModel], values: Any, typed: bool = True
) -> list[str]:
    """One sentence per problem, each starting with the dotted key.

    Args:
        error: what pydantic raised for `values`.
        schema: the model that was validated.
        values: the plain nested dict that was given.
        typed: whether a missing key can be typed; not where the values are those of a run.
    """
    return [_sentence(item, schema, values, typed) for item in error.errors()]


def how_to_give(key: str, schema: type[BaseModel]) -> str:
    """What to type for a key: a value, or in a section one of its keys."""
    candidates: list[Any] = [schema]
    for part in key.split("."):
        annotation = _field(candidates, part)
        candidates = _members(annotation) if annotation is not None else _values_of(candidates)
    for candidate in candidates:
        if typing.get_origin(candidate) is dict:
            candidates, key = _values_of([candidate]), f"{key}.NAME"
    for model in candidates:
        if isinstance(model, type) and issubclass(model, BaseModel):
            return f"{key}.{next(iter(model.model_fields))}=VALUE"
    return f"{key}=VALUE"


def _sentence(item: Any, schema: type[BaseModel], values: Any, typed: bool) -> str:
    keys, owner = _walk(item["loc"], schema, values)
    key = ".".join(str(part) for part in keys)
    given = item["input"]
    match item["type"]:
        case "extra_forbidden":
            allowed = list(owner.model_fields) if owner is not None else []
            return (
                f"{key}={_show(given)}: there is no key {key!r}"
                f"{_suggest(str(keys[-1]), allowed)}; {_place(keys)} has: {', '.join(allowed)}"
            )
        case "missing":
            return f"{key}: missing" + (f"; give it as {key}=VALUE" if typed else "")
        case "string_too_short":
            field = owner.model_fields[keys[-1]] if owner is not None else None
            none = field is not None and type(None) in _members(field.annotation)
            return f"{key}='': empty; give it as {key}=VALUE" + (f" or {key}=null" if none else "")
        case "literal_error":
            allowed = _choices(owner, keys[-1], item)
            return (
                f"{key}={_show(given)}: not one of {', '.join(allowed)}"
                f"{_suggest(str(given), allowed)}"
            )
        case "union_tag_invalid":
            tags = [tag.strip(" '") for tag in item["ctx"]["expected_tags"].split(",")]
            kind = item["ctx"]["tag"]
            return f"{key}.kind={kind!r}: not one of {', '.join(tags)}{_suggest(kind, tags)}"
        case "union_tag_not_found":
            return f"{key}.kind: missing; give it as {key}.kind=VALUE"
        case "value_error":
            reason = str(item["ctx"]["error"])
            return f"{key}: {reason}" if key and not reason.startswith(f"{key}.") else reason
        case "string_type" if isinstance(given, dict) and given:
            inner = next(iter(given))
            return f"{key}.{inner}: {key} has no parts; give it as {key}=VALUE"
        case "list_type":
            return f"{key}={_show(given)}: not a list; give it as '{key}=[VALUE,...]'"
        case "dict_type" | "model_type" | "model_attributes_type":
            names = "the names of the entries" if item["type"] == "dict_type" else "its keys"
            return (
                f"{key}={_show(given)}: it has parts, given by {names}: {how_to_give(key, schema)}"
            )
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            (bound,) = item["ctx"].values()  # pydantic writes 1e-12 with all its zeros
            words = _lower(item["msg"]).rsplit(" ", 1)[0]
            return f"{key}={_show(given)}: {words} {bound}"
        case _:
            return f"{key}={_show(given)}: {_lower(item['msg'])}"


def _walk(
    location: tuple[Any, ...], schema: type[BaseModel], values: Any
) -> tuple[list[Any], type[BaseModel] | None]:
    """The keys a user would type for `location`, and the model that owns the last one.

    Pydantic puts the tags of unions into the location; they are not keys and are left out.
    """
    keys: list[Any] = []
    owner: type[BaseModel] | None = schema
    node = values
    candidates: list[Any] = [schema]
    for part in location:
        if _holds(node, part):
            next_node = node[part]
        elif part is location[-1] and _field(candidates, part) is not None:
            next_node = None
        else:  # the tag of a union: it narrows the candidates and is no key
            candidates = [
                model for model in candidates if _tag(model) in (None, part)
            ] or candidates
            continue
        keys.append(part)
        models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        owner = models[0] if models else owner
        annotation = _field(candidates, part)
        candidates = _members(annotation) if annotation is not None else _values_of(candidates)
        node = next_node
    return keys, owner


def _holds(node: Any, part: Any) -> bool:
    if isinstance(node, list):
        return isinstance(part, int) and part < len(node)
    return isinstance(node, dict) and part in node


def _field(candidates: list[Any], name: Any) -> Any:
    for model in candidates:
        if isinstance(model, type) and issubclass(model, BaseModel) and name in model.model_fields:
            return model.model_fields[name].annotation
    return None


def _members(annotation: Any) -> list[Any]:
    """The alternatives of a (possibly annotated) union, or the type itself."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    if origin is typing.Union or str(origin) == "<class 'types.UnionType'>":
        return [m for argument in typing.get_args(annotation) for m in _members(argument)]
    return [annotation]


def _values_of(candidates: list[Any]) -> list[Any]:
    """The value types of the mappings and lists among `candidates`."""
    found = []
    for candidate in candidates:
        if typing.get_origin(candidate) in (dict, list):
            found += _members(typing.get_args(candidate)[-1])
    return found


def _tag(model: Any) -> Any:
    if isinstance(model, type) and issubclass(model, BaseModel) and "kind" in model.model_fields:
        return typing.get_args(model.model_fields["kind"].annotation)[0]
    return None


def _choices(owner: type[BaseModel] | None, name: Any, item: Any) -> list[str]:
    annotation = owner.model_fields[name].annotation if owner and name in owner.model_fields else 0
    for member in _members(annotation):
        if typing.get_origin(member) is typing.Literal:
            return [str(choice) for choice in typing.get_args(member)]
    return [item["ctx"]["expected"]]


def _suggest(given: str, allowed: list[str]) -> str:
    close = difflib.get_close_matches(given, allowed, n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _place(keys: list[Any]) -> str:
    return ".".join(str(part) for part in keys[:-1]) or "the configuration"


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
