"""``python -m hvdlite.horovod``: a program runs as it does under python alone."""

import signal
import subprocess
import sys
import textwrap
import zipfile

import pytest
from support.job import job_environment

SHIM = ["-m", "hvdlite.horovod"]

# What a program can see of how it was started.
LOOK = """
import sys
import __main__
assert vars(__main__) is globals()
print(__name__, __file__, __package__, __spec__ and (__spec__.name, __spec__.origin), type(__loader__), __cached__, __doc__)
print(sys.argv, sys.path, __builtins__)
"""


def python(arguments, folder, **kwargs):
    """Runs Python in a folder. No bytecode is written: the second run would find what the first has left."""
    return subprocess.run(
        [sys.executable, "-B", *arguments],
        cwd=folder,
        env=job_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        **kwargs,
    )


def both(arguments, folder):
    """The same command line with and without the shim: exit status, output, and errors."""
    alone, shimmed = python(arguments, folder), python([*SHIM, *arguments], folder)
    return [(done.returncode, done.stdout, done.stderr) for done in (alone, shimmed)]


@pytest.fixture
def folder(tmp_path):
    """Programs in several shapes."""
    package = tmp_path / "package"
    package.mkdir()
    (tmp_path / "script.py").write_text(LOOK)
    (tmp_path / "link.py").symlink_to(package / "module.py")
    for name in ("__init__.py", "__main__.py", "module.py"):
        (package / name).write_text("" if name == "__init__.py" else LOOK)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", LOOK)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["script.py"],
        ["script.py", "-m", "--help", "a b"],
        ["./package/module.py", "x"],
        ["link.py"],
        ["-m", "script", "-m", "x"],
        ["-m", "package.module"],
        ["-m", "package", "x"],
        ["package"],
        ["archive.zip", "x"],
    ],
    ids=" ".join,
)
def test_a_program_sees_what_it_would_see_under_python(folder, words):
    alone, shimmed = both(words, folder)
    assert alone[0] == 0
    assert shimmed == alone


@pytest.mark.skipif(sys.version_info < (3, 11), reason="-P came with Python 3.11")
def test_safe_path(folder):
    alone, shimmed = python(["-P", "script.py"], folder), python(["-P", *SHIM, "script.py"], folder)
    assert shimmed.stdout == alone.stdout


ENDINGS = {
    "returns": "",
    "exits with a number": "import sys; sys.exit(3)",
    "exits with a text": "raise SystemExit('no data')",
    "raises": "def f():\n    raise ValueError('bad')\nf()",
    "raises from": "try:\n    1 / 0\nexcept ArithmeticError as error:\n    raise KeyError('k') from error",
    "has a syntax error": "def f(:\n    pass",
    "imports a module with a syntax error": "import broken",
    "is interrupted": "raise KeyboardInterrupt",
    "warns": "import warnings\nwarnings.warn('old')",
    "has an excepthook": "import sys\nsys.excepthook = lambda kind, error, trace: print(kind, error)\nraise ValueError('bad')",
    "has work left at exit": "import atexit\nclass A: pass\natexit.register(lambda: print(A, __import__('__main__').A))",
    "has a thread": "import threading\nthreading.Thread(target=lambda: [1, 2][3], name='t').start()",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_as_it_would_under_python(tmp_path, ending):
    (tmp_path / "program.py").write_text(ENDINGS[ending])
    (tmp_path / "broken.py").write_text("x = = 1")
    alone, shimmed = both(["program.py"], tmp_path)
    assert shimmed == alone
    assert (alone[0] == -signal.SIGINT) == (ending == "is interrupted")


@pytest.mark.parametrize(
    ("words", "status"),
    [(["absent.py"], 2), (["-m", "absent"], 1), (["-m", "absent.too"], 1), (["-m", "empty"], 1), (["empty"], 1)],
)
def test_a_program_that_is_not_there(tmp_path, words, status):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "__init__.py").touch()
    alone, shimmed = both(words, tmp_path)
    assert (shimmed[0], shimmed[1]) == (alone[0], alone[1]) == (status, "")
    assert "absent" in shimmed[2] or "empty" in shimmed[2]


def test_usage(tmp_path):
    asked = python([*SHIM, "--help"], tmp_path)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "mpirun -n 2 python -m hvdlite.horovod script.py" in asked.stdout
    for words in ([], ["-m"], ["--verbose", "script.py"]):
        done = python([*SHIM, *words], tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", asked.stdout)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_that_the_program_starts_know_horovod_too(tmp_path, method):
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing
            import sys

            import horovod.common.util

            class Sample:
                pass

            def parts(n):
                import horovod.common.process_sets
                return horovod.common.util.split_list(range(n), 2), Sample()

            if __name__ == "__main__":
                with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
                    found, sample = pool.apply(parts, (3,))
                    print(found, type(sample) is Sample)
            """
        )
    )
    done = python([*SHIM, "program.py", method], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[range(0, 2), range(2, 3)] True\n", "")
