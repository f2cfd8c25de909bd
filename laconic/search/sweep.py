"""Sweeps: one run per setting, in a directory from which the sweep can be resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laconic import ConfigError
from laconic.data import ClientData
from laconic.run import Callback, RunConfig, RunDirectory, run_or_resume, write_atomically
from laconic.search.score import Score, mean_of, score
from laconic.search.space import Choices, Range, Space, grid, spelled

TRIALS = "trials.jsonl"
"""One line per setting that optuna suggested, so that a resumed sweep repeats the same settings."""
BEST = "best.toml"

Make = Callable[[dict[str, Any]], RunConfig]
"""Returns the config with the given settings."""


@dataclass(frozen=True)
class Tried:
    """One setting and its scores."""

    settings: dict[str, Any]
    directories: list[Path]
    """One run directory per seed."""
    scores: list[Score]

    @property
    def score(self) -> Score:
        """The mean over the seeds."""
        return mean_of(self.scores)


@dataclass
class Sweep:
    """Runs settings one after the other. Finished runs are not repeated."""

    make: Make
    space: Space
    directory: Path
    callbacks: Sequence[Callback]
    target: float | None = None
    by: str = "bytes"
    seeds: int = 1
    """Number of seeds per setting, starting at the config's seed."""
    tried: list[Tried] = field(default_factory=list)
    _data_key: str = ""
    _data: dict[int, ClientData] = field(default_factory=dict)
    """Loaded data by seed, for the data set and partition of `_data_key`."""

    def run_grid(self) -> list[Tried]:
        """Run every combination. Return the results, best first."""
        combinations = [*grid(self.space)]
        # Reject invalid settings before the first run.
        for settings in combinations:
            self.make(settings).build_algorithm()
        for number, settings in enumerate(combinations, 1):
            path = self.directory / re.sub(r"[^\w.+=-]+", "_", spelled(settings))
            self._try(settings, path, f"{number}/{len(combinations)}")
        return self.ranked()

    def run_optuna(self, count: int, seed: int) -> list[Tried]:
        """Run `count` settings chosen by tree-structured Parzen estimators. Return the results, best first."""
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        distributions = {key: _distribution(optuna, choices) for key, choices in self.space.items()}
        recorded = [*self._recorded()][:count]
        for number in range(1, count + 1):
            # Ask even if the setting is recorded, so that the sampler's random state advances as in the first run.
            trial = study.ask(distributions)
            settings = recorded[number - 1] if number <= len(recorded) else trial.params
            if number > len(recorded):
                self._record(settings)
            value = self._try(settings, self.directory / f"trial-{number:03d}", f"{number}/{count}").score.value
            if settings == trial.params:
                study.tell(trial, value)
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                study.add_trial(optuna.trial.create_trial(params=settings, distributions=distributions, value=value))
        return self.ranked()

    def ranked(self) -> list[Tried]:
        """Return the results so far, best first."""
        return sorted(self.tried, key=lambda tried: tried.score.order)

    def write_best(self) -> Path:
        """Write the complete config of the best run, for `laconic run`."""
        winner = self.ranked()[0]
        if winner.score.diverged:
            raise ConfigError("every setting diverged; try smaller rates")
        path = self.directory / BEST
        write_atomically(path, RunDirectory(winner.directories[0]).config.read_bytes())
        return path

    def _try(self, settings: dict[str, Any], directory: Path, progress: str) -> Tried:
        first = self.make(settings).seed
        tried = Tried(settings, [], [])
        for seed in range(first, first + self.seeds):
            config = self.make(settings | {"seed": seed})
            # The first seed's directory does not name the seed, so that a later sweep with more seeds reuses the run.
            path = directory if seed == first else directory.with_name(f"{directory.name}_seed={seed}")
            label = f"{progress} {spelled(settings)}{f', seed {seed}' if self.seeds > 1 else ''}"
            run = run_or_resume(config, path, self.callbacks, label, self._loaded(config))
            tried.directories.append(path)
            tried.scores.append(score(run, self.target, self.by))
        self.tried.append(tried)
        return tried

    def _loaded(self, config: RunConfig) -> ClientData:
        """Return the config's data, shared by all configs with the same data set, partition and seed."""
        key = repr(
            [getattr(config, name) for name in ("dataset", "partition", "clients", "augment", "skip_empty", "data_dir")]
        )
        if key != self._data_key:
            # Keep one at a time: a sweep over partitions does not need all of them in memory.
            self._data_key, self._data = key, {}
        if config.seed not in self._data:
            self._data[config.seed] = config.load_data()
        return self._data[config.seed]

    def _recorded(self) -> Iterator[dict[str, Any]]:
        path = self.directory / TRIALS
        for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
            try:
                settings = json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"'{path}', line {number}: not valid JSON: {error}") from None
            # A changed file must not add settings, such as a model in somebody's Python file.
            if not _is_point(settings, self.space):
                raise ConfigError(f"'{path}': {line.decode()[:80]!r}: not a setting of this search")
            yield settings

    def _record(self, settings: dict[str, Any]) -> None:
        lines = [*self._recorded(), settings]
        write_atomically(self.directory / TRIALS, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _is_point(settings: Any, space: Space) -> bool:
    """Whether the settings are a choice for each key of the space."""
    if not isinstance(settings, dict) or settings.keys() != space.keys():
        return False
    return all(
        isinstance(settings[key], float) if isinstance(choices, Range) else settings[key] in choices
        for key, choices in space.items()
    )


def _optuna() -> Any:
    try:
        import optuna  # late: an extra
    except ImportError:
        hint = "pip install -c constraints.txt -e '.[sweep]'"
        raise ConfigError(f"--optuna needs optuna: in the folder of the clone, {hint}") from None
    return optuna


def _distribution(optuna: Any, choices: Choices) -> Any:
    if isinstance(choices, Range):
        return optuna.distributions.FloatDistribution(choices.low, choices.high, log=choices.logarithmic)
    return optuna.distributions.CategoricalDistribution(choices)
