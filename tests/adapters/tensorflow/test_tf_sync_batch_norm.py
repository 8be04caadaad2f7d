"""SyncBatchNormalization on the ranks' parts beside Keras's BatchNormalization on the whole batch, or NumPy."""

import numpy as np
import pytest
from support.seeds import seeds

tf = pytest.importorskip("tensorflow")

from tf_reference import WORLD, assert_close, assert_same_bits  # noqa: E402

from hvdlite.errors import InvalidArgumentError, UnsupportedError  # noqa: E402

RANKS = (2,)
MORE_RANKS = (3,)
CHANNELS = 5

ROWS = {
    "even": lambda size: [4] * size,
    "uneven": lambda size: [1 + 3 * rank for rank in range(size)],
    "one empty": lambda size: [0, *[3 + rank for rank in range(1, size)]],
}


class Case:
    """A layer on all ranks' parts (`norm`), and what it has to give, from the whole batch in float64."""

    def __init__(self, hvd, dtype="float64", policy=None, ranks=None, **options):
        self.ranks = list(range(hvd.size())) if ranks is None else ranks
        self.place, self.dtype = self.ranks.index(hvd.rank()), dtype
        self.norm = hvd.SyncBatchNormalization(dtype=policy or dtype, momentum=0.8, epsilon=1e-2, **options)
        self.axis = options.get("axis", -1)
        self.mean, self.variance = np.zeros(CHANNELS), np.ones(CHANNELS)
        self.gamma, self.beta = np.linspace(0.5, 2.0, CHANNELS), np.linspace(-1.0, 1.0, CHANNELS)

    def step(self, rows, space, seed, tolerance, mode):
        """One forward and backward in training, compared in all there is. Channels are first where axis=1."""
        random = np.random.default_rng(seed)
        shape = (sum(rows), CHANNELS, *space) if self.axis == 1 else (sum(rows), *space, CHANNELS)
        whole = tf.cast(random.standard_normal(shape) * 3 + 2, self.dtype)
        pull = tf.cast(random.standard_normal(shape), self.dtype)
        mine = slice(sum(rows[: self.place]), sum(rows[: self.place + 1]))
        if not self.norm.built:
            self.norm.build(whole.shape)
            self.norm.gamma.assign(self.gamma)
            self.norm.beta.assign(self.beta)
        weights = [self.norm.gamma, self.norm.beta]

        @mode
        def run(part, part_pull):
            with tf.GradientTape() as tape:
                tape.watch(part)
                output = self.norm(part, training=True)
                loss = tf.reduce_sum(tf.cast(output * tf.cast(part_pull, output.dtype), tf.float32))
            return output, *tape.gradient(loss, [part, *weights])

        output, for_input, *for_weights = run(whole[mine], pull[mine])
        assert output.dtype == for_input.dtype == self.dtype
        assert [gradient.dtype for gradient in for_weights] == [weight.dtype for weight in weights]
        expected, expected_input, *expected_weights = self.reference(
            *(tf.cast(each, tf.float64).numpy() for each in (whole, pull))
        )
        found = [tf.cast(each, tf.float64) for each in (output, for_input)]
        assert_close(found, [expected[mine], expected_input[mine]], tolerance)
        if len(self.ranks) == WORLD.size:
            sums = [sum(WORLD.allgather(tf.cast(gradient, tf.float64).numpy())) for gradient in for_weights]
            assert_close(sums, expected_weights, 20 * tolerance)
        moving = [self.norm.moving_mean, self.norm.moving_variance]
        assert_close([tf.cast(each, tf.float64) for each in moving], [self.mean, self.variance], max(tolerance, 1e-12))
        return moving

    def reference(self, whole, pull):
        """Output and gradients of the whole batch; the moving statistics follow."""
        channel = self.axis % whole.ndim
        axes = tuple(axis for axis in range(whole.ndim) if axis != channel)
        broad = [-1 if axis == channel else 1 for axis in range(whole.ndim)]
        mean, variance = whole.mean(axes), whole.var(axes)
        self.mean = 0.8 * self.mean + 0.2 * mean
        self.variance = 0.8 * self.variance + 0.2 * variance
        scale = 1 / np.sqrt(variance + 1e-2)
        normal = (whole - mean.reshape(broad)) * scale.reshape(broad)
        for_gamma, for_beta = (pull * normal).sum(axes), pull.sum(axes)
        count = whole.size / CHANNELS
        centered = pull - (for_beta / count).reshape(broad) - normal * (for_gamma / count).reshape(broad)
        return (
            normal * self.gamma.reshape(broad) + self.beta.reshape(broad),
            centered * (scale * self.gamma).reshape(broad),
            for_gamma,
            for_beta,
        )


def eagerly(function):
    return function


CASES = {
    "rows, eager": ("even", (), {}, eagerly),
    "images": ("uneven", (3, 2), {}, tf.function),
    "channels first": ("one empty", (3, 2), {"axis": 1}, tf.function),
    "sequences, eager": ("one empty", (4,), {}, eagerly),
    "compiled": ("uneven", (2,), {}, lambda function: tf.function(function, jit_compile=True)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_like_the_whole_batch(hvd, case):
    rows, space, options, mode = case
    both = Case(hvd, **options)
    for seed in seeds(range(3)):
        moving = both.step(ROWS[rows](hvd.size()), space, seed, 1e-11, mode)
    assert_same_bits(moving)


def test_mixed_precision(hvd):
    """Statistics are float32 and float64; only the output is rounded to the dtype of the computation."""
    case = Case(hvd, "float16", policy="mixed_float16")
    for seed in seeds(range(2)):
        case.step(ROWS["uneven"](hvd.size()), (3,), seed, 4e-3, tf.function)
    assert case.norm.gamma.dtype == "float32"


def test_far_from_zero(hvd):
    """Where sums of squares in float32 would have nothing left of the variance."""
    norm = hvd.SyncBatchNormalization()
    whole = np.random.default_rng(1).standard_normal((6 * hvd.size(), CHANNELS)) + 3000.0
    output = norm(tf.constant(whole[hvd.rank() :: hvd.size()], tf.float32), training=True)
    wanted = ((whole - whole.mean(0)) / np.sqrt(whole.var(0) + 1e-3))[hvd.rank() :: hvd.size()]
    assert_close([tf.cast(output, tf.float64)], [wanted], 2e-3)


def test_a_list_of_ranks_has_any_order(hvd):
    ranks = [*range(hvd.size())]
    everyone = hvd.add_process_set(ranks)
    assert hvd.SyncBatchNormalization(process_set=ranks[::-1]).process_set is everyone
    hvd.remove_process_set(everyone)


def test_process_set(hvd):
    ranks = list(range(1, hvd.size()))
    some = hvd.add_process_set(ranks)
    if hvd.rank() in ranks:
        case = Case(hvd, ranks=ranks, process_set=some)
        case.step([2 + place for place in range(len(ranks))], (), 0, 1e-11, eagerly)
        again = hvd.SyncBatchNormalization.from_config(case.norm.get_config())
        assert again.process_set is some
    else:
        with pytest.raises(InvalidArgumentError, match="not a member"):
            hvd.SyncBatchNormalization(process_set=some)(tf.ones([2, 3]), training=True)
    hvd.remove_process_set(some)


def test_masked_values_have_no_part_in_the_statistics(hvd):
    random = np.random.default_rng(5)
    whole = random.standard_normal((2 * hvd.size(), 3, CHANNELS))
    mask = random.random((2 * hvd.size(), 3)) < 0.6
    mine = slice(2 * hvd.rank(), 2 * hvd.rank() + 2)
    norm = hvd.SyncBatchNormalization(dtype="float64", epsilon=1e-2)
    output = norm(tf.constant(whole[mine]), training=True, mask=tf.constant(mask[mine]))
    kept = whole[mask]
    assert_close([output], [((whole - kept.mean(0)) / np.sqrt(kept.var(0) + 1e-2))[mine]], 1e-11)


def test_in_a_model(hvd):
    """Functional, evaluated with the moving statistics, and frozen without any collective: on one rank alone."""
    inputs = tf.keras.Input((CHANNELS,))
    model = tf.keras.Model(inputs, hvd.SyncBatchNormalization()(hvd.SyncBatchNormalization()(inputs)))
    assert len({layer.name for layer in model.layers}) == 3
    part = tf.random.stateless_normal([4, CHANNELS], [1, hvd.rank()])
    model(part, training=True)
    assert_same_bits(model.variables)
    if hvd.rank() == 0:
        first, second = model.layers[1:]
        first.trainable = second.trainable = False
        assert_close([model(part, training=True)], [model(part)], 0)
        wanted = part
        for layer in (first, second):
            wanted = (wanted - layer.moving_mean) / np.sqrt(layer.moving_variance + 1e-3)
        assert_close([model(part)], [wanted], 1e-5)


def test_ranks_that_have_made_other_layers_before(hvd):
    """Keras numbers their names."""
    for _ in range(hvd.rank()):
        hvd.SyncBatchNormalization()
    inputs = tf.keras.Input((CHANNELS,))
    model = tf.keras.Model(inputs, hvd.SyncBatchNormalization()(hvd.SyncBatchNormalization()(inputs)))
    step = tf.function(lambda part: model(part, training=True))
    step(tf.random.stateless_normal([4, CHANNELS], [1, hvd.rank()]))
    assert_same_bits(model.variables)


def test_refusals(hvd):
    with pytest.raises(ValueError, match="does not support fused=True"):
        hvd.SyncBatchNormalization(fused=True)
    with pytest.raises(UnsupportedError, match="does not support synchronized"):
        hvd.SyncBatchNormalization(synchronized=True)
    with pytest.raises(UnsupportedError, match="must know whether it trains"):
        tf.function(lambda training: hvd.SyncBatchNormalization()(tf.ones([2, 3]), training=training))(tf.constant(True))
