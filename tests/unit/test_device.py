"""The device layer (csrc/device) on the fake driver and the fake NCCL: each test of tests/native/device_tests."""

import re
import subprocess
from pathlib import Path

import pytest
from support import fake_gpu

SOURCES = sorted((Path(__file__).parents[1] / "native" / "device_tests").glob("*.cc"))
NAMES = [name for source in SOURCES for name in re.findall(r"^TEST\((\w+)\)", source.read_text(), re.MULTILINE)]


def run(name: str, **settings: object) -> None:
    folder = fake_gpu.folder()
    if folder is None:
        pytest.skip(str(fake_gpu.missing()))
    paths = fake_gpu.libraries()
    variables = fake_gpu.environment(**settings)
    command = [str(folder / "device_tests"), name, paths["cuda"], paths["nccl"]]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_device_layer(name):
    run(name)


@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize(
    "name",
    [
        "memory_is_handed_on_in_the_order_of_streams",
        "events_order_streams_without_the_host",
        "a_communicator_is_made_and_used_without_blocking",
    ],
)
def test_order_holds_whenever_the_gpu_gets_to_it(name, seed):
    run(name, seed=seed, delay=2000, delay_percent=60)
