"""The table of errors, and that it is the native one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlite import errors
from hvdlite.errors import ERRORS, ErrorCode, HorovodInternalError, HvdliteError

HEADER = Path(__file__).parents[2] / "csrc" / "base" / "error.h"


def test_codes_are_those_of_the_native_header():
    listed = re.findall(r"\bk(\w+) = (\d+),", HEADER.read_text())
    native = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper(): int(number) for name, number in listed}
    assert native == {code.name: code.value for code in ErrorCode}


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.OK], ids=lambda code: code.name)
def test_each_code_has_a_class_that_knows_it(code):
    raised = ERRORS[code].python("text")
    assert isinstance(raised, HvdliteError)
    assert isinstance(raised, RuntimeError)
    assert raised.code is code
    assert "text" in str(raised)
    assert errors.error_class(code) is ERRORS[code].python


@pytest.mark.parametrize(
    ("raised", "caught_as"),
    [
        (errors.InvalidArgumentError, ValueError),
        (errors.NotInitializedError, ValueError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.MismatchError, HorovodInternalError),
        (errors.PeerLostError, HorovodInternalError),
        (errors.AbortedError, HorovodInternalError),
        (errors.OperationTimeoutError, HorovodInternalError),
    ],
)
def test_what_users_of_horovod_catch(raised, caught_as):
    with pytest.raises(caught_as):
        raise raised("text")


def test_a_user_error_is_not_retried_by_elastic_training():
    assert not issubclass(errors.InvalidArgumentError, HorovodInternalError)
    assert not issubclass(errors.UnsupportedError, HorovodInternalError)


def test_an_unknown_code_is_an_internal_error():
    assert errors.error_class(99) is errors.InternalError
    assert errors.error_class(0) is errors.InternalError


def test_not_initialized_keeps_the_sentence_users_grep_for():
    fragment = "Horovod has not been initialized; use hvd.init()."
    assert fragment in str(errors.NotInitializedError())
    assert str(errors.NotInitializedError(f"x {fragment}")).count(fragment) == 1


def test_install_hands_over_every_class():
    given = {}
    errors.install(given.update)
    assert given == {int(code): row.python for code, row in ERRORS.items()}


def test_a_door_without_its_framework_says_what_to_install():
    program = (
        "import importlib, sys\n"
        "for name in ('torch', 'tensorflow', 'keras', 'jax'):\n"
        "    sys.modules[name] = None\n"
        "    try:\n"
        "        importlib.import_module(f'hvdlite.{name}')\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    lines = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.splitlines()
    assert [re.sub(r"\(.*\)", "()", line) for line in lines] == [
        f"hvdlite.{door} needs {name}, which cannot be imported (): pip install {door}"
        for door, name in [("torch", "PyTorch"), ("tensorflow", "TensorFlow"), ("keras", "Keras"), ("jax", "JAX")]
    ]
