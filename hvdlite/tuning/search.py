"""The search for settings that are faster than the defaults: it chooses what to measure next, and evaluates the times.

A function of the caller takes the samples. So the search does not depend on how, where and on how many ranks samples are taken.
Ranks whose functions return the same numbers get the same result.

The search compares two settings in rounds. A round samples each of the two settings once, in an order that alternates, so that
other work of the machine affects both settings alike. The first samples of each setting are discarded. A setting is better than
the other one if a sign test over the rounds says so, the median gain is large enough, and no single case is slower. A *case* is
one of the operations that a sample times. From the defaults, the search changes each parameter step by step, up and down, as
long as the result gets better. At the end it compares the winner with the defaults once more, with twice the rounds. If this
comparison does not confirm the winner, the result is the defaults.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

Value = int | float | str
Settings = Mapping[str, Value]
_Take = Callable[[Settings], Sequence[float]]  # takes a sample: the seconds of each case


@dataclass(frozen=True)
class Parameter:
    """A parameter of the search.

    Attributes:
        name: the name of the knob.
        values: the values to try, in ascending order if they have an order. One of the values is the default.
        ordered: do neighbouring values have similar times, so that the search can go from value to value?
    """

    name: str
    values: tuple[Value, ...]
    ordered: bool = True


@dataclass(frozen=True)
class Rules:
    """The rules that say when one setting is better than another.

    Attributes:
        warm_up: the number of samples of each setting that are discarded before a comparison.
        rounds: the number of rounds of a comparison. A comparison ends earlier if the candidate can no longer win.
        significance: the largest allowed probability that one of two equal settings is found better.
        least_gain: the least median gain, as a share of the time, for which a value other than the default is chosen.
        patience: the search leaves a direction of a parameter after this number of values in a row that were not better.
        sweeps: the largest number of times that the search goes through all parameters.
    """

    warm_up: int = 2
    rounds: int = 12
    significance: float = 0.02
    least_gain: float = 0.02
    patience: int = 2
    sweeps: int = 2

    @property
    def affordable_losses(self) -> int:
        """The largest number of rounds that the winner of a comparison may lose."""
        lost = [lost for lost in range(self.rounds + 1) if chance(self.rounds - lost, self.rounds) <= self.significance]
        return max(lost, default=-1)


@dataclass
class Comparison:
    """The measurements of two settings, round by round.

    Attributes:
        base, candidate: the settings.
        gains: for each round, the logarithm of (time with the base / time with the candidate), averaged over the cases.
        cases: for each round, the list of the logarithms of the cases.
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
        """Is the candidate better by these rules, in the rounds that were measured?"""
        worst = any(_clear([-gain for gain in case], rules) for case in zip(*self.cases, strict=True))
        return _clear(self.gains, rules) and not worst


@dataclass
class SearchResult:
    """The result of a search.

    Attributes:
        chosen: the chosen value of each parameter.
        defaults: the default of each parameter.
        trials: all comparisons with at least one round, in order.
        validation: the last comparison, of the winner with the defaults; None if no setting was better than the defaults.
        complete: was there enough time for the whole search?
    """

    chosen: dict[str, Value]
    defaults: dict[str, Value]
    trials: list[Comparison] = field(default_factory=list)
    validation: Comparison | None = None
    complete: bool = True


def chance(wins: int, rounds: int) -> float:
    """The probability that one of two equal settings wins this many rounds or more."""
    return float(sum(math.comb(rounds, k) for k in range(wins, rounds + 1)) / 2**rounds)


def _clear(gains: Sequence[float], rules: Rules) -> bool:
    """Are these gains more than noise, and is the median gain large enough?"""
    if not gains or chance(sum(gain > 0 for gain in gains), len(gains)) > rules.significance:
        return False
    return statistics.median(gains) >= -math.log(1 - rules.least_gain)


class _TimeUp(Exception):
    """The time for measurements is over."""


def search(
    parameters: Sequence[Parameter],
    defaults: Settings,
    rules: Rules,
    sample: Callable[[Settings], tuple[Sequence[float], float]],
    seconds: float,
) -> SearchResult:
    """Looks for better settings than the defaults.

    Args:
        parameters: the parameters to search.
        defaults: the default value of each parameter.
        rules: the rules of comparisons.
        sample: a function that takes a sample with some settings. It returns two things: the seconds of each
            case, always of the same cases, and the seconds that have passed since the search began.
        seconds: the intended time. The search ends after three quarters of it, so that the comparison of the winner with the
            defaults has the rest. If this comparison has not ended after 1.5 * `seconds` in all, the result is the defaults.

    Raises:
        ValueError: a default is not among its parameter's values, or a sample has no times.
    """
    for parameter in parameters:
        if defaults[parameter.name] not in parameter.values:
            raise ValueError(f"the default of {parameter.name}, {defaults[parameter.name]}, is not among its values")

    def take(until: float, settings: Settings) -> Sequence[float]:
        times, passed = sample(settings)
        if passed > until:
            raise _TimeUp
        if not times or min(times) <= 0:
            raise ValueError(f"a sample has a time above zero for each case, not {list(times)}")
        return times

    start = {parameter.name: defaults[parameter.name] for parameter in parameters}
    walk = _Walk(rules, start, partial(take, 0.75 * seconds))
    outcome = walk.outcome
    try:
        walk.all(parameters)
    except _TimeUp:
        outcome.complete = False
        outcome.trials = [trial for trial in outcome.trials if trial.gains]
    if outcome.chosen != start:
        confirmed = False
        outcome.validation = Comparison(start, outcome.chosen)
        try:
            twice = Rules(rules.warm_up, 2 * rules.rounds, rules.significance, rules.least_gain)
            confirmed = _compare(outcome.validation, twice, partial(take, 1.5 * seconds))
        except _TimeUp:
            outcome.complete = False
        if not confirmed:
            outcome.chosen = start
    return outcome


def _compare(comparison: Comparison, rules: Rules, take: _Take) -> bool:
    pair = (comparison.base, comparison.candidate)
    for settings in pair:
        for _ in range(rules.warm_up):
            take(settings)
    lost = 0
    for number in range(rules.rounds):
        samples = {place: take(pair[place]) for place in ((0, 1) if number % 2 == 0 else (1, 0))}
        by_case = [math.log(base / candidate) for base, candidate in zip(samples[0], samples[1], strict=True)]
        comparison.cases.append(by_case)
        comparison.gains.append(statistics.fmean(by_case))
        lost += comparison.gains[-1] <= 0
        if lost > rules.affordable_losses:
            return False  # no further rounds can change that
    comparison.better = comparison.judge(rules)
    return comparison.better


class _Walk:
    """The walk from the defaults to better and better settings."""

    def __init__(self, rules: Rules, start: dict[str, Value], take: _Take) -> None:
        self._rules, self._take = rules, take
        self._known: set[tuple[tuple[str, Value], ...]] = {_key(start)}  # nothing is tried twice
        self.outcome = SearchResult(start, start)

    def all(self, parameters: Sequence[Parameter]) -> None:
        """Goes through the parameters until a whole sweep has changed nothing, at most `Rules.sweeps` times."""
        for _ in range(self._rules.sweeps):
            before = self.outcome.chosen
            for parameter in parameters:
                self._along(parameter)
            if self.outcome.chosen == before:
                return

    def _along(self, parameter: Parameter) -> None:
        if not parameter.ordered:
            for value in parameter.values:
                self._try(parameter.name, value)
            return
        for direction in (1, -1):
            start = parameter.values.index(self.outcome.chosen[parameter.name])
            place, failures, moved = start + direction, 0, False
            while 0 <= place < len(parameter.values) and failures < self._rules.patience:
                better = self._try(parameter.name, parameter.values[place])
                failures = 0 if better else failures + 1
                moved = moved or better
                place += direction
            if moved:
                return

    def _try(self, name: str, value: Value) -> bool:
        candidate = {**self.outcome.chosen, name: value}
        if _key(candidate) in self._known:
            return False
        self._known.add(_key(candidate))
        comparison = Comparison(self.outcome.chosen, candidate)
        self.outcome.trials.append(comparison)
        better = _compare(comparison, self._rules, self._take)
        if better:
            self.outcome.chosen = candidate
        return better


def _key(settings: Settings) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(settings.items()))
