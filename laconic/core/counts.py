"""Counts in messages and tables."""

from __future__ import annotations


def counted(number: int | str, noun: str) -> str:
    """A number, or a range such as "1 to 3", with its noun, which is given in the singular.

    >>> counted(1, "client"), counted(1438, "example"), counted(0, "class"), counted("1 to 3", "seed")
    ('1 client', '1,438 examples', '0 classes', '1 to 3 seeds')
    """
    text = number if isinstance(number, str) else f"{number:,}"
    return f"{text} {noun if text == '1' else _plural(noun)}"


def _plural(noun: str) -> str:
    """The plural of a regular noun.

    >>> [_plural(noun) for noun in ("core", "process", "probability")]
    ['cores', 'processes', 'probabilities']
    """
    if noun.endswith("s"):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
