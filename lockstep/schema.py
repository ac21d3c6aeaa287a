"""Typed, documented keys on dataclasses: how a value is read, checked and refused.

Every key of the configuration is one dataclass field made by :func:`key`. Values come from
YAML, from ``key=value`` and from Python alike, so that all three get the same sentence.
Imports no JAX and nothing of ours but the errors.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, NoReturn

from lockstep.errors import UsageError, nearest

TYPE_WORDS: dict[Any, str] = {
    bool: "true, false",
    int: "whole number",
    float: "number",
    str: "text",
    tuple: "list of whole numbers, each",
    dict: "mapping",
}


def key(
    default: Any = MISSING,
    doc: str = "",
    *,
    factory: Any = MISSING,
    choices: tuple[str, ...] = (),
    gt: float | None = None,
    ge: float | None = None,
    le: float | None = None,
) -> Any:
    """A dataclass field with its meaning, its allowed names and its range."""
    metadata = {"doc": doc, "choices": choices, "gt": gt, "ge": ge, "le": le}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Key:
    """One leaf of the configuration. ``path`` is dotted, as in ``algo.gamma``."""

    path: str
    type: Any
    default: Any
    meta: Mapping[str, Any]

    @property
    def doc(self) -> str:
        """What the key means, in one sentence."""
        return str(self.meta.get("doc", ""))

    @property
    def choices(self) -> tuple[str, ...]:
        """The names allowed; empty: any value of the type."""
        return tuple(self.meta.get("choices", ()))

    @property
    def allowed(self) -> str:
        """The values allowed, in a reader's words."""
        if self.choices:
            return ", ".join(self.choices)
        hint, optional = _arm(self.type)
        words = TYPE_WORDS[typing.get_origin(hint) or hint]
        low, high, above = (self.meta.get(name) for name in ("ge", "le", "gt"))
        if above is not None:
            words += f" > {above}"
        elif low is not None:
            words += f", {low} to {high}" if high is not None else f" >= {low}"
        return words + " or null" * optional


def keys(cls: type, prefix: str = "") -> dict[str, Key]:
    """Every leaf key below the dataclass ``cls`` by its dotted path, in reading order."""
    hints = typing.get_type_hints(cls)
    found: dict[str, Key] = {}
    for item in fields(cls):
        path = prefix + item.name
        hint = hints[item.name]
        if is_dataclass(hint):
            found |= keys(typing.cast(type, hint), path + ".")
            continue
        found[path] = Key(path, hint, _default(item), item.metadata)
    return found


def _default(item: Field[Any]) -> Any:
    if item.default_factory is not MISSING:
        return item.default_factory()
    return item.default


def _arm(hint: Any) -> tuple[Any, bool]:
    """The type of a value that is there, and whether null is allowed too."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    return next(arm for arm in typing.get_args(hint) if arm is not type(None)), True


def coerce(path: str, value: Any, hint: Any, choices: tuple[str, ...] = ()) -> Any:
    """``value`` as the type ``hint``, exactly; a ``UsageError`` names ``path`` otherwise.

    Nothing is rounded and text is no number: 5.0 is the whole number 5; 5.5 and "5" are
    refused.
    """
    hint, optional = _arm(hint)
    if optional and value is None:
        return None
    if typing.get_origin(hint) is tuple:
        return _coerce_tuple(path, value, typing.get_args(hint)[0])
    if typing.get_origin(hint) is dict:
        if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
            _refuse(path, value, "a mapping of names to values")
        return dict(value)
    if choices:
        return _coerce_choice(path, value, choices)
    readers = {bool: _read_bool, int: _read_int, float: _read_float, str: _read_str}
    number = readers[hint](value)
    if number is None:
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        _refuse(path, value, words[hint])
    return number


def _refuse(path: str, value: Any, wanted: str) -> NoReturn:
    text = f" (it is the text {value!r})" if isinstance(value, str) and _is_number(value) else ""
    raise UsageError(f"{path}={show(value)} is not {wanted}{text}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false")
    return True


def show(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(show(entry) for entry in value) + "]"
    return str(value)


def _coerce_tuple(path: str, value: Any, arm: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        _refuse(path, value, f"a list such as {path}=[64,64]")
    return tuple(coerce(f"{path}[{i}]", entry, arm) for i, entry in enumerate(value))


def _coerce_choice(path: str, value: Any, choices: tuple[str, ...]) -> str:
    text = show(value)
    if text not in choices:
        raise UsageError(
            f"{path}={text} is not one of {', '.join(choices)}: "
            f"did you mean {nearest(text, choices)!r}?"
        )
    return text


def _read_bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _read_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _read_int(value: Any) -> int | None:
    number = _read_float(value)
    if number is None or not number.is_integer():
        return None
    return int(value)


def _read_str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def check(obj: Any, prefix: str = "") -> None:
    """Check the types, names and ranges of a frozen dataclass as it is made.

    An exact value of another type is stored as the field's own (5.0 as 5, a list as a
    tuple). Nested dataclasses check themselves.
    """
    hints = typing.get_type_hints(type(obj))
    for item in fields(obj):
        path, value, meta = prefix + item.name, getattr(obj, item.name), item.metadata
        if is_dataclass(hints[item.name]):
            wanted = typing.cast(type, hints[item.name])
            if not isinstance(value, wanted):
                _refuse(path, value, f"of the class {wanted.__name__}")
            continue
        read = coerce(path, value, hints[item.name], meta.get("choices", ()))
        object.__setattr__(obj, item.name, read)
        _check_range(path, read, meta)


def _check_range(path: str, value: Any, meta: Mapping[str, Any]) -> None:
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        low, high, above = meta.get("ge"), meta.get("le"), meta.get("gt")
        inside = (
            (low is None or number >= low)
            and (high is None or number <= high)
            and (above is None or number > above)
        )
        if not inside:
            left = f"{low} <= " if low is not None else f"{above} < " if above is not None else ""
            right = f" <= {high}" if high is not None else ""
            raise UsageError(
                f"{path}={show(number)} is out of range: {left}{path}{right} is allowed"
            )
