"""Plain ``pytest`` runs everything: files of tests/parallel and tests/adapters are started under mpirun from here."""

import gc
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from support import slices, warm
from support.gpu import ROUTES
from support.in_step import child_plugin
from support.parallel import ParallelFile, is_parallel, share_jobs
from support.seeds import say_seed
from support.workers import Shared, choose_workers, in_order_of_the_queue


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ranks",
        type=lambda text: tuple(int(part) for part in text.split(",")),
        default=(),
        help="run parallel tests with these numbers of ranks only, such as 2 or 2,3",
    )
    parser.addoption(
        "--routes",
        type=lambda text: tuple(text.split(",")),
        default=ROUTES,
        help="run tests of GPU tensors by these routes only: nccl, staged",
    )
    slices.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    choose_workers(config)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as jobs in the background begin; some tests send it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    plugin = child_plugin(config)
    if plugin is not None:
        config.pluginmanager.register(plugin, "hvdlite-in-step")
        return
    slices.configure(config)
    warm.open_nursery(config)
    if getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Shared(config), "hvdlite-shared")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if parent.config.pluginmanager.has_plugin("hvdlite-in-step") or not is_parallel(module_path):
        return None
    return ParallelFile.from_parent(parent, path=module_path)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slices.select(config, items)


@pytest.hookimpl(tryfirst=True)  # before a worker of pytest-xdist tells the order: tests are called by their number in it
def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.pluginmanager.has_plugin("hvdlite-in-step"):
        session.items[:] = in_order_of_the_queue(session.items)
        share_jobs(session)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test says with which seed."""
    report = yield
    if report.failed:
        say_seed(item, call, report)
    return report


@pytest.fixture(scope="module", autouse=True)
def young_objects() -> None:
    """Tests that collect garbage look through their own file's objects: all those of the frameworks take a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def hvd():
    """The initialised package, in tests that run under mpirun. After each file it is shut down (support/in_step.py)."""
    import hvdlite

    hvdlite.init()
    return hvdlite


@pytest.fixture
def ended(hvd):
    """hvdlite shut down, before the test and after it."""
    hvd.shutdown()
    yield hvd
    hvd.shutdown()


@pytest.fixture(autouse=True)
def initialised_again(request: pytest.FixtureRequest) -> None:
    """After tests that want it `ended` hvdlite is initialised as usual again, where a test wants that."""
    if "hvd" in request.fixturenames and "ended" not in request.fixturenames:
        hvd = request.getfixturevalue("hvd")
        if not hvd.is_initialized():
            hvd.init()
