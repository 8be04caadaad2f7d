"""The initialised package, with process sets that come and go."""

import pytest


@pytest.fixture(scope="session")
def hvd():
    import hvdlite

    hvdlite.init(process_sets="dynamic")
    return hvdlite
