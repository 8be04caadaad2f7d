"""The search for settings that are faster than the defaults: whom to measure next, and what to make of the times.

A generator: it yields the settings of which it wants one sample and is sent the sample, so that it does not care who
measures, how, and on how many ranks. Ranks that send it the same samples come to the same result.

Two settings are compared in rounds. In a round each is sampled once, in an order that changes, so that all else that the
machine does hits both alike; the first samples of each are thrown away. One is better than the other if a sign test over the
rounds says so, the median gain is worth it, and no case alone is slower. From the defaults the search walks along
each parameter, up and down, as long as that helps. The winner is compared with the defaults once more, with
twice the rounds: if that does not confirm it, the result is the defaults.
"""

import math
import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = [
    "Comparison",
    "Parameter",
    "Rules",
    "Sample",
    "Search",
    "SearchResult",
    "Settings",
    "Value",
    "chance",
    "drive",
    "search",
]

Value = int | float | str
Settings = Mapping[str, Value]
# Seconds of each case, the same cases every time; None: the time is up.
Sample = Sequence[float] | None
Search = Generator[Settings, Sample, "SearchResult"]


@dataclass(frozen=True)
class Parameter:
    """Something that may be set.

    Attributes:
        name: of the knob.
        values: that may be tried, ascending where there is an order; one is the default.
        ordered: do neighbours resemble each other, so that one walks from value to value?
    """

    name: str
    values: tuple[Value, ...]
    ordered: bool = True


@dataclass(frozen=True)
class Rules:
    """When one setting counts as better than another.

    Attributes:
        warm_up: samples of each that are thrown away before a comparison.
        rounds: of a comparison, which ends earlier where it is lost.
        significance: the largest chance with which settings that are alike may look better.
        least_gain: the least median gain, as a share of the time, that is worth a setting of its own.
        patience: how many steps along a parameter may fail, one after the other, before that direction is given up.
        sweeps: how often all parameters are gone through, at most.
    """

    warm_up: int = 2
    rounds: int = 12
    significance: float = 0.02
    least_gain: float = 0.02
    patience: int = 2
    sweeps: int = 2

    @property
    def affordable_losses(self) -> int:
        """How many rounds may be lost in a comparison that is won."""
        lost = [lost for lost in range(self.rounds + 1) if chance(self.rounds - lost, self.rounds) <= self.significance]
        return max(lost, default=-1)


@dataclass
class Comparison:
    """The measurements of two settings, round by round.

    Attributes:
        base, candidate: the settings.
        gains: of each round, the logarithm of the time with the base over that with the candidate, averaged over cases.
        cases: of each round, the same by case.
        better: is the candidate better?
    """

    base: Settings
    candidate: Settings
    gains: list[float] = field(default_factory=list)
    cases: list[list[float]] = field(default_factory=list)
    better: bool = False

    @property
    def gain(self) -> float:
        """The median gain, as a share of the base's time; below zero if the candidate is slower."""
        return 1 - math.exp(-statistics.median(self.gains)) if self.gains else 0.0

    @property
    def noise(self) -> float:
        """Half the distance between the quartiles of the rounds' gains."""
        if len(self.gains) < 4:
            return math.inf
        low, _, high = statistics.quantiles(self.gains, n=4)
        return (high - low) / 2

    def judge(self, rules: Rules) -> bool:
        """Is the candidate better by these rules, as far as was measured?"""
        worst = any(_clear([-gain for gain in case], rules) for case in zip(*self.cases, strict=True))
        return _clear(self.gains, rules) and not worst


@dataclass
class SearchResult:
    """The result of a search.

    Attributes:
        chosen: all parameters with the values to take.
        defaults: the same with their defaults.
        trials: all comparisons of which anything was measured, in order.
        validation: the last one, of the winner with the defaults; None if nothing was better than they.
        complete: did the time suffice?
    """

    chosen: dict[str, Value]
    defaults: dict[str, Value]
    trials: list[Comparison] = field(default_factory=list)
    validation: Comparison | None = None
    complete: bool = True


def chance(wins: int, rounds: int) -> float:
    """The chance that the second of two equal settings wins this many rounds or more."""
    return float(sum(math.comb(rounds, k) for k in range(wins, rounds + 1)) / 2**rounds)


def _clear(gains: Sequence[float], rules: Rules) -> bool:
    """Are these gains more than noise, and worth it?"""
    if not gains or chance(sum(gain > 0 for gain in gains), len(gains)) > rules.significance:
        return False
    return statistics.median(gains) >= -math.log(1 - rules.least_gain)


class _TimeUp(Exception):
    """Nothing more can be measured."""


def search(parameters: Sequence[Parameter], defaults: Settings, rules: Rules | None = None) -> Search:
    """Looks for better settings than the defaults.

    Args:
        parameters: what may be set.
        defaults: their values without any tuning.
        rules: what counts as better.

    Returns:
        A generator of the settings to sample, which is sent the samples. None instead of a sample ends the
        search; what has been found by then is still compared with the defaults, and None again gives it up for them.

    Raises:
        ValueError: a default is not among its parameter's values.
    """
    rules = rules or Rules()
    for parameter in parameters:
        if defaults[parameter.name] not in parameter.values:
            raise ValueError(f"the default of {parameter.name}, {defaults[parameter.name]}, is not among its values")
    return _search(parameters, defaults, rules)


def drive(searching: Search, sample: Callable[[Settings], tuple[Sequence[float], float]], seconds: float) -> SearchResult:
    """Runs a search.

    Args:
        searching: as `search` gives it.
        sample: the seconds of each case with some settings, and the seconds that have passed altogether.
        seconds: three quarters of this are for the search; what is found is confirmed in the rest, or is not taken
            if that has lasted until half as long again.

    Returns:
        The result.
    """
    limits = [0.75 * seconds, 1.5 * seconds]
    try:
        settings = next(searching)
        while True:
            times, passed = sample(settings)
            over = bool(limits) and passed > limits[0]
            if over:
                limits.pop(0)
            settings = searching.send(None if over else times)
    except StopIteration as end:
        outcome: SearchResult = end.value
        return outcome


def _search(parameters: Sequence[Parameter], defaults: Settings, rules: Rules) -> Search:
    start = {parameter.name: defaults[parameter.name] for parameter in parameters}
    walk = _Walk(rules, dict(start))
    try:
        yield from walk.all(parameters)
    except _TimeUp:
        walk.outcome.complete = False
        walk.outcome.trials = [trial for trial in walk.outcome.trials if trial.gains]
    outcome = walk.outcome
    outcome.defaults = start
    if outcome.chosen != start:
        confirmed = False
        outcome.validation = Comparison(start, dict(outcome.chosen))
        try:
            twice = Rules(rules.warm_up, 2 * rules.rounds, rules.significance, rules.least_gain)
            confirmed = yield from _compare(outcome.validation, twice)
        except _TimeUp:
            outcome.complete = False
        if not confirmed:
            outcome.chosen = dict(start)
    return outcome


def _compare(comparison: Comparison, rules: Rules) -> Generator[Settings, Sample, bool]:
    pair = (comparison.base, comparison.candidate)
    for settings in pair:
        for _ in range(rules.warm_up):
            yield from _sample(settings)
    lost = 0
    for number in range(rules.rounds):
        samples: dict[int, Sequence[float]] = {}
        for place in (0, 1) if number % 2 == 0 else (1, 0):
            samples[place] = yield from _sample(pair[place])
        by_case = [math.log(base / candidate) for base, candidate in zip(samples[0], samples[1], strict=True)]
        comparison.cases.append(by_case)
        comparison.gains.append(statistics.fmean(by_case))
        lost += comparison.gains[-1] <= 0
        if lost > rules.affordable_losses:
            return False  # no further rounds can change that
    comparison.better = comparison.judge(rules)
    return comparison.better


def _sample(settings: Settings) -> Generator[Settings, Sample, Sequence[float]]:
    sample = yield settings
    if sample is None:
        raise _TimeUp
    if not sample or min(sample) <= 0:
        raise ValueError(f"a sample has a time above zero for each case, not {list(sample)}")
    return sample


class _Walk:
    """From the defaults from better to better settings."""

    def __init__(self, rules: Rules, start: dict[str, Value]) -> None:
        self._rules = rules
        self._known: set[tuple[tuple[str, Value], ...]] = {_key(start)}  # nothing is tried twice
        self.outcome = SearchResult(start, start)

    def all(self, parameters: Sequence[Parameter]) -> Generator[Settings, Sample, None]:
        """Goes through the parameters until a whole sweep has changed nothing."""
        for _ in range(self._rules.sweeps):
            before = dict(self.outcome.chosen)
            for parameter in parameters:
                yield from self._along(parameter)
            if self.outcome.chosen == before:
                return

    def _along(self, parameter: Parameter) -> Generator[Settings, Sample, None]:
        if not parameter.ordered:
            for value in parameter.values:
                yield from self._try(parameter.name, value)
            return
        for direction in (1, -1):
            start = parameter.values.index(self.outcome.chosen[parameter.name])
            place, failures, moved = start + direction, 0, False
            while 0 <= place < len(parameter.values) and failures < self._rules.patience:
                better = yield from self._try(parameter.name, parameter.values[place])
                failures = 0 if better else failures + 1
                moved = moved or better
                place += direction
            if moved:
                return

    def _try(self, name: str, value: Value) -> Generator[Settings, Sample, bool]:
        candidate = {**self.outcome.chosen, name: value}
        if _key(candidate) in self._known:
            return False
        self._known.add(_key(candidate))
        comparison = Comparison(dict(self.outcome.chosen), candidate)
        self.outcome.trials.append(comparison)
        better = yield from _compare(comparison, self._rules)
        if better:
            self.outcome.chosen = candidate
        return better


def _key(settings: Settings) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(settings.items()))
