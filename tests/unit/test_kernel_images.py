"""Where the fusion kernels come from: the built-in image, NVRTC and its cache; on fake GPUs.

NVIDIA's own compilers need no GPU: where they are installed they compile the kernels here.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import fake_gpu
from support.fake_gpu import FakeGpus, fake_gpus  # noqa: F401
from support.fusion import opened
from support.limits import SANITIZED

from hvdlite import _engine, errors, gpu

errors.install(_engine.set_error_classes)

ROOT = Path(__file__).parents[2]
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
REAL_NVRTC = [path for path in gpu.nvrtc_libraries() if Path(path).is_file()]
# The address sanitizer opens libraries in NVRTC's stead, and so does not find the one that lies beside it.
needs_nvrtc = pytest.mark.skipif(
    not REAL_NVRTC or SANITIZED, reason="no NVRTC here (pip install nvidia-cuda-nvrtc), or the address sanitizer is"
)
NO_BINARY = 209


def without_built_in(gpus: FakeGpus) -> None:
    """The driver does not take the built-in image, if there is one."""
    with opened() as fusion:
        if fusion.origin.startswith("built in"):
            gpus.fail("cuModuleLoadData", 1, NO_BINARY)


# --- images -----------------------------------------------------------------------------------------------------------


def test_a_built_in_image_is_taken_where_the_driver_accepts_it(fake_gpus):  # noqa: F811
    fake_gpus.set(fat_binaries=1)
    with opened() as fusion:
        if NVCC:
            assert fusion.origin == "built in (for sm_90)"
        if fusion.origin.startswith("built in"):
            assert fake_gpus.calls("nvrtcCompileProgram") == 0


def test_nvrtc_compiles_for_this_gpu_or_for_the_newest_that_it_knows(fake_gpus):  # noqa: F811
    for capability, architecture in ((90, "sm_90"), (75, "sm_75"), (103, "compute_100"), (110, "compute_100")):
        fake_gpus.set(capability=capability)
        with opened() as fusion:
            assert fusion.origin == f"compiled by NVRTC 13.0 ({architecture})"


def test_without_any_way_the_error_says_what_was_tried(fake_gpus, tmp_path):  # noqa: F811
    nowhere = str(tmp_path / "libnvrtc.so")
    with pytest.raises(errors.UnsupportedError) as caught, opened(nvrtc_library=nowhere):
        pass
    text = str(caught.value)
    assert re.search(
        r"there are no fusion kernels for GPU 0 \(.*, sm_90\)\. Built-in image: (this build has none|cuModule)", text
    )
    assert nowhere in text
    assert "pip install nvidia-cuda-nvrtc" in text
    assert "HVDLITE_NVRTC_LIBRARY" in text

    fake_gpus.fail("nvrtcCompileProgram", 1, 6)
    with (
        pytest.raises(errors.UnsupportedError, match=r"Compiled now: NVRTC 13\.0 \(.*libfakenvrtc\.so\) for sm_90: "),
        opened(),
    ):
        pass
    fake_gpus.fail("nvrtcCompileProgram", 0, 0)
    loads = 2 if NVCC else 1
    fake_gpus.fail("cuModuleLoadData", loads, 222)
    wanted = r"the driver \(for CUDA 13\.0\) does not take what NVRTC 13\.0 .* made for sm_90: .*"
    with pytest.raises(errors.UnsupportedError, match=wanted), opened():
        pass


def nvrtc_of(folder: Path, major: int) -> str:
    """A fake NVRTC of another CUDA."""
    path = folder / f"libnvrtc.so.{major}"
    if not path.exists():  # or it may be loaded
        shutil.copy(fake_gpu.libraries()["nvrtc"], path)
    return str(path)


def test_a_compiler_of_a_later_cuda_than_the_drivers_comes_last(fake_gpus, tmp_path):  # noqa: F811
    fake_gpus.set(driver=12040)
    later, right, earlier = (nvrtc_of(tmp_path, major) for major in (13, 12, 11))
    with opened(nvrtc_library=f"{later}:{right}:{earlier}") as fusion:
        assert fusion.origin == "compiled by NVRTC 12.0 (sm_90)"
    with opened(nvrtc_library=f"{later}:{earlier}:{right}") as fusion:
        assert fusion.origin == "compiled by NVRTC 11.0 (sm_90)"


def test_where_one_compiler_is_of_no_use_the_next_is_tried(fake_gpus, tmp_path):  # noqa: F811
    """It makes what the driver does not take, it fails, or it is another library."""
    fake_gpus.set(driver=12040)
    right = nvrtc_of(tmp_path, 12)
    another = fake_gpu.libraries()["nccl"]
    fake_gpus.fail("cuModuleLoadData", 2 if NVCC else 1, 222)  # behind the built-in image
    with opened(nvrtc_library=f"{another}:{nvrtc_of(tmp_path, 11)}:{right}") as fusion:
        assert fusion.origin == "compiled by NVRTC 12.0 (sm_90)"
    fake_gpus.fail("nvrtcCompileProgram", 1, 6)
    with opened(nvrtc_library=f"{nvrtc_of(tmp_path, 11)}:{right}") as fusion:
        assert fusion.origin == "compiled by NVRTC 12.0 (sm_90)"
    later = nvrtc_of(tmp_path, 13)
    with pytest.raises(errors.UnsupportedError) as caught, opened(nvrtc_library=f"{later}:{another}"):
        pass
    text = str(caught.value)
    assert "the driver (for CUDA 12.4) does not take what NVRTC 13.0" in text
    assert "libfakenccl.so) has no nvrtc" in text


# --- the cache --------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from hvdlite import config
from hvdlite.bench.fusion import Fusion
print(Fusion(config.from_environment()).origin)
"""


def origin_elsewhere(folder: Path) -> str:
    """Which way another process gets its kernels."""
    sanitizer = {name: os.environ[name] for name in ("LD_PRELOAD", "ASAN_OPTIONS") if name in os.environ}
    variables = {**fake_gpu.environment(), **sanitizer, "HVDLITE_KERNEL_CACHE": str(folder), "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", PROGRAM]
    return subprocess.run(run, env=variables, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_only_the_first_process_compiles(tmp_path):
    if fake_gpu.missing():
        pytest.skip(str(fake_gpu.missing()))
    folder = tmp_path / "of" / "kernels"
    assert origin_elsewhere(folder) == "compiled by NVRTC 13.0 (sm_90)"
    with ThreadPoolExecutor(3) as pool:
        origins = list(pool.map(origin_elsewhere, [folder] * 3))
    assert origins == ["from the cache (NVRTC 13.0, sm_90)"] * 3
    (file,) = folder.iterdir()
    assert re.fullmatch(r"fusion-sm_90-[0-9a-f]{16}\.kernels", file.name)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_another_compiler_or_gpu_needs_is_kept_beside(fake_gpus, tmp_path):  # noqa: F811
    for settings in ({"capability": 80}, {"capability": 90}, {"driver": 12080}):
        fake_gpus.set(**settings)
        for wanted in ("compiled by NVRTC", "from the cache"):
            with opened(kernel_cache=str(tmp_path)) as fusion:
                assert fusion.origin.startswith(wanted)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content[:9] + bytes([content[9] ^ 1]) + content[10:],
        lambda content: b"",
        lambda content: content + b"more",
    ],
    ids=["short", "changed", "another key", "empty", "long"],
)
def test_a_damaged_file_is_compiled_again(fake_gpus, tmp_path, capfd, damage):  # noqa: F811
    with opened(kernel_cache=str(tmp_path)):
        (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(damage(content))
    with opened(kernel_cache=str(tmp_path)) as fusion:
        assert fusion.origin.startswith("compiled by NVRTC")
    assert capfd.readouterr().err.count(f"compiled again: {file} is damaged") == 1
    assert file.read_bytes() == content
    with opened(kernel_cache=str(tmp_path)) as fusion:
        assert fusion.origin.startswith("from the cache")


def test_a_kept_image_that_the_driver_refuses_is_compiled_again(fake_gpus, tmp_path):  # noqa: F811
    for wanted in ("compiled by NVRTC", "compiled by NVRTC", "from the cache"):
        if wanted == "compiled by NVRTC" and list(tmp_path.iterdir()):
            fake_gpus.fail("cuModuleLoadData", 2 if NVCC else 1, NO_BINARY)
        with opened(kernel_cache=str(tmp_path)) as fusion:
            assert fusion.origin.startswith(wanted)


def test_a_folder_that_cannot_be_used_costs_one_line(fake_gpus, tmp_path, capfd):  # noqa: F811
    (tmp_path / "file").write_text("")
    everybodys = tmp_path / "everybodys"
    everybodys.mkdir()
    everybodys.chmod(0o777)
    for folder, why in ((tmp_path / "file" / "sub", "Not a directory"), (everybodys, "may be written by, other users")):
        with opened(kernel_cache=str(folder)) as fusion:
            assert fusion.origin.startswith("compiled by NVRTC")
        lines = capfd.readouterr().err.splitlines()
        assert len([line for line in lines if "compiled kernels are not kept" in line and why in line]) == len(lines) == 1
    assert not list(everybodys.iterdir())


# --- NVIDIA's compilers -----------------------------------------------------------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize("capability", [pytest.param(75, marks=pytest.mark.slow), 90])
def test_the_real_nvrtc_makes_machine_code(fake_gpus, tmp_path, capability):  # noqa: F811
    fake_gpus.set(fat_binaries=1, capability=capability)
    without_built_in(fake_gpus)
    with opened(kernel_cache=str(tmp_path), nvrtc_library=REAL_NVRTC[0]) as fusion:
        assert re.fullmatch(rf"compiled by NVRTC \d+\.\d+ \(sm_{capability}\)", fusion.origin)
    (file,) = tmp_path.iterdir()
    image = file.read_bytes()[32:]
    assert image.startswith(b"\x7fELF")
    assert b"hvdlite_float32_bfloat16" in image


@needs_nvrtc
def test_the_real_nvrtc_makes_ptx_for_a_gpu_that_it_does_not_know(fake_gpus):  # noqa: F811
    """Which the fake driver does not take."""
    fake_gpus.set(capability=999)
    with pytest.raises(errors.UnsupportedError, match=r"does not take what NVRTC .* made for compute_\d+: "):
        opened(nvrtc_library=REAL_NVRTC[0]).__enter__()


@pytest.mark.skipif(not NVCC, reason="no nvcc here (it is in NVIDIA's CUDA toolkit)")
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_120"])
def test_nvcc_keeps_the_kernels_in_registers(tmp_path, architecture):
    known = subprocess.run([NVCC, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout.split()
    if architecture not in known:
        pytest.skip(f"this nvcc does not know {architecture}")
    source = ["-I", str(ROOT / "csrc"), str(ROOT / "csrc" / "cuda" / "fusion_kernels.cu")]
    options = ["-std=c++17", "--fmad=false", f"-arch={architecture}", "-Xptxas", "-v", "--cubin", "-Werror", "all-warnings"]
    done = subprocess.run(
        [NVCC, *options, *source, "-o", str(tmp_path / "out")],
        env={**os.environ, "LD_PRELOAD": ""},  # a sanitizer's library
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", done.stderr)]
    assert len(registers) == 18
    assert max(registers) <= 64  # four blocks of 256 threads on a multiprocessor
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", done.stderr)
    assert spills
    assert set(spills) == {("0", "0")}
