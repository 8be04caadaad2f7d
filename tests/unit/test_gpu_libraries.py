"""Where NVIDIA's libraries are looked for, and what cuda_built and nccl_built make of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import fake_gpu
from support.fake_gpu import fake_gpus

import hvdlite
from hvdlite import _engine, gpu
from hvdlite import config as knobs

__all__ = ["fake_gpus"]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Nothing of this machine: an empty environment's folders, and no toolkit."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(knobs, "cuda_toolkits", lambda: (str(tmp_path / "cuda"),))
    return tmp_path


def library(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return str(path)


def test_without_wheels_the_process_and_the_system_are_asked(places):
    assert gpu.nccl_libraries() == ["+libnccl.so.2", "libnccl.so.2"]
    names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"]
    assert gpu.nvrtc_libraries() == [*(f"+{name}" for name in names), *names]


def test_wheels_of_both_layouts_are_found_newest_first(places):
    site = places / "site-packages" / "nvidia"
    nccl = library(site / "nccl" / "lib" / "libnccl.so.2")
    old = library(site / "cuda_nvrtc" / "lib" / "libnvrtc.so.12")
    library(site / "cuda_nvrtc" / "lib" / "libnvrtc-builtins.so.12.8")
    new = library(site / "cu13" / "lib" / "libnvrtc.so.13")
    assert gpu.nccl_libraries() == ["+libnccl.so.2", nccl, "libnccl.so.2"]
    assert gpu.nvrtc_libraries()[3:5] == [new, old]


def test_conda_and_toolkit_come_before_the_system(places):
    conda = library(places / "prefix" / "lib" / "libnccl.so.2")
    toolkit = library(places / "cuda" / "lib64" / "libnvrtc.so.12")
    assert gpu.nccl_libraries() == ["+libnccl.so.2", conda, "libnccl.so.2"]
    assert gpu.nvrtc_libraries()[3] == toolkit


def test_a_path_with_a_colon_is_left_out(places, monkeypatch):
    odd = places / "a:b"
    library(odd / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    monkeypatch.setattr(sys, "path", [str(odd)])
    assert gpu.nccl_libraries() == ["+libnccl.so.2", "libnccl.so.2"]


def test_what_the_user_sets_stays():
    config = knobs.from_environment({"HVDLITE_NCCL_LIBRARY": "/a/libnccl.so:+b", "HVDLITE_KERNEL_CACHE": "/k"})
    resolved = gpu.resolve(config)
    assert resolved.nccl_library == "/a/libnccl.so:+b"
    assert resolved.kernel_cache == "/k"
    assert resolved.nvrtc_library.startswith("+libnvrtc.so.13:")
    assert resolved.cuda_library == "libcuda.so.1"


def test_the_kernel_cache_is_in_the_users_cache_folder(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/x/cache")
    assert gpu.resolve(knobs.from_environment({})).kernel_cache == "/x/cache/hvdlite"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/home/u")
    assert gpu.kernel_cache() == "/home/u/.cache/hvdlite"
    monkeypatch.delenv("HOME")
    assert gpu.kernel_cache() == ""
    assert gpu.resolve(knobs.from_environment({"HVDLITE_KERNEL_CACHE": "off"})).kernel_cache == ""


def test_toolkits_are_those_of_the_environment_and_the_usual_place():
    assert knobs.cuda_toolkits({"CUDA_HOME": "/c", "CUDA_PATH": "/c"}) == ("/c", "/usr/local/cuda")
    assert knobs.cuda_toolkits({}) == ("/usr/local/cuda",)


def test_without_a_driver_there_is_no_gpu_support(monkeypatch):
    monkeypatch.setenv("HVDLITE_CUDA_LIBRARY", "/no/such/libcuda.so.1")
    assert hvdlite.cuda_built() is False
    assert hvdlite.nccl_built() == 0


def test_a_bad_knob_is_an_error(monkeypatch):
    monkeypatch.setenv("HVDLITE_GPU_ROUTE", "road")
    with pytest.raises(hvdlite.InvalidArgumentError, match="HVDLITE_GPU_ROUTE"):
        hvdlite.cuda_built()


ASK = "import hvdlite; print(hvdlite.cuda_built(), hvdlite.nccl_built(), hvdlite.rocm_built())"


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"gpus": 3}, "True 22703 False"),
        ({"gpus": 1, "nccl": 21805}, "True 21805 False"),
        ({"gpus": 1, "nccl": 21304}, "True 0 False"),  # too old
        ({"gpus": 0}, "False 0 False"),
        ({"gpus": 2, "driver": 10020}, "False 0 False"),  # too old
        ({"gpus": 2, "fail": "cuDeviceGetCount:1:999"}, "False 22703 False"),  # a cause that is gone the next time
    ],
)
def test_a_process_with_a_gpu_says_so_before_init(settings, answer):
    if reason := fake_gpu.missing():
        pytest.skip(reason)
    variables = {**os.environ, **fake_gpu.environment(**settings)}
    run = subprocess.run([sys.executable, "-c", ASK], env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == answer


def test_the_versions_are_the_librarys_own(fake_gpus):
    fake_gpus.set(gpus=3, driver=12080, nccl=21805)
    paths = fake_gpu.libraries()
    assert _engine.cuda_version(f"/no/such/libcuda.so.1:{paths['cuda']}") == (12080, 3)
    assert _engine.nccl_version(paths["nccl"]) == 21805
    with pytest.raises(hvdlite.UnsupportedError, match="NCCL cannot be loaded; HVDLITE_NCCL_LIBRARY says where to look"):
        _engine.nccl_version("+libnccl.so.77")
