"""A failing test says with which seed it failed, and HVDTEST_SEED runs it with that one alone: parameters, loops, ranks."""

import pytest
from support.seeds import VARIABLE, seeds
from support.small_suite import run, run_files

__all__ = ["run", "run_files"]

PARAMETER = """
    import pytest
    from support.seeds import seeds

    @pytest.mark.parametrize("seed", seeds(range(4)))
    def test_it(seed):
        assert seed not in (2, 70)
"""
LOOP = """
    from concurrent.futures import ThreadPoolExecutor
    from support.seeds import seeds

    def check(seed):
        assert seed not in (2, 70)

    def test_it():
        def body():
            for seed in seeds(range(4)):
                check(seed=seed)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(body).result()
"""
NONE = "def test_it():\n    assert False, 'without a draw'\n"


@pytest.mark.parametrize(("chosen", "failing"), [(None, 2), ("70", 70), ("3", None)], ids=str)
def test_a_failure_names_its_seed(run_files, monkeypatch, chosen, failing):
    if chosen is not None:
        monkeypatch.setenv(VARIABLE, chosen)
    code, said = run_files({}, unit={"parameter": PARAMETER, "loop": LOOP})
    assert code == int(failing is not None), said
    named = [line for line in said.splitlines() if VARIABLE in line]
    assert named == ([] if failing is None else 2 * [f"seed={failing}: with {VARIABLE}={failing} the test has only this seed"])


def test_a_failure_without_a_seed_names_none(run_files):
    code, said = run_files({}, unit={"it": NONE})
    assert code == 1
    assert "without a draw" in said
    assert "seed" not in said


def test_ranks_name_the_seed_and_take_the_chosen_one(run, monkeypatch):
    text = PARAMETER.replace("\n    ", "\n")
    code, said = run(text)
    assert code == 1
    assert f"seed=2: with {VARIABLE}=2 " in said
    monkeypatch.setenv(VARIABLE, "3")
    code, said = run(text)
    assert code == 0, said


def test_the_usual_seeds_are_fixed(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert seeds(range(3)) == [0, 1, 2]
    monkeypatch.setenv(VARIABLE, "17")
    assert seeds(range(3)) == [17]
