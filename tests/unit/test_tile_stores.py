"""How it is found out which stores write tiles best (csrc/collectives/tile_stores.h)."""

from support.testing import native

NEAR = 0.2, 0.4  # nanoseconds a byte, with ordinary and with streaming stores
FAR = 1.6, 0.3
GAP = 256  # tiles between trials at least
MOST = 4096


def try_stores(*phases: tuple[int, tuple[float, float]], kinds: list[int] | None = None) -> list[bool]:
    """Phases: so many tiles with these costs."""
    ordinary = [costs[0] for tiles, costs in phases for _ in range(tiles)]
    streaming = [costs[1] for tiles, costs in phases for _ in range(tiles)]
    return native.try_stores(ordinary, streaming, kinds or [1] * len(ordinary))


def test_each_place_gets_its_stores_after_the_first_trial():
    near, far = try_stores((400, NEAR)), try_stores((400, FAR))
    assert near[:17] == far[:17] == [False] * 17, "ordinary ones until some were streamed"
    assert all(near[17:23]), "the trial"
    assert not any(near[23:250])
    assert all(far[23:250])


def test_a_difference_too_small_to_matter_changes_nothing():
    assert not any(try_stores((250, (0.30, 0.28)))[23:])
    assert all(try_stores((50, FAR), (2000, (0.30, 0.28)))[400:500])


def test_trials_become_rare_where_they_change_nothing():
    used = try_stores((40_000, NEAR))
    assert 6 * 5 < sum(used) < 6 * 20
    assert sum(used[20_000:]) <= 6 * (20_000 // MOST + 1)


def test_ranks_that_were_moved_apart_notice_at_once():
    """Ordinary stores suddenly take eight times as long: the next trial, thousands of tiles away, is brought forward."""
    used = try_stores((20_000, NEAR), (3000, FAR))
    assert used.index(True, 20_000) < 20_000 + 20
    assert sum(used[20_020:]) > 0.95 * 2980, "but for further trials"
    # Those that were moved together cannot notice: streaming costs them the same. They wait for the next trial.
    used = try_stores((20_000, FAR), (6000, (0.1, 0.3)))
    assert sum(used[20_040 + MOST :]) <= 6 * 3


def test_one_slow_tile_decides_nothing():
    """An interruption in the middle of a trial, in tiles of either way."""
    for slow in range(11, 23):
        used = try_stores((slow, NEAR), (1, (900.0, 900.0)), (226, NEAR))
        assert not any(used[24:]), slow
        used = try_stores((slow, FAR), (1, (900.0, 900.0)), (226, FAR))
        assert all(used[24:]), slow


def test_a_trial_that_met_tiles_of_two_kinds_is_repeated():
    """Ordinary ones of an allreduce beside streamed ones of an allgather compare nothing."""
    kinds = [1] * 17 + [2] * 1000
    used = try_stores((1017, FAR), kinds=kinds)
    assert not any(used[23 : GAP - 10]), "the first trial was of no use"
    assert all(used[2 * GAP : 2 * GAP + 20]), "the next was"
