"""Digits with TensorFlow 2 and Horovod, in the form of Horovod's MNIST example: a loop of one's own."""

import os
import sys

import horovod.tensorflow as hvd
import tensorflow as tf
from sklearn.datasets import load_digits


def main():
    # Horovod: initialize Horovod.
    hvd.init()
    tf.keras.utils.set_random_seed(1 + hvd.rank())  # what differs here, the broadcast makes the same

    # Horovod: pin GPU to be used to process local rank (one GPU per process)
    gpus = tf.config.experimental.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    digits = load_digits()
    dataset = tf.data.Dataset.from_tensor_slices(
        (tf.cast(digits.images[..., tf.newaxis] / 16.0, tf.float32), tf.cast(digits.target, tf.int64))
    )
    dataset = dataset.repeat().shuffle(2000).batch(32)

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, [3, 3], activation="relu"),
            tf.keras.layers.Conv2D(32, [3, 3], activation="relu"),
            tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
            tf.keras.layers.Dropout(0.1),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    loss = tf.losses.SparseCategoricalCrossentropy()

    # Horovod: adjust learning rate based on number of GPUs.
    opt = tf.optimizers.Adam(0.001 * hvd.size())

    checkpoint_dir = sys.argv[1]
    checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)

    @tf.function
    def training_step(images, labels, first_batch):
        with tf.GradientTape() as tape:
            probs = model(images, training=True)
            loss_value = loss(labels, probs)

        # Horovod: add Horovod Distributed GradientTape.
        tape = hvd.DistributedGradientTape(tape)

        grads = tape.gradient(loss_value, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))

        # Horovod: broadcast initial variable states from rank 0 to all other processes, after the first gradient step
        # to ensure optimizer initialization.
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(opt.variables() if callable(opt.variables) else opt.variables, root_rank=0)

        return loss_value

    # Horovod: adjust number of steps based on number of GPUs.
    for batch, (images, labels) in enumerate(dataset.take(240 // hvd.size())):
        loss_value = training_step(images, labels, batch == 0)

        if batch % 10 == 0 and hvd.local_rank() == 0:
            print("Step #%d\tLoss: %.6f" % (batch, loss_value))

    # Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting it.
    if hvd.rank() == 0:
        checkpoint.save(os.path.join(checkpoint_dir, "ckpt"))

    weights = tf.concat([tf.reshape(v, [-1]) for v in model.trainable_variables], 0)
    everyone = hvd.allgather(weights[tf.newaxis], name="weights")
    assert everyone.shape[0] == 2 and bool(tf.reduce_all(everyone[0] == everyone[1]))


if __name__ == "__main__":
    main()
