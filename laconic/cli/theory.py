"""The command theory."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from laconic.cli.console import say, stdout
from laconic.cli.output import print_json
from laconic.core.counts import counted
from laconic.core.errors import ConfigError
from laconic.report.tables import new_table
from laconic.theory.catalog import covering
from laconic.theory.formula import evaluate, shown, symbols
from laconic.theory.quantities import by_symbol
from laconic.theory.theorem import MANY, Theorem, Values


def theory(recipe: str, as_json: bool, quantities: dict[str, Any]) -> None:
    """Print what the theorems about a recipe allow and promise."""
    given = by_symbol(quantities)
    rounds, error = given.pop("T", None), given.get("epsilon")
    answers = [
        _answer(theorem, given, None if rounds is None else int(rounds), error) for theorem in covering(recipe, given)
    ]
    if as_json:
        print_json({"recipe": recipe, "theorems": answers})
        return
    for answer in answers:
        stdout.print(_table(answer))
        for text in filter(None, [answer["reading"], _constant(answer)]):
            say(text)
    if rounds is None and error is None:
        say("Add --rounds for the bound after so many rounds, and --epsilon for the rounds to an error.")


def _answer(theorem: Theorem, given: Values, rounds: int | None, error: float | None) -> dict[str, Any]:
    """All numbers of a theorem."""
    values = theorem.complete(given)
    limit = theorem.limit(values)
    if values.get("a", 0) > limit:
        raise ConfigError(
            f"--local-lr {values['a']:g}: {theorem.number} allows at most {limit:.3g} with server_lr {values['b']:.3g}"
        )
    answer: dict[str, Any] = {
        **{"paper": theorem.paper, "theorem": theorem.number, "case": theorem.what, "bounds": theorem.measure},
        **{"up_to_constant": theorem.up_to_constant, "reading": theorem.reading},
        "server_lr": values["b"],
        "server_lr_formula": "given" if "b" in given else shown(theorem.defaults["b"]),
        "local_lr_limit": limit,
        "limits": {shown(text): evaluate(text, values) for text in theorem.limits},
        "conditions": [f"{shown(text)} >= 0" for text in theorem.conditions],
        "settings": {
            name: {"value": evaluate(text, values), "formula": shown(text)}
            for name, text in theorem.settings.items()
            if symbols(text) <= values.keys()
        },
    }
    if theorem.order:
        rates = f"local_lr of order {shown(theorem.corollary_rate)}"
        answer["corollary"] = {"number": theorem.corollary, "rates": rates, "order": shown(theorem.order)}
    if rounds is not None:
        rate = theorem.best_rate(values, rounds)
        parts = theorem.parts(values, rate, rounds)
        answer["after"] = {"rounds": rounds, "local_lr": rate, "bound": sum(parts.values()), "terms": parts}
    if error is not None:
        needed = theorem.rounds_to(error, values)
        rate = theorem.best_rate(values, needed or MANY)
        answer["to"] = {"epsilon": error, "rounds": needed, "local_lr": rate}
        if needed is None:
            answer["to"]["smallest_bound"] = theorem.bound(values, rate, MANY)
    answer["formulas"] = {name: shown(text) for name, text in theorem.terms.items()}
    answer["factor"] = shown(theorem.factor)
    answer["constants"] = {
        symbol: {"value": values[symbol], "formula": shown(text)} for symbol, text in theorem.constants.items()
    }
    return answer


def _table(answer: dict[str, Any]) -> Table:
    table = new_table("", "value", "formula")
    title = f"{answer['theorem']} of {answer['paper']}: {answer['case']}\nbounds {answer['bounds']}"
    table.title, table.title_justify = title, "left"

    def row(name: str, value: float | None, formula: str) -> None:
        table.add_row(name, "" if value is None else f"{value:.4g}", escape(formula))

    row("server_lr b", answer["server_lr"], answer["server_lr_formula"])
    row("local_lr a, at most", answer["local_lr_limit"], "the smallest of these:")
    for formula, value in answer["limits"].items():
        row("", value, formula)
    for formula in answer["conditions"]:
        row("", None, formula)
    for name, setting in answer["settings"].items():
        row(name, setting["value"], setting["formula"])
    for symbol, constant in answer["constants"].items():
        row(symbol, constant["value"], constant["formula"])
    after = answer.get("after", {"rounds": "T", "bound": None, "terms": {}})
    rate = f"with local_lr = {after['local_lr']:.4g}: " if "local_lr" in after else ""
    factor = "" if answer["factor"] == "1" else f", each times {answer['factor']}"
    row(
        f"bound after {counted(after['rounds'], 'round')}" if rate else "bound after T rounds",
        after["bound"],
        f"{rate}the sum of these{factor}",
    )
    for name, formula in answer["formulas"].items():
        row(f"  {name}", after["terms"].get(name), formula)
    if "corollary" in answer:
        corollary = answer["corollary"]
        row(f"order, {corollary['number']}", None, f"{corollary['order']}, with {corollary['rates']}")
    if "to" in answer:
        to = answer["to"]
        if to["rounds"] is None:
            row(
                f"rounds to {to['epsilon']:g}",
                None,
                f"not reached: after {MANY:.0e} rounds it is {to['smallest_bound']:.3g}",
            )
        else:
            table.add_row(f"rounds to {to['epsilon']:g}", f"{to['rounds']:,}", f"with local_lr = {to['local_lr']:.4g}")
    return table


def _constant(answer: dict[str, Any]) -> str:
    return "The paper states this bound up to a constant factor." if answer["up_to_constant"] else ""
