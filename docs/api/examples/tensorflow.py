"""An example for each name of tensorflow.md. The reference shows it below the name; the tests run it on two ranks."""

import tensorflow as tf

import hvdlite.tensorflow as hvd

hvd.init()

# --- training ---


def DistributedGradientTape():
    weights = tf.Variable([1.0, 1.0])
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(weights * 2.0 * hvd.rank())  # its gradient is 0 on rank 0, 2 on rank 1
    assert tape.gradient(loss, weights).numpy().tolist() == [1.0, 1.0]  # the average of both


def PartialDistributedGradientTape():
    local = tf.keras.layers.Dense(1, use_bias=False)
    local.build([None, 2])
    x = tf.fill([1, 2], 1.0 + hvd.rank())
    with hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=local, scale_local_gradients=False) as tape:
        loss = tf.reduce_sum(local(x))
    (gradient,) = tape.gradient(loss, local.trainable_weights)  # this rank's own
    assert gradient.numpy().ravel().tolist() == [1.0 + hvd.rank()] * 2


def DistributedOptimizer():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("weight", [], initializer=tf.compat.v1.zeros_initializer())
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
        step = optimizer.minimize(weight * 2.0 * hvd.rank())
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(step)
        assert session.run(weight) == -1.0  # the average of the gradients is 1


def broadcast_variables():
    weights = tf.Variable(tf.fill([2], float(hvd.rank())))
    hvd.broadcast_variables([weights], root_rank=1)
    assert weights.numpy().tolist() == [1.0, 1.0]


def broadcast_():
    weights = tf.Variable(tf.fill([2], float(hvd.rank())))
    (value,) = hvd.broadcast_([weights], root_rank=1)
    assert value.numpy().tolist() == weights.numpy().tolist() == [1.0, 1.0]


def broadcast_global_variables():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("weight", [], initializer=tf.compat.v1.constant_initializer(hvd.rank()))
        operation = hvd.broadcast_global_variables(root_rank=1)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(operation)
        assert session.run(weight) == 1.0


def BroadcastGlobalVariablesHook():
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("weight", [], initializer=tf.compat.v1.constant_initializer(hvd.rank()))
        hook = hvd.BroadcastGlobalVariablesHook(root_rank=1)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            assert session.run(weight) == 1.0


def SyncBatchNormalization():
    layer = hvd.SyncBatchNormalization()
    batch = tf.fill([2, 1], 4.0 * hvd.rank())  # 0, 0 on rank 0; 4, 4 on rank 1
    normalised = layer(batch, training=True)  # of all four numbers the mean is 2 and the standard deviation 2
    assert abs(normalised.numpy() - (2.0 * hvd.rank() - 1)).max() < 0.01


def check_consistency():
    weights = tf.Variable([1.0, 2.0])
    hvd.check_consistency([weights])  # now
    checker = hvd.check_consistency([weights], every=2)
    for _ in range(4):  # compares after the 2nd and the 4th step
        checker.step()


# --- collectives ---


def allreduce():
    x = tf.constant([2.0, 4.0]) * hvd.rank()
    assert hvd.allreduce(x).numpy().tolist() == [1.0, 2.0]
    assert hvd.allreduce(x, op=hvd.Sum, name="total").numpy().tolist() == [2.0, 4.0]


def grouped_allreduce():
    loss, gradient = hvd.grouped_allreduce([tf.constant(2.0) * hvd.rank(), tf.ones([3])])
    assert loss.numpy() == 1.0
    assert gradient.shape == (3,)


def allgather():
    rows = hvd.allgather(tf.fill([1 + hvd.rank(), 2], hvd.rank()))  # 1 row of rank 0, 2 rows of rank 1
    assert rows.numpy().tolist() == [[0, 0], [1, 1], [1, 1]]


def grouped_allgather():
    ids, rows = hvd.grouped_allgather([tf.constant([hvd.rank()]), tf.ones([2, 3])])
    assert ids.numpy().tolist() == [0, 1]
    assert rows.shape == (4, 3)


def broadcast():
    x = tf.constant([7.0, 8.0]) * hvd.rank()
    assert hvd.broadcast(x, root_rank=1).numpy().tolist() == [7.0, 8.0]


def alltoall():
    x = tf.constant([10, 11]) + 100 * hvd.rank()
    assert hvd.alltoall(x).numpy().tolist() == [[10, 110], [11, 111]][hvd.rank()]
    _, received_splits = hvd.alltoall(x, splits=[0, 2])  # all rows to rank 1
    assert received_splits.numpy().tolist() == [[0, 0], [2, 2]][hvd.rank()]


def reducescatter():
    mine = hvd.reducescatter(tf.constant([1.0, 2.0, 3.0]), op=hvd.Sum)  # the first rank gets one row more
    assert mine.numpy().tolist() == [[2.0, 4.0], [6.0]][hvd.rank()]


def grouped_reducescatter():
    first, second = hvd.grouped_reducescatter([tf.ones([4, 3]), tf.constant([1.0, 2.0])], op=hvd.Sum)
    assert first.shape == (2, 3)
    assert second.numpy().tolist() == [[2.0], [4.0]][hvd.rank()]


def send():
    if hvd.rank() == 0:
        x = tf.Variable([2.0])
        with tf.GradientTape() as tape:
            loss = hvd.send(x * x, dst=1)
        assert tape.gradient(loss, x).numpy().tolist() == [12.0]  # 2 x, times the gradient that rank 1 sends
    if hvd.rank() == 1:
        like = tf.zeros([1])
        with tf.GradientTape() as tape:
            tape.watch(like)
            loss = 3 * hvd.recv(like, src=0)
        tape.gradient(loss, like)  # sends 3 to rank 0


def recv():
    if hvd.rank() == 0:
        hvd.send(tf.constant([2.0]), dst=1)
    if hvd.rank() == 1:
        assert hvd.recv(tf.zeros([1]), src=0).numpy().tolist() == [2.0]


def join():
    for _ in range(3 + hvd.rank()):  # rank 0 has 3 batches, rank 1 has 4
        hvd.allreduce(tf.ones([2]), name="gradient")
    assert hvd.join().numpy() == 1  # the rank that joined last


def rank_op():
    @tf.function
    def first_sample(batch):
        return batch[hvd.rank_op()]  # known when the function runs, not when it is traced

    assert first_sample(tf.constant([5, 6])).numpy() == 5 + hvd.rank()


def size_op():
    scaled_rate = tf.function(lambda rate: rate * tf.cast(hvd.size_op(), tf.float32))
    assert scaled_rate(tf.constant(0.5)).numpy() == 1.0


def local_rank_op():
    assert hvd.local_rank_op().numpy() == hvd.local_rank()


def local_size_op():
    assert hvd.local_size_op().numpy() == hvd.local_size()


def process_set_included_op():
    assert hvd.process_set_included_op().numpy() == 1  # process set 0 has all ranks


# --- objects ---


def broadcast_object():
    settings = {"rate": 0.1} if hvd.rank() == 0 else None
    assert hvd.broadcast_object(settings, root_rank=0) == {"rate": 0.1}


def broadcast_object_fn():
    from_rank_1 = hvd.broadcast_object_fn(root_rank=1)
    assert from_rank_1(f"from rank {hvd.rank()}") == "from rank 1"


def allgather_object():
    assert hvd.allgather_object({"rank": hvd.rank()}) == [{"rank": 0}, {"rank": 1}]


# --- elastic ---


def TensorFlowState():
    weights = tf.Variable([1.0 + hvd.rank()])
    state = hvd.elastic.TensorFlowState([weights], epoch=0)
    state.sync()  # rank 0's values on all ranks, which are saved
    weights.assign([5.0])
    state.restore()  # back to the saved values
    assert weights.numpy().tolist() == [1.0]
    state.epoch = 1
    state.save()


def TensorFlowKerasState():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.build([None, 2])
    state = hvd.elastic.TensorFlowKerasState(model, tf.keras.optimizers.SGD(0.1), epoch=0)
    state.sync()
    hvd.check_consistency(model)  # all ranks have rank 0's weights


def run():
    weights = tf.Variable([0.0])
    state = hvd.elastic.TensorFlowState([weights], step=0)

    @hvd.elastic.run  # hvdlite calls train again after the loss of a rank, with the last commit
    def train(state):
        while state.step < 3:
            weights.assign_add(hvd.allreduce(tf.ones([1]), name="step"))
            state.step += 1
            state.commit()

    train(state)
    assert weights.numpy().tolist() == [3.0]


def loss_in():
    try:
        hvd.allreduce(tf.ones([2]))
    except tf.errors.OpError as error:  # TensorFlow's
        lost = hvd.elastic.loss_in(error)
        raise (lost or error) from error
    assert hvd.elastic.loss_in(ValueError("out of memory")) is None
