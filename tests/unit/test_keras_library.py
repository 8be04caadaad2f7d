"""Which Keras the Keras door takes, without any Keras: stand-ins of a line, or none."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("legacy", "stand_ins", "text"),
    [
        ("1", {"keras": "3.0.0", "tf_keras": "2.5.0"}, "needs Keras 2.13 or newer, this is 2.5.0"),
        ("true", {"keras": "3.0.0"}, "(TF_USE_LEGACY_KERAS asks for tf_keras): pip install tf_keras"),
        ("0", {"keras": "2.6.0", "tf_keras": "2.20.0"}, "needs Keras 2.13 or newer, this is 2.6.0"),
    ],
)
def test_the_keras_of_tf_keras_where_tensorflow_takes_it(tmp_path, legacy, stand_ins, text):
    for name in ("keras", "tf_keras"):
        version = stand_ins.get(name)
        (tmp_path / f"{name}.py").write_text(f"__version__ = {version!r}" if version else "raise ImportError('there is none')")
    environ = {**os.environ, "TF_USE_LEGACY_KERAS": legacy}
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import hvdlite.keras.library"
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert text in done.stderr.splitlines()[-1]
