"""Digits with TensorFlow and elastic Horovod, in the form of Horovod's elastic MNIST example. Rank 1 dies in step 50."""

import os
import signal

import horovod.tensorflow as hvd
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()
FIRST = hvd.rank()
digits = load_digits()
dataset = tf.data.Dataset.from_tensor_slices(
    (tf.cast(digits.images.reshape(-1, 64) / 16.0, tf.float32), tf.cast(digits.target, tf.int64))
)
dataset = dataset.repeat().shuffle(2000).batch(32)
digits_model = tf.keras.Sequential([tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(10)])
loss = tf.losses.SparseCategoricalCrossentropy(from_logits=True)
lr = 0.005
opt = tf.optimizers.Adam(lr * hvd.size())


@tf.function
def training_step(images, labels, allreduce=True):
    with tf.GradientTape() as tape:
        loss_value = loss(labels, digits_model(images, training=True))
    if allreduce:
        tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, digits_model.trainable_variables)
    opt.apply_gradients(zip(grads, digits_model.trainable_variables))
    return loss_value


# The variables of model and optimizer must exist before the state is made.
for images, labels in dataset.take(1):
    training_step(images, labels, allreduce=False)


@hvd.elastic.run
def train(state):
    start_batch = state.batch
    for batch_idx, (images, labels) in enumerate(dataset.take(120 - start_batch)):
        state.batch = start_batch + batch_idx
        if (FIRST, state.batch) == (1, 50):
            os.kill(os.getpid(), signal.SIGKILL)
        loss_value = training_step(images, labels)
        if state.batch in (20, 119) and hvd.rank() == 0:
            print("Step #%d on %d ranks\tLoss: %.6f" % (state.batch, hvd.size(), loss_value), flush=True)
        state.commit()


def on_state_reset():
    opt.learning_rate.assign(lr * hvd.size())


state = hvd.elastic.TensorFlowKerasState(digits_model, opt, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
