"""The initialised package, with process sets that come and go."""

import pytest


@pytest.fixture(scope="module")
def hvd():
    import hvdlite

    hvdlite.init(process_sets="dynamic")
    return hvdlite
