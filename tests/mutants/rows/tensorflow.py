"""The door for TensorFlow, and the native library behind it."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "tf-local-unscaled",
        "gradients of local sources are not divided by the number of ranks",
        "hvdlite/tensorflow/tape.py",
        "return gradient / tf.cast(ranks, gradient.dtype)",
        "return gradient",
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
        "tf-sparse-average",
        "an average of IndexedSlices is divided by the ranks of the job, not of the set",
        "hvdlite/tensorflow/sparse.py",
        "ranks = tf.cast(collective_ops.size(set_id), rows.dtype)",
        "ranks = tf.cast(collective_ops.size(), rows.dtype)",
        (*guards.TF_TRAINING, "tests/adapters/tensorflow/test_tf_door.py"),
    ),
    Mutant(
        "tf-broadcast-missing",
        "the last variable is not broadcast eagerly",
        "hvdlite/tensorflow/functions.py",
        "        for target, flight in zip(targets, flights, strict=True):\n            target.assign(flight.synchronize())",
        "        for target, flight in zip(targets[:-1], flights[:-1], strict=True):\n"
        "            target.assign(flight.synchronize())",
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
        "rows that were not sent lack in alltoall's gradient",
        "hvdlite/tensorflow/collective_ops.py",
        "unsent = tf.concat([shape[:1] - tf.shape(back)[:1], shape[1:]], axis=0)",
        "unsent = tf.concat([0 * shape[:1], shape[1:]], axis=0)",
        guards.TF_GRADIENTS,
    ),
    Mutant(
        "tf-batch-norm-count",
        "SyncBatchNormalization counts masked values, too",
        "hvdlite/tensorflow/sync_batch_norm.py",
        "self.count = tf.reduce_sum(tf.cast(weights, tf.float64))",
        "self.count = tf.cast(tf.size(weights), tf.float64)",
        ("tests/adapters/tensorflow/test_tf_sync_batch_norm.py",),
    ),
    Mutant(
        "tf-called-twice",
        "an op of a function that is called twice has one name in both calls",
        "csrc/bindings/tensorflow/kernel.cc",
        'if (last == std::string_view::npos) return "";',
        'if (last != 0) return "";',
        ("tests/adapters/tensorflow/test_tf_ops.py",),
    ),
    Mutant(
        "tf-rows-beyond-splits",
        "rows beyond the splits of an alltoall belong to the tensor that is sent",
        "csrc/bindings/tensorflow/requests.cc",
        "if (!negative && one_.ndim > 0 && sum < extents_of_one_[0]) extents_of_one_[0] = sum;",
        "if (negative) extents_of_one_[0] = sum;",
        ("tests/adapters/tensorflow/test_tf_ops.py", "tests/adapters/tensorflow/test_tf_op_gradients.py"),
    ),
)
