"""What csrc/device declares of CUDA and NCCL is what their headers say; nothing of either is needed to build."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "tests" / "native"
SITE = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
WHEELS = {"cuda.h": "nvidia-cuda-runtime-cu12", "nccl.h": "nvidia-nccl-cu12"}


def header_folder(name: str) -> Path:
    """A folder that has this header: a toolkit's, or one of NVIDIA's wheels'."""
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda", "/usr"]
    places = [Path(toolkit) / "include" for toolkit in toolkits if toolkit]
    places += sorted(SITE.glob("*/include"))
    found = next((place for place in places if (place / name).exists()), None)
    if found is None:
        pytest.skip(f"no {name} in CUDA_HOME, /usr/local/cuda or NVIDIA's wheels (pip install {WHEELS[name]})")
    return found


def compile_check(program: str, *folders: Path) -> str:
    """What the compiler says of a program that only has to compile; empty if it does."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler here (Debian: apt install g++)")
    system = [option for folder in folders for option in ("-isystem", str(folder))]
    command = [*compiler.split(), "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'csrc'}", f"-I{NATIVE}", *system]
    run = subprocess.run([*command, "-x", "c++", "-"], input=program, capture_output=True, text=True, timeout=120, check=False)
    return run.stderr if run.returncode else ""


def program(name: str) -> str:
    return (NATIVE / name).read_text()


def test_cuda_is_as_its_header_says():
    folder = header_folder("cuda.h")
    assert compile_check(program("check_cuda_abi.cc"), folder) == ""
    wrong = re.sub(r"kNotReady == CUDA_ERROR_NOT_READY", "kNotReady == CUDA_ERROR_NO_DEVICE", program("check_cuda_abi.cc"))
    assert "static assertion failed" in compile_check(wrong, folder)


def test_nccl_is_as_its_header_says(tmp_path):
    folder = header_folder("nccl.h")
    # All that it takes of CUDA is a stream; the wheel that has it brings no CUDA header.
    (tmp_path / "cuda_runtime.h").write_text("#pragma once\n#include <stddef.h>\ntypedef struct CUstream_st* cudaStream_t;\n")
    (tmp_path / "cuda_fp16.h").write_text("#pragma once\n")
    assert compile_check(program("check_nccl_abi.cc"), tmp_path, folder) == ""


def test_all_constants_are_compared():
    for header, check in (("cuda_abi.h", "check_cuda_abi.cc"), ("nccl_abi.h", "check_nccl_abi.cc")):
        declared = set(re.findall(r"\b(k[A-Z]\w+)\s*=", (ROOT / "csrc" / "device" / header).read_text()))
        assert declared - {"kOldestVersion"} <= set(re.findall(r"\bours::(k[A-Z]\w+)", program(check)))
