"""The search for better knobs, on a fake machine whose costs are known: what it must find, and what it must not believe."""

import random

import pytest

from hvdlite.tuning.search import Parameter, Rules, chance, search

TILES = Parameter("tile", (1, 2, 4, 8, 16, 32))
SPINS = Parameter("spin", (-1, 0, 50), ordered=False)
DEFAULTS = {"tile": 4, "spin": -1}


class Machine:
    """Times of two cases by a cost model, with noise, drift, and a slow start after each change of settings.

    Attributes:
        samples: settings in the order in which they were measured.
    """

    def __init__(self, cost, noise=0.03, drift=0.0, slow_start=0.0, seed=0):
        self._cost, self._noise, self._drift, self._slow_start = cost, noise, drift, slow_start
        self._random = random.Random(seed)
        self._seen = {}
        self.samples = []

    def sample(self, settings):
        self.samples.append(dict(settings))
        key = str(settings)
        self._seen[key] = self._seen.get(key, 0) + 1
        common = 1 + self._drift * len(self.samples)
        if self._seen[key] <= 2:
            common *= 1 + self._slow_start
        times = [cost * common * self._random.lognormvariate(0, self._noise) for cost in self._cost(settings)]
        return times, float(len(self.samples))


def tuned(cost, parameters=(TILES, SPINS), rules=None, seconds=1e9, **machine):
    fake = Machine(cost, **machine)
    return search(parameters, DEFAULTS, rules or Rules(), fake.sample, seconds), fake


def planted(settings):
    """The best tile is 16, the best spin 50; what is best for one parameter is so whatever the other."""
    tile = {1: 1.5, 2: 1.2, 4: 1.0, 8: 0.85, 16: 0.7, 32: 0.9}[settings["tile"]]
    spin = {-1: 1.0, 0: 1.1, 50: 0.8}[settings["spin"]]
    return [tile * spin, 3 * tile * spin]


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_optimum_is_found(seed):
    outcome, _ = tuned(planted, seed=seed)
    assert outcome.chosen == {"tile": 16, "spin": 50}
    assert outcome.defaults == DEFAULTS
    assert outcome.complete
    assert outcome.validation.base == DEFAULTS
    assert outcome.validation.candidate == outcome.chosen
    assert outcome.validation.gain == pytest.approx(1 - 0.7 * 0.8, abs=0.05)
    assert outcome.validation.noise < 0.05


@pytest.mark.parametrize("best", [1, 32])
def test_it_goes_below_and_above_the_default_to_the_end(best):
    outcome, _ = tuned(lambda settings: [1 + abs(TILES.values.index(settings["tile"]) - TILES.values.index(best)), 1.0])
    assert outcome.chosen["tile"] == best


def test_one_value_that_does_not_help_does_not_hide_the_next():
    outcome, _ = tuned(lambda settings: [0.6 if settings["tile"] == 16 else 1.0])
    assert outcome.chosen["tile"] == 16


def test_noise_alone_leaves_the_defaults():
    taken = 0
    for seed in range(40):
        outcome, _ = tuned(lambda _: [1.0, 2.0], noise=0.3, seed=seed)
        taken += outcome.chosen != DEFAULTS
    assert taken <= 2  # by chance, of two settings that are alike


def test_whatever_is_worse_leaves_the_defaults():
    outcome, fake = tuned(lambda settings: [1.0 if settings == DEFAULTS else 1.3])
    assert outcome.chosen == DEFAULTS
    assert outcome.validation is None
    assert not any(trial.better for trial in outcome.trials)
    # What loses is not measured to the end.
    assert all(len(trial.gains) <= Rules().affordable_losses + 1 for trial in outcome.trials)
    assert {(sample["tile"], sample["spin"]) for sample in fake.samples} >= {(8, -1), (2, -1), (4, 0), (4, 50)}


def test_a_gain_too_small_to_matter_is_not_taken():
    outcome, _ = tuned(lambda settings: [0.99 if settings["tile"] == 8 else 1.0], noise=0.0001)
    assert outcome.chosen == DEFAULTS


def test_what_makes_one_case_slower_is_not_taken():
    outcome, _ = tuned(lambda settings: [0.5, 1.2] if settings["tile"] > 4 else [1.0, 1.0])
    assert outcome.chosen == DEFAULTS
    assert any(trial.gain > 0.2 for trial in outcome.trials)  # although it was better on the whole


def test_a_machine_that_gets_slower_and_slower_does_not_matter():
    outcome, _ = tuned(planted, drift=0.01)
    assert outcome.chosen == {"tile": 16, "spin": 50}
    outcome, _ = tuned(lambda _: [1.0], drift=0.05, noise=0.001)
    assert outcome.chosen == DEFAULTS


def test_the_first_samples_of_a_setting_do_not_count():
    outcome, fake = tuned(planted, slow_start=20.0, noise=0.001)
    assert outcome.chosen == {"tile": 16, "spin": 50}
    assert all(abs(gain) < 1 for trial in outcome.trials for gain in trial.gains)
    assert fake.samples[:4] == [DEFAULTS, DEFAULTS, {**DEFAULTS, "tile": 8}, {**DEFAULTS, "tile": 8}]
    # Without warm-up the same machine shows a setting twenty times slower than it is.
    outcome, _ = tuned(planted, slow_start=20.0, noise=0.001, rules=Rules(warm_up=0))
    assert any(gain < -1 for trial in outcome.trials for gain in trial.gains)


def test_two_settings_take_turns_and_the_first_of_a_pair_changes():
    _, fake = tuned(planted)
    rounds = fake.samples[4 : 4 + 8]
    tiles = [sample["tile"] for sample in rounds]
    assert tiles == [4, 8, 8, 4, 4, 8, 8, 4]


def test_a_winner_that_is_not_confirmed_gives_way_to_the_defaults():
    fake = Machine(lambda settings: [0.5 if settings["tile"] == 8 else 1.0])

    def sample(settings):
        times, passed = fake.sample(settings)
        late = len(fake.samples) > 28  # the first comparison is over: what looked better was luck
        return ([1.0 for _ in times] if late else times), passed

    outcome = search([TILES], DEFAULTS, Rules(), sample, 1e9)
    assert outcome.trials[0].better
    assert outcome.validation is not None
    assert not outcome.validation.better
    assert outcome.chosen == {"tile": 4}


def test_the_end_of_the_time_still_leaves_room_to_confirm():
    outcome, fake = tuned(planted, seconds=80)
    assert not outcome.complete
    assert outcome.chosen["tile"] != 4  # what was found until then
    assert outcome.validation.better
    assert len(fake.samples) < 80 * 1.5


def test_a_winner_that_there_is_no_time_to_confirm_is_not_taken():
    outcome, fake = tuned(planted, seconds=40)
    assert any(trial.better for trial in outcome.trials)
    assert outcome.chosen == DEFAULTS
    assert not outcome.complete
    assert len(fake.samples) <= 40 * 1.5 + 1


def test_a_winner_is_confirmed_although_the_time_for_the_search_ends_meanwhile():
    _, whole = tuned(planted)
    confirming = len(tuned(planted)[0].validation.gains) * 2 + 2 * Rules().warm_up
    outcome, _ = tuned(planted, seconds=(len(whole.samples) - confirming / 2) / 0.75)
    assert outcome.chosen == {"tile": 16, "spin": 50}
    assert outcome.complete


def test_no_setting_is_compared_twice():
    outcome, _ = tuned(planted)
    tried = [str(sorted(trial.candidate.items())) for trial in outcome.trials]
    assert len(tried) == len(set(tried))


def test_the_sign_test():
    assert chance(0, 5) == 1.0
    assert chance(5, 5) == 1 / 32
    assert chance(10, 12) == pytest.approx(0.0193, abs=1e-4)
    assert Rules().affordable_losses == 2
    assert Rules(rounds=4).affordable_losses == -1  # too few for any verdict


def test_a_default_outside_the_values_is_refused():
    with pytest.raises(ValueError, match="the default of tile, 3, is not among its values"):
        search([TILES], {"tile": 3}, Rules(), lambda _: ([1.0], 0.0), 1e9)


@pytest.mark.parametrize("times", [[], [0.0, 1.0], [1.0, -1.0]])
def test_a_sample_without_times_is_refused(times):
    with pytest.raises(ValueError, match="a time above zero for each case"):
        search([TILES], DEFAULTS, Rules(), lambda _: (times, 0.0), 1e9)
