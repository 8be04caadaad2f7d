"""An optimizer outlives hvdlite's shutdown and works on after the next init."""

from reference import Pair, adam, mse


def test_shutdown_and_init(hvd):
    pair = Pair(hvd, adam)
    for step in range(6):
        if step in (2, 4):
            hvd.shutdown()
            hvd.init()
        part, whole = pair.parts(step)
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()
