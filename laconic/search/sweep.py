"""A sweep: one run for each setting that is tried, in a directory that can be gone on with."""

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
"""One line for each setting that optuna has asked for, so that a sweep that was stopped goes on with the same ones."""
BEST = "best.toml"

Make = Callable[[dict[str, Any]], RunConfig]
"""The config with some settings changed."""


@dataclass(frozen=True)
class Tried:
    """One setting, and how it did."""

    settings: dict[str, Any]
    directories: list[Path]
    """Its run with each seed."""
    scores: list[Score]

    @property
    def score(self) -> Score:
        """The mean over the seeds."""
        return mean_of(self.scores)


@dataclass
class Sweep:
    """Runs settings one after the other, each on all of the engine's workers; finished runs are not run again."""

    make: Make
    space: Space
    directory: Path
    callbacks: Sequence[Callback]
    target: float | None = None
    by: str = "bytes"
    seeds: int = 1
    """With how many seeds each setting is run, counted from the config's."""
    tried: list[Tried] = field(default_factory=list)
    _asked_for: str = ""
    _data: dict[int, ClientData] = field(default_factory=dict)
    """By seed, of one division of one data set."""

    def run_grid(self) -> list[Tried]:
        """Every combination."""
        settings = [*grid(self.space)]
        # A setting that cannot be is found before the first run, not after an hour.
        for each in settings:
            self.make(each).build_algorithm()
        for number, each in enumerate(settings, 1):
            self._try(each, self.directory / re.sub(r"[^\w.+=-]+", "_", spelled(each)), f"{number}/{len(settings)}")
        return self.ranked()

    def run_optuna(self, count: int, seed: int) -> list[Tried]:
        """So many settings, each chosen from what the ones before it have shown (tree-structured Parzen estimators)."""
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        distributions = {key: _distribution(optuna, choices) for key, choices in self.space.items()}
        known = [*self._asked()][:count]
        for number in range(1, count + 1):
            # Asked for again even where the answer is known: the sampler's draws go on from there.
            asked = study.ask(distributions)
            settings = known[number - 1] if number <= len(known) else asked.params
            if number > len(known):
                self._note(settings)
            value = self._trial(number, count, settings)
            if settings == asked.params:
                study.tell(asked, value)
            else:
                study.tell(asked, state=optuna.trial.TrialState.FAIL)
                study.add_trial(optuna.trial.create_trial(params=settings, distributions=distributions, value=value))
        return self.ranked()

    def _trial(self, number: int, count: int, settings: dict[str, Any]) -> float:
        return self._try(settings, self.directory / f"trial-{number:03d}", f"{number}/{count}").score.value

    def ranked(self) -> list[Tried]:
        """Best first."""
        return sorted(self.tried, key=lambda tried: tried.score.order)

    def write_best(self) -> Path:
        """The winner as a config that `laconic run` takes: the run's own, complete."""
        winner = self.ranked()[0]
        if winner.score.diverged:
            raise ConfigError("every setting has diverged; try smaller rates")
        path = self.directory / BEST
        write_atomically(path, RunDirectory(winner.directories[0]).config.read_bytes())
        return path

    def _try(self, settings: dict[str, Any], directory: Path, place: str) -> Tried:
        first = self.make(settings).seed
        tried = Tried(settings, [], [])
        for seed in range(first, first + self.seeds):
            config = self.make(settings | {"seed": seed})
            # The first seed's run is where it would be alone, so that more seeds can be asked for later.
            path = directory if seed == first else directory.with_name(f"{directory.name}_seed={seed}")
            label = f"{place} {spelled(settings)}{f', seed {seed}' if self.seeds > 1 else ''}"
            run = run_or_resume(config, path, self.callbacks, label, self._loaded(config))
            tried.directories.append(path)
            tried.scores.append(score(run, self.target, self.by))
        self.tried.append(tried)
        return tried

    def _loaded(self, config: RunConfig) -> ClientData:
        """The data of a config; the same for all that do not change it."""
        asked = repr([getattr(config, name) for name in ("dataset", "partition", "clients", "data_dir")])
        if asked != self._asked_for:
            # One at a time: a sweep over partitions does not need all of them in memory.
            self._asked_for, self._data = asked, {}
        if config.seed not in self._data:
            self._data[config.seed] = config.load_data()
        return self._data[config.seed]

    def _asked(self) -> Iterator[dict[str, Any]]:
        path = self.directory / TRIALS
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return

    def _note(self, settings: dict[str, Any]) -> None:
        path = self.directory / TRIALS
        lines = [*self._asked(), settings]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError("--optuna needs optuna: in the folder of the clone, pip install -e '.[sweep]'") from None
    return optuna


def _distribution(optuna: Any, choices: Choices) -> Any:
    if isinstance(choices, Range):
        return optuna.distributions.FloatDistribution(choices.low, choices.high, log=choices.logarithmic)
    return optuna.distributions.CategoricalDistribution(choices)
