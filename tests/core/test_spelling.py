"""The one parser of `name:argument,key=value`."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from laconic.core.schedules import parse_schedule
from laconic.core.spelling import Choice, Spelling, choose, convert, parse


@dataclass(frozen=True)
class Plain(Choice):
    name: ClassVar[str] = "plain"


@dataclass(frozen=True)
class Cut(Choice):
    name: ClassVar[str] = "cut"
    size: PositiveInt
    scale: float = 1.0
    order: Literal["up", "down"] = "up"


@dataclass(frozen=True)
class Named(Choice):
    name: ClassVar[str] = "named"
    named: ClassVar[str] = "settings have names"
    scale: float = 1.0
    order: Literal["up", "down"] = "up"


CHOICES: dict[str, type[Choice]] = {cls.name: cls for cls in (Plain, Cut, Named)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iid", Spelling("iid")),
        (" iid ", Spelling("iid")),
        ("mlp:200, 100", Spelling("mlp", ("200", "100"))),
        ("step:100:0.5", Spelling("step", ("100", "0.5"))),
        ("top_k:1/64,coding=raw,by=chunk:4096", Spelling("top_k", ("1/64",), {"coding": "raw", "by": "chunk:4096"})),
        ("mlp:", Spelling("mlp", ("",))),
        ("", Spelling("")),
    ],
)
def test_parse(text: str, expected: Spelling) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize("text", ["cut:a=1,2", "cut:a=1,a=2"])
def test_what_cannot_be_split(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be name=value|given twice"):
        parse(text)


@pytest.mark.parametrize("text", ["plain", "cut:3", "cut:3:0.5", "cut:3:1e-09:down", "named", "named:order=down"])
def test_a_choice_is_spelled_as_it_was_read(text: str) -> None:
    assert str(choose(text, CHOICES)) == text


def test_arguments_by_name() -> None:
    assert choose("cut:3,order=down", CHOICES) == Cut(3, order="down")
    assert choose(str(Cut(3, order="down")), CHOICES) == Cut(3, order="down")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kut:3", r"^unknown name 'kut': did you mean 'cut'\? allowed: plain, cut:SIZE\[:SCALE\]\[:ORDER\], named\[:"),
        ("named:2", r"^'2' is not a setting: settings have names; write it as named\[:scale=…,order=…\]$"),
        ("named:size=2", "^'size' is not a setting: settings have names; write it as"),
        ("plain:3", "^it takes no arguments; write it as plain$"),
        ("cut", r"^size: required, and not given; write it as cut:SIZE\[:SCALE\]\[:ORDER\]$"),
        ("cut:0", "^size = '0': must be greater than 0; write it as cut"),
        ("cut:x", "^size = 'x': must be a valid integer; write it as cut"),
        ("cut:1:2:up:3", "^4 arguments are too many; write it as cut"),
        ("cut:1,size=2", "^an argument is given twice; write it as cut"),
        ("cut:1,other=2", "^'other' is not an argument; write it as cut"),
    ],
)
def test_errors_say_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        choose(text, CHOICES)
    assert "\n" not in str(caught.value)


def test_conversion() -> None:
    assert convert("3", PositiveInt) == 3
    with pytest.raises(ValueError, match=r"^must be greater than 0$"):
        convert("0", PositiveInt)


@pytest.mark.parametrize(
    "text", ["step", "step:1", "step:0:0.5", "step:1:0", "step:1:inf", "cosine", "cosine:0", "linear"]
)
def test_schedules_that_there_are_not(text: str) -> None:
    with pytest.raises(ValueError, match=r"step:ROUNDS:DECAY|cosine:ROUNDS"):
        parse_schedule(text)
