"""The options that commands share. Options of a run are derived from the config's keys: name, type, default and help."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import ByteSize
from pydantic.fields import FieldInfo

from laconic.cli.completion import (
    AGGREGATES,
    COMPRESSORS,
    DATASETS,
    DOWNLINKS,
    MODELS,
    PARTITIONS,
    UPLINKS,
    algorithms,
    completing,
)
from laconic.core.errors import ConfigError, unknown_name
from laconic.core.user_code import UntrustedCode, load_parts, trust
from laconic.run.keys import SHORT_NAMES, ConfigKeys, PartParameters, parse_setting
from laconic.run.target import COSTS, Target
from laconic.theory import quantities

Command = Callable[..., None]

OUTPUT = "Output (docs/guides/read-the-report.md)"
OTHER = "Other settings"
PANELS = {
    "Data (docs/guides/own-data-and-model.md)": (
        "dataset",
        "partition",
        "clients",
        "augment",
        "skip_empty",
        "data_dir",
    ),
    "Model (docs/guides/own-data-and-model.md)": ("model", "dtype", "subspace", "subspace_every"),
    "Training (docs/guides/settings.md)": (
        *("rounds", "participants", "local_steps", "local_epochs"),
        *("batch_size", "batch_order", "local_lr", "local_optimizer", "local_optimizer_state", "seed"),
    ),
    "Links (docs/guides/choose-a-compressor.md)": ("compressor", "granularity", "memory", "uplink", "downlink"),
    "Server (docs/guides/settings.md)": ("server_lr", "sampling", "weighting"),
    "Network and faults (docs/guides/settings.md)": (
        *("bandwidth_up", "bandwidth_down", "latency", "deadline"),
        *("drop", "late", "duplicate", "crash", "lose_state"),
    ),
    "Defenses (docs/defenses.md)": ("aggregate", "clip_updates", "refuse_updates", "dp_noise", "dp_delta"),
    "Engine (docs/performance.md)": (
        *("device", "engine", "workers", "ray_address", "strategy"),
        *("threads", "chunk", "store", "store_cache"),
    ),
    OTHER: ("imports",),
    OUTPUT: ("eval_every", "metrics", "client_eval", "personalize", "diagnostics", "full_gradient"),
}
"""The options of a run, in the order in which the help shows them. Titles name the guide."""
_OUTPUT_ORDER = (
    *("target", "rank_by", "out", "eval_every", "metrics", "report", "as_json", "resume", "from_round"),
    *("client_eval", "personalize", "early_stopping", "save_best", "diagnostics", "full_gradient"),
)
"""The usual options of the output, first. Those that are not here come after them."""
WIDEST = 16
"""Maximum number of characters of the values that the help shows beside an option."""
_FLAGS = {
    "memory": "--memory/--no-memory",
    **{name: f"--{name.replace('_', '-')}" for name in ("diagnostics", "full_gradient", "skip_empty")},
}
_COMPLETED = {
    **{"dataset": DATASETS, "partition": PARTITIONS, "model": MODELS, "compressor": COMPRESSORS},
    **{"uplink": UPLINKS, "downlink": DOWNLINKS, "aggregate": AGGREGATES},
}


def as_target(text: str) -> Target:
    """Read a target: an accuracy, which may be in percent, or METRIC=VALUE."""
    metric, _, value = text.rpartition("=")
    if metric in ("", "accuracy"):
        fraction = as_fraction(value)
        assert fraction is not None
        return Target(fraction)
    target = Target.of(text)
    assert target is not None
    return target


def as_fraction(text: str | None) -> float | None:
    """Convert a target accuracy, which may be in percent, to a fraction."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"--target {text}: an accuracy is allowed, as in 90 for 90 %") from None
    fraction = value / 100 if value > 1 else value
    if not 0 < fraction <= 1:
        raise ConfigError(f"--target {text}: an accuracy between 0 and 1, or in percent, is allowed")
    return fraction


def _known_cost(word: str) -> str:
    if word not in COSTS:
        raise unknown_name("ranking", word, COSTS)
    return word


def field_of(name: str) -> FieldInfo:
    """The field of the config that an option sets."""
    if name in PartParameters.model_fields:
        return PartParameters.model_fields[name]
    head, _, key = SHORT_NAMES.get(name, name).partition(".")
    field = ConfigKeys.model_fields[head]
    return field.annotation.model_fields[key] if key else field  # type: ignore[union-attr]


def help_of(name: str, default: str | None = None) -> str:
    """An option's help: the field's docstring and its default, or the sentence `default` if the command has another."""
    field = field_of(name)
    value = field.get_default(call_default_factory=True)
    if default is None and name in PartParameters.model_fields:
        default = "Default: the algorithm's own."
    elif default is None and value is not None and not isinstance(value, bool | dict | list):
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        if isinstance(value, ByteSize):
            shown = value.human_readable(decimal=True).replace(".0", "")
        default = f"Default: {shown}."
    return f"{field.description} {default or ''}".rstrip()


ALGORITHM_HELP = "Algorithm: NAME or NAME:key=value,key=value (see `laconic algorithms`)."
Algorithm = Annotated[
    str | None,
    typer.Option("--algorithm", help=f"{ALGORITHM_HELP} Default: fed_avg.", autocompletion=completing(algorithms)),
]
_output = functools.partial(typer.Option, rich_help_panel=OUTPUT)
_TARGET_HELP = "Accuracy in %; report the costs until the mean accuracy of 5 evaluations reaches it."
_ANY_TARGET_HELP = (
    "Accuracy in %, or METRIC=VALUE, as in f1=0.8; report the costs until the mean of 5 evaluations reaches it."
)
_MLFLOW_HELP = "Also log to MLflow, at MLFLOW_TRACKING_URI if it is set, otherwise to mlflow.db next to the run."
AnyTarget = Annotated[
    Target | None,
    _output("--target", metavar="TARGET", parser=as_target, help=_ANY_TARGET_HELP),
]
AccuracyTarget = Annotated[str | None, _output("--target", metavar="ACCURACY", callback=as_fraction, help=_TARGET_HELP)]
Ranking = Annotated[
    str,
    _output(
        "--rank-by",
        metavar="COST|METRIC",
        autocompletion=completing(COSTS),
        help=f"Rank by a cost of reaching --target: {', '.join(COSTS)} (time is simulated); or by a metric's last value.",
    ),
]
CostRanking = Annotated[
    str,
    _output(
        "--rank-by",
        metavar="COST",
        callback=_known_cost,
        autocompletion=completing(COSTS),
        help=f"Rank by a cost of reaching --target: {', '.join(COSTS)} (time is simulated).",
    ),
]
Out = Annotated[Path | None, _output("--out", help="Directory to write to. Default: a new one in runs/.")]
Resume = Annotated[bool, _output("--resume", help="Continue an interrupted run or comparison in --out.")]
FromRound = Annotated[
    int | None,
    _output(
        "--from-round",
        metavar="NUMBER",
        min=0,
        help="With --resume: go back to the checkpoint of this round, one of the last three (with --store disk: two).",
    ),
]
Json = Annotated[bool, _output("--json", help="Print one JSON object as the last line of stdout.")]
Report = Annotated[bool, _output("--report/--no-report", help="Write report.html at the end.")]
_STOPPING_HELP = "Stop when METRIC has not improved for 5 evaluations; METRIC:patience=8 waits for 8."
CALLBACKS: dict[str, Any] = {
    "early_stopping": Annotated[str | None, _output("--early-stopping", metavar="METRIC", help=_STOPPING_HELP)],
    "save_best": Annotated[
        str | None,
        _output(
            "--save-best",
            metavar="METRIC",
            help="Save the model with the best METRIC as best.safetensors. METRIC:mode=max: higher is better.",
        ),
    ],
    "tensorboard": Annotated[
        bool, _output("--tensorboard", help="Also write TensorBoard event files to the run's directory.")
    ],
    "mlflow": Annotated[bool, _output("--mlflow", help=_MLFLOW_HELP)],
    "wandb": Annotated[bool, _output("--wandb", help="Also log to Weights & Biases; to a file if WANDB_MODE=offline.")],
}
"""The options that add callbacks to a run. A command receives them as `callbacks`, a dict."""


def implemented_in(module: str) -> Callable[[Command], Command]:
    """Make a command call the function of the same name in `laconic.cli.MODULE`, imported at the call.

    These modules import torch, which takes seconds. Help and shell completion need only the declarations of commands.
    """

    def declare(declaration: Command) -> Command:
        declaration.__dict__["implemented_in"] = module

        @functools.wraps(declaration)
        def command(**arguments: Any) -> None:
            getattr(import_module(f"laconic.cli.{module}"), declaration.__name__)(**arguments)

        return command

    return declare


def with_callbacks(declaration: Command) -> Command:
    """Add the options of callbacks to a command. The command receives them as `callbacks`."""
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, kind, default=False if get_args(option)[0] is bool else None, annotation=option)
        for name, option in CALLBACKS.items()
    ]
    return _collecting(declaration, "callbacks", added)


def with_quantities(declaration: Command) -> Command:
    """Add the quantities of theorems to a command. The command receives them as `quantities`, a dict of numbers or None."""
    added = [
        _parameter(quantity.name, quantity.kind | None, quantity.option, help=quantity.help, rich_help_panel=panel)
        for panel, group in quantities.PANELS.items()
        for quantity in group
    ]
    return _collecting(declaration, "quantities", added)


def _collecting(declaration: Command, name: str, added: list[inspect.Parameter]) -> Command:
    """Add options to a command, which receives them in one dict, its parameter `name`."""

    @functools.wraps(declaration)
    def command(**arguments: Any) -> None:
        chosen = {option.name: arguments.pop(option.name) for option in added}
        declaration(**arguments, **{name: chosen})

    return _with_parameters(command, [*_parameters_but(declaration, name), *added])


def _parameters_but(declaration: Command, name: str) -> list[inspect.Parameter]:
    """The parameters of a command, without the dict that collects options."""
    return [p for p in inspect.signature(declaration, eval_str=True).parameters.values() if p.name != name]


def with_config(declaration: Command, defaults: dict[str, str] | None = None) -> Command:
    """Add the options of a run to a command. The command receives them as `options`, a dict of config keys.

    Args:
        declaration: The command.
        defaults: Sentences for the help of options whose default differs in this command.
    """
    own = _parameters_but(declaration, "options")
    shared = [_option(name, panel, defaults or {}) for panel, names in PANELS.items() for name in names]
    panel = OTHER
    help_text = "Set any other key, such as optimizer.beta2=0.9; repeatable."
    details: dict[str, Any] = {"metavar": "KEY=VALUE", "help": help_text, "rich_help_panel": panel}
    shared.append(_parameter("set", list[str] | None, "--set", **details))
    shared.append(_trust(panel))
    asking = with_trust(declaration)

    @functools.wraps(declaration)
    def command(**arguments: Any) -> None:
        options = {name: _value(name, arguments.pop(name)) for names in PANELS.values() for name in names}
        options["imports"] = options["imports"] or None
        if options["local_steps"] is not None and options["local_epochs"] is not None:
            raise ConfigError("--local-steps and --local-epochs: only one of the two is allowed")
        load_parts(options["imports"] or [])  # first, because labels may name the user's parts
        settings = dict(parse_setting(text) for text in arguments.pop("set") or [])
        asking(**arguments, options=options | settings)

    # The help shows panels in the order of their first option.
    order = [None, *PANELS]
    parameters = sorted([*own, *shared], key=lambda parameter: (order.index(_panel(parameter)), _place(parameter)))
    return _with_parameters(command, parameters)


def with_trust(declaration: Command) -> Command:
    """Add `--trust` to a command that may read another person's config. Without it the command asks before code runs."""

    @functools.wraps(declaration)
    def command(**arguments: Any) -> None:
        trusting = arguments.pop("trusting")
        while True:
            try:
                return declaration(**arguments)
            except UntrustedCode as error:
                if not (trusting or _allowed(error)):
                    raise
                # Commands read all files before they do anything else, or reuse finished runs: they can start again.
                trust(error.names)

    own = inspect.signature(declaration, eval_str=True).parameters.values()
    return _with_parameters(command, [*own, _trust(None)])


def _with_parameters(command: Command, parameters: Iterable[inspect.Parameter]) -> Command:
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _trust(panel: str | None) -> inspect.Parameter:
    help_text = "Run the code that an earlier run or another person's config names, without asking."
    return _parameter("trusting", bool | None, "--trust", help=help_text, rich_help_panel=panel)


def _allowed(error: UntrustedCode) -> bool:
    """Ask the user whether to run code. Without a terminal the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return typer.confirm(f"{error.what}. Run it?", err=True)


def _panel(parameter: inspect.Parameter) -> str | None:
    panel: str | None = get_args(parameter.annotation)[1].rich_help_panel
    return panel


def _place(parameter: inspect.Parameter) -> int:
    """The place of an option of the output in its panel. Other panels keep their order."""
    if _panel(parameter) != OUTPUT:
        return 0
    return _OUTPUT_ORDER.index(parameter.name) if parameter.name in _OUTPUT_ORDER else len(_OUTPUT_ORDER)


def _option(name: str, panel: str, defaults: dict[str, str]) -> inspect.Parameter:
    details: dict[str, Any] = {"help": help_of(name, defaults.get(name)), "rich_help_panel": panel}
    if name in _FLAGS:
        return _parameter(name, bool | None, _FLAGS[name], **details)
    if name == "imports":
        return _parameter(name, list[str] | None, "--import", metavar="FILE.py", **details)
    choices = [leaf for leaf in _leaves(field_of(name).annotation) if isinstance(leaf, str)]
    completed = _COMPLETED.get(name, choices)
    if completed:
        details["autocompletion"] = completing(completed)
    metavar = "|".join([*(["NUMBER"] if _number(name) else []), *choices]) or "TEXT"
    if len(metavar) > WIDEST:
        # A wide column of values leaves no room for the help.
        metavar = "NUMBER|NAME" if _number(name) else "NAME"
        if not all(choice in details["help"] for choice in choices):
            details["help"] += f" One of {', '.join(choices)}."
    # All values are strings that the config validates, so that files and options report the same errors.
    return _parameter(name, str | None, f"--{name.replace('_', '-')}", metavar=metavar, **details)


def _parameter(name: str, kind: Any, *spelling: str, **details: Any) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(*spelling, **details)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _leaves(annotation: Any) -> list[Any]:
    """The types and literal values that a type is composed of."""
    inner = get_args(annotation)
    return [leaf for argument in inner for leaf in _leaves(argument)] if inner else [annotation]


def _number(name: str) -> type[int] | type[float] | None:
    """int or float, if the option takes a number."""
    return next((leaf for leaf in _leaves(field_of(name).annotation) if leaf in (int, float)), None)


def _value(name: str, given: Any) -> Any:
    """Convert a number. Anything else stays a string, which the config validates."""
    kind = _number(name)
    try:
        return kind(given) if kind is not None and isinstance(given, str) else given
    except ValueError:
        return given
