"""`hvd.stats` knows the steps of wrapped optimizers."""

from foreign_optimizers import shrinking
from reference import mse, network, part_of, sgd, whole_batch


def train(hvd, optimizer, model, steps):
    for step in range(steps):
        optimizer.zero_grad()
        mse(model, *part_of(whole_batch(step, hvd.size()), hvd.rank())).backward()
        optimizer.step()


def test_each_step_is_counted_with_what_it_cost(hvd):
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), start_check="off")
    train(hvd, optimizer, model, 1)  # the first compares the models, too
    before = hvd.stats()
    train(hvd, optimizer, model, 3)
    spent = hvd.stats() - before
    assert spent.steps == 3
    last = hvd.stats().last_step
    assert last.steps == 1
    nbytes = sum(param.numel() * param.element_size() for param in model.parameters())
    if hvd.size() > 1:
        assert (last.bytes, spent.bytes) == (nbytes, 3 * nbytes)
        assert spent.exposed_seconds > 0
    else:
        assert spent.bytes == 0


def test_a_wrapping_that_is_undone_counts_no_more(hvd):
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    before = hvd.stats().steps
    train(hvd, optimizer, model, 1)
    assert hvd.stats().steps == before + 1


def test_a_step_that_calls_the_step_of_its_base_class_counts_once(hvd):
    model = network()
    optimizer = hvd.DistributedOptimizer(shrinking(model.parameters()), model.named_parameters())
    before = hvd.stats().steps
    train(hvd, optimizer, model, 2)
    assert hvd.stats().steps == before + 2


def test_a_program_that_marks_steps_is_believed(hvd):
    """This is the last test, because its mark counts until shutdown."""
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    hvd.mark_step()
    before = hvd.stats().steps
    for _ in range(2):
        train(hvd, optimizer, model, 2)
        hvd.mark_step()
    assert hvd.stats().steps == before + 2
    assert hvd.stats().last_step.steps == 1
