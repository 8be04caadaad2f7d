"""The door for TensorFlow, and the native library behind it."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "tf-local-unscaled",
        "gradients of local sources are not divided by the number of ranks",
        "hvdlite/tensorflow/tape.py",
        "return values / tf.cast(ranks, values.dtype) if weight is None",
        "return values if weight is None",
        guards.TF_TRAINING,
    ),
    Mutant(
        "tf-passes-kept",
        "the sums of several passes are not reset after they were reduced",
        "hvdlite/tensorflow/aggregation.py",
        "resets = [total.assign(tf.zeros_like(value)) for total, value in zip(sums, values, strict=True)]",
        "resets = [total.assign(value) for total, value in zip(sums, values, strict=True)]",
        guards.TF_TRAINING,
    ),
    Mutant(
        "tf-predivide",
        "gradients that were divided before the sum are not multiplied after it",
        "hvdlite/tensorflow/arguments.py",
        "postscale_factor=self.gradient_predivide_factor,",
        "postscale_factor=1.0,",
        (*guards.TF_TRAINING, "tests/adapters/tensorflow/test_tf_door.py"),
    ),
    Mutant(
        "tf-broadcast-missing",
        "the last variable is not broadcast eagerly",
        "hvdlite/tensorflow/functions.py",
        "        for target, handle in zip(targets, pending, strict=True):\n            target.assign(handle.synchronize())",
        "        for target, handle in zip(targets[:-1], pending[:-1], strict=True):\n"
        "            target.assign(handle.synchronize())",
        guards.TF_STATE,
    ),
    Mutant(
        "tf-max-adjoint",
        "Max's backward gives each rank that holds the extreme value all of the gradient",
        "hvdlite/tensorflow/collective_ops.py",
        "return [mine / all_ranks for mine, all_ranks in zip(chosen, holders, strict=True)]",
        "return [mine + 0 * all_ranks for mine, all_ranks in zip(chosen, holders, strict=True)]",
        guards.TF_GRADIENTS,
    ),
    Mutant(
        "tf-alltoall-adjoint",
        "rows that come back in alltoall's gradient get the places of an even split",
        "hvdlite/tensorflow/collective_ops.py",
        'forward.last if forward.op.get_attr("has_splits") else even',
        "even",
        guards.TF_GRADIENTS,
    ),
    Mutant(
        "tf-start-check-once",
        "in a graph the ranks compare nothing after the first round",
        "hvdlite/tensorflow/start_check.py",
        "np.bool_(not self.pending)",
        "np.bool_(True)",
        guards.TF_START,
    ),
    Mutant(
        "tf-start-check-late",
        "a graph of TensorFlow 1 reduces and applies gradients beside the comparison, not after it",
        "hvdlite/tensorflow/start_check.py",
        "tf.control_dependencies([is_over])",
        "contextlib.nullcontext()",
        guards.TF_START,
    ),
    Mutant(
        "tf-adasum-start",
        "with Adasum an optimizer of TensorFlow 1 is compared after its step, when the ranks differ",
        "hvdlite/tensorflow/optimizer.py",
        "steps_alone=True",
        "steps_alone=False",
        guards.TF_START,
    ),
    Mutant(
        "tf-weight-share",
        "the gradient of a weighted mean is the sum, and not this rank's share of it",
        "hvdlite/tensorflow/collective_ops.py",
        "return shares_of(totals, weight, weights)",
        "return totals",
        guards.TF_WEIGHT,
    ),
    Mutant(
        "tf-weights-together",
        "the weights of passes that are reduced together do not begin anew with the next step",
        "hvdlite/tensorflow/aggregation.py",
        "for total, value in zip(sums, values, strict=True)]\n        with",
        "for total, value in zip(sums, values[: len(variables)])]\n        with",
        guards.TF_WEIGHT,
    ),
)
