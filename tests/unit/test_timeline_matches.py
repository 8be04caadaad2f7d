"""Which operations of two ranks the timeline's report takes for the same collective. Traces are made up here."""

import pytest

from hvdlite.timeline import files
from hvdlite.timeline.analysis import analyse

STEP = 10_000.0  # microseconds


def trace_of(rank, times):
    """A trace with one tensor, from the times at which this rank asked for it and at which its data had moved."""
    operations = {
        number: files.TracedOperation("gradient", "ALLREDUCE", begin, (end, end), num_bytes=4, fused_op=0, process_set=0)
        for number, (begin, end) in enumerate(times, 1)
    }
    return files.Trace(rank, 2, "a", "a", 0.0, [], operations)


@pytest.mark.parametrize("late", [(4,), tuple(range(8))])
def test_a_rank_that_wakes_up_late_ends_an_operation_when_another_rank_ends_the_next_one(late):
    """Both ranks take 10 us for a step, but rank 1 is late in some steps, and rank 0 then sleeps and is slow to wake up."""
    ours, theirs, ready = [], [], [0.0, 0.0]
    for step in range(8):
        asked = (ready[0], ready[0] + 500_000.0 if step in late else ready[1])
        met = max(asked)
        ready = [met + 4_000.0 if step in late else met + 1.0, met + 1.0]
        ours.append((asked[0], ready[0]))
        theirs.append((asked[1], ready[1]))
        ready = [time + 10.0 for time in ready]
    pairs = list(files.matches(trace_of(0, ours), trace_of(1, theirs), 0.0))
    assert [(one.submitted, other.submitted) for one, other in pairs] == [
        (one, other) for (one, _), (other, _) in zip(ours, theirs, strict=True)
    ]
    assert analyse([trace_of(0, ours), trace_of(1, theirs)]).late[1].lateness > 400_000.0 * len(late)


def test_ranks_that_take_turns_on_one_processor():
    """Of two ranks on one processor, in turn one ends an operation at once, and waits in the next one until the other has seen
    that. The times are those of a job of which rank 1 was late in its fifth operation.
    """
    ours = [(64, 83), (90, 4370), (4381, 4383), (4386, 9642), (10025, 30141), (30177, 30184), (30190, 33511), (33531, 33535)]
    theirs = [(0, 4331), (4355, 4359), (4363, 9530), (9545, 9548)]
    theirs += [(29590, 29606), (29614, 31873), (31892, 31895), (31905, 33814)]
    pairs = files.matches(trace_of(0, ours), trace_of(1, theirs), 0.0)
    assert [(one.submitted, other.submitted) for one, other in pairs] == [
        (one, other) for (one, _), (other, _) in zip(ours, theirs, strict=True)
    ]
    assert analyse([trace_of(0, ours), trace_of(1, theirs)]).late[1].lateness > 19_000


@pytest.mark.parametrize(
    ("ours", "theirs"), [(range(100), range(40, 100)), (range(70, 100), range(60)), (range(3, 9), range(5))]
)
def test_traces_that_lack_operations_are_matched_by_time(ours, theirs):
    def times(steps):
        return [(STEP * step, STEP * step + 100.0) for step in steps]

    pairs = files.matches(trace_of(0, times(ours)), trace_of(1, times(theirs)), 0.0)
    assert [one.submitted for one, other in pairs if one.submitted == other.submitted] == [
        STEP * step for step in ours if step in theirs
    ]


def test_two_process_sets_may_use_one_name():
    """Ranks of different sets have nothing in common, although their tensors have the same name at the same time."""

    def trace(rank, process_set):
        made = trace_of(rank, [(STEP * step, STEP * step + 100.0 * (1 + rank)) for step in range(4)])
        for operation in made.operations.values():
            operation.process_set = process_set
        return made

    traces = [trace(0, 1), trace(1, 1), trace(2, 2)]
    assert len(list(files.matches(*traces[:2], 0.0))) == 4
    assert not list(files.matches(traces[0], traces[2], 0.0))
    assert set(analyse(traces).late) == {1}


def test_only_ranks_of_its_process_set_wait_for_a_late_rank():
    """Rank 1 is 5 ms late in each step, and rank 0 waits for it. Rank 2 of another set waits at another time."""
    asked, ended = (0.0, 5_000.0, 8_000.0), (5_001.0, 5_001.0, 9_000.0)
    traces = []
    for rank, process_set in enumerate((1, 1, 2)):
        traces.append(trace_of(rank, [(STEP * step + asked[rank], STEP * step + ended[rank]) for step in range(4)]))
        for operation in traces[-1].operations.values():
            operation.process_set = process_set
            traces[-1].waits.append((operation.submitted, operation.end))
    assert {rank: late.lost for rank, late in analyse(traces).late.items()} == {1: [5_000.0] * 3}
