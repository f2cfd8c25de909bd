"""Parsing of names with arguments: `dirichlet:0.3`, `step:100:0.5`, `mlp:200,200`, `top_k:1/64,coding=rice`.

The arguments follow the name and a colon. Commas separate them; positional arguments may also be separated by colons.
`parse` splits a text, `convert` converts a value to a type, and `choose` does both for a family of dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from laconic.core.errors import suggestion
from laconic.core.validation import explain


class Spelling(NamedTuple):
    """The pieces of a text, as strings."""

    name: str
    arguments: tuple[str, ...] = ()
    keywords: dict[str, str] = {}

    def positional(self) -> tuple[str, ...]:
        """The positional arguments; ValueError if there are keyword arguments."""
        for key in self.keywords:
            raise ValueError(f"'{key}=' is not allowed: arguments have no names here")
        return self.arguments


def parse(text: str) -> Spelling:
    """Split a text into its name, positional arguments and keyword arguments.

    >>> parse("dirichlet:0.3,x=1")
    Spelling(name='dirichlet', arguments=('0.3',), keywords={'x': '1'})
    """
    name, colon, rest = text.strip().partition(":")
    arguments: list[str] = []
    keywords: dict[str, str] = {}
    for piece in rest.split(",") if colon else []:
        key, equals, value = (word.strip() for word in piece.partition("="))
        if equals:
            if key in keywords:
                raise ValueError(f"'{key}' is given twice")
            keywords[key] = value
        elif keywords:
            raise ValueError(f"'{piece}' must be name=value, as the one before it")
        else:
            arguments += [word.strip() for word in piece.split(":")]
    return Spelling(name, tuple(arguments), keywords)


def convert(value: Any, kind: Any) -> Any:
    """Convert a value to a type that pydantic supports; ValueError with one line that says what is allowed.

    >>> convert(("200", "100"), tuple[int, ...])
    (200, 100)
    """
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise ValueError(explain(error)) from None


class Choice:
    """Base of pydantic dataclasses that are written as their name, then their fields in order or by name."""

    name: ClassVar[str]
    named: ClassVar[str] = ""
    """Why fields are given by name only; empty if they may be given in order."""

    def __str__(self) -> str:
        """The shortest text that `choose` parses to an equal object."""
        if self.named:
            changed = [field for field in dataclasses.fields(self) if getattr(self, field.name) != field.default]  # type: ignore[arg-type]
            texts = [f"{field.name}={_shortest(getattr(self, field.name))}" for field in changed]
            return ":".join([self.name, *([",".join(texts)] if texts else [])])
        values = [(getattr(self, field.name), field.default) for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        while values and values[-1][0] == values[-1][1]:
            values.pop()
        return ":".join([self.name, *(_shortest(value) for value, _ in values)])


C = TypeVar("C", bound=Choice)


def choose(text: str, choices: Mapping[str, type[C]]) -> C:
    """Parse a text as one of the choices; ValueError with one line that says what is allowed."""
    name, arguments, keywords = parse(text)
    if name not in choices:
        near = suggestion(name, choices)
        allowed = ", ".join(map(usage, choices.values()))
        raise ValueError(f"unknown name '{name}': {near}{' ' if near else ''}allowed: {allowed}")
    cls = choices[name]
    fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    given = dict(zip(fields, arguments, strict=False)) | keywords
    try:
        if cls.named and (arguments or given.keys() - set(fields)):
            raise ValueError(f"'{[*arguments, *sorted(given.keys() - set(fields))][0]}' is not a setting: {cls.named}")
        if len(arguments) > len(fields):
            raise ValueError(f"{len(arguments)} arguments are too many" if fields else "it takes no arguments")
        if len(given) < len(arguments) + len(keywords):
            raise ValueError("an argument is given twice")
        if unknown := given.keys() - set(fields):
            raise ValueError(f"'{min(unknown)}' is not an argument")
        return cls(**given)
    except ValueError as error:
        problem = explain(error) if isinstance(error, ValidationError) else error
        raise ValueError(f"{problem}; write it as {usage(cls)}") from None


def usage(cls: type[Choice]) -> str:
    """The syntax of a choice, such as `step:ROUNDS:DECAY`, `pairs[:ORDER]` or `sgd[:weight_decay=…]`."""
    text = cls.name
    if cls.named:
        return f"{text}[:{','.join(f'{field.name}=…' for field in dataclasses.fields(cls))}]"  # type: ignore[arg-type]
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        required = field.default is dataclasses.MISSING
        text += f":{field.name.upper()}" if required else f"[:{field.name.upper()}]"
    return text


def _shortest(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
