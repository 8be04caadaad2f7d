"""An optimizer outlives hvdlite's shutdown and works on after the next init."""

import pytest
from reference import Pair, adam, mse

FRESH = True


def test_shutdown_and_init(hvd):
    pair = Pair(hvd, adam)
    for step in range(6):
        part, whole = pair.parts(step)
        if step in (2, 4):
            hvd.shutdown()
            with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd\.init\(\)") as caught:
                mse(pair.model, *part).backward()
            assert isinstance(caught.value, RuntimeError)  # which is what Horovod raises here
            hvd.init()
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()
