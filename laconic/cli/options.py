"""The options that run, compare and tune share, said once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from laconic.algorithms.recipes import make
from laconic.core.errors import ConfigError
from laconic.core.part import SLOTS
from laconic.core.user_code import load_parts
from laconic.run.config import SHORT_NAMES, RunConfig, load_config, parse_setting

# Name, type and help of each option that stands for a key of the config.
_KEYS: list[tuple[str, type, str]] = [
    ("dataset", str, "Data set by name (see `laconic datasets`), or file.py[:function] that returns clients."),
    ("partition", str, "iid, shards:S, pairs, dirichlet:ALPHA or natural; the data set's own when not given."),
    (
        "model",
        str,
        "Model by name (see `laconic models`), or module:function of your own; one that fits when not given.",
    ),
    (
        "clients",
        int,
        "How many clients the data is split over; 20 for digits, all where there are natural ones, else 100.",
    ),
    ("participants", int, "Clients per round; all when not given."),
    ("rounds", int, "Rounds of training."),
    ("local_steps", int, "Local steps per round."),
    ("local_epochs", int, "Local passes over the client's data, instead of steps."),
    ("batch_size", int, "Examples per local step."),
    ("batch_order", str, "shuffled, or fixed: the order of the client's data, the same every round."),
    ("local_lr", float, "The clients' learning rate."),
    ("server_lr", float, "The server's learning rate."),
    ("compressor", str, "How updates are compressed on their way up: top_k:1/64, sign, qsgd:4, top_k:0.01+qsgd:4, …"),
    (
        "granularity",
        str,
        "Which entries are compressed together: model, layer or chunk:N. Short: --compressor sign@layer.",
    ),
    (
        "downlink",
        str,
        "How the model travels: dense; broadcast or mirrored, compressed as updates are or by --set downlink.compressor; "
        "or repeated, where clients hear the mean (fed_gate).",
    ),
    ("aggregate", str, "How updates become one: mean, median, or trimmed_mean:SHARE, coordinate by coordinate."),
    ("clip_updates", str, "Updates that are longer are brought to this length; median is that of the round's updates."),
    (
        "refuse_updates",
        str,
        "Updates that are longer are refused; auto is 100 times the median length of those that were accepted last.",
    ),
    ("dp_noise", float, "Central differential privacy: noise on the sum, as a multiple of --clip-updates."),
    ("dp_delta", float, "The delta at which its epsilon is reported."),
    ("drop", float, "Chance that an update is lost on the way."),
    ("late", float, "Chance that an update arrives after its round."),
    ("duplicate", float, "Chance that an update arrives twice."),
    ("crash", float, "Chance that a client dies at a random moment of its round."),
    ("lose_state", float, "Chance that a client comes back with nothing."),
    (
        "bandwidth_up",
        str,
        "Simulate the time of messages: from a client, as 1Mbit or lognormal:1Mbit,0.5 (median, spread).",
    ),
    ("bandwidth_down", str, "The same to a client."),
    ("latency", str, "The same for each way, as 50ms or lognormal:50ms,0.5."),
    (
        "deadline",
        float,
        "Simulated seconds, as 30 or 30s, after which a round closes; clients that are later are cut off.",
    ),
    (
        "sampling",
        str,
        "How participants are drawn: uniform, weighted by their examples, or poisson: each by its own coin.",
    ),
    ("weighting", str, "A client's weight in the mean: uniform, or size."),
    ("seed", int, "Everything random follows from it."),
    ("eval_every", int, "Rounds between two evaluations."),
    ("device", str, "cpu, cuda, cuda:1, …"),
    ("dtype", str, "float32 or float64."),
    ("strategy", str, "How gradients are computed: auto, stacked, vmap or loop."),
    ("threads", int, "Python threads over clients; changes the speed only."),
    ("chunk", int, "Clients handled together by one thread; changes the speed only."),
    ("store", str, "Where clients' states are kept: memory, or disk, for populations that memory does not hold."),
    ("store_cache", str, "With --store disk: how much of it is kept in memory, too, as in 200MB."),
    ("engine", str, "Who runs the clients: inline (this process), or ray (workers on many cores or machines)."),
    (
        "workers",
        int,
        "With --engine ray: how many processes, each with a shard of the clients; one per core if not given.",
    ),
    (
        "ray_address",
        str,
        "With --engine ray: a cluster that runs already (auto, or host:port); else one is started here.",
    ),
    ("data_dir", str, "Where to look for data sets first."),
]

_FIRST: str = RunConfig.model_fields["algorithm"].default
"""The algorithm when none is named."""
_METAVARS = {str: "TEXT", int: "NUMBER", float: "NUMBER"}

Command = Callable[..., None]


def with_config(function: Command, defaults: dict[str, str] | None = None) -> Command:
    """Give a command the shared options; it gets what was said as `options`, a dict of config keys.

    `defaults`: what the help says of them where the command has others than the config.
    """
    told = {name: _default(name) for name, _, _ in _KEYS} | (defaults or {})
    own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.name != "options"]
    # Everything is text here, and checked by the config, so that a mistake reads the same in a file and an option.
    shared = [
        _option(name, str | None, f"--{name.replace('_', '-')}", metavar=_METAVARS[kind], help=text + told[name])
        for name, kind, text in _KEYS
    ]
    shared += [
        _option(
            "memory",
            bool | None,
            "--memory/--no-memory",
            help="Whether clients remember what they did not send; as the algorithm has it when not given.",
        ),
        _option("diagnostics", bool | None, "--diagnostics", help="Measure q_C, q_A, gamma and the memories' norm."),
        _option(
            "full_gradient",
            bool | None,
            "--full-gradient",
            help="Measure the objective over all clients, its gradient, and how alike the clients' gradients are.",
        ),
        _option(
            "imports",
            list[str] | None,
            "--import",
            metavar="FILE.py",
            help="A file of your own with parts (a compressor, a method, …) that may then be named; may be given again.",
        ),
        _option("set", list[str] | None, "--set", metavar="PART.PARAMETER=VALUE", help="Any other setting."),
    ]

    @functools.wraps(function)
    def command(**arguments: Any) -> None:
        options = {name: arguments.pop(name) for name in ("memory", "diagnostics", "full_gradient")}
        options |= {name: _value(kind, arguments.pop(name)) for name, kind, _ in _KEYS}
        options["imports"] = arguments.pop("imports") or None
        load_parts(options["imports"] or [])  # now, since labels of algorithms may speak of them
        settings = dict(parse_setting(text) for text in arguments.pop("set") or [])
        function(**arguments, options=options | settings)

    parameters = [*own, *shared]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _option(name: str, kind: Any, *spelling: str, **details: Any) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(*spelling, **details)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _default(name: str) -> str:
    """What holds when an option is not given, for its help; nothing where its text says so itself."""
    head, dot, key = SHORT_NAMES.get(name, name).partition(".")
    if head in SLOTS:
        value = make(_FIRST).parts()[head].parameters().get(key)
        return "" if value is None else f" Default: the algorithm's own; {_shown(value)} in {_FIRST}."
    section = RunConfig.model_fields[head].get_default(call_default_factory=True)
    value = getattr(section, key) if dot else section
    if name == "store_cache":
        return f" Default: {value // 10**6}MB."
    return "" if value is None else f" Default: {_shown(value)}."


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value(kind: type, text: str | None) -> Any:
    """A number where one is wanted; what is none stays text, for the config to complain about."""
    try:
        return text if text is None else kind(text)
    except ValueError:
        return text


def read_config(path: Path | None, options: dict[str, Any], label: dict[str, Any]) -> RunConfig:
    """The config of a command; what the label of the algorithm says wins over the options."""
    check_options(options)
    return load_config(path, options, label)


def check_options(options: dict[str, Any]) -> None:
    """Refuse what only a file and an option may say differently."""
    if options.get("local_steps") is not None and options.get("local_epochs") is not None:
        raise ConfigError("--local-steps and --local-epochs: only one of the two is allowed")


def fraction(target: float | None) -> float | None:
    """A target accuracy that may be given in per cent."""
    if target is None:
        return None
    fraction = target / 100 if target > 1 else target
    if not 0 < fraction <= 1:
        raise ConfigError(f"--target {target:g}: an accuracy between 0 and 1, or in per cent, is allowed")
    return fraction
