"""Digits with Horovod and TensorFlow's graphs and sessions, in the form of Horovod's TensorFlow 1 MNIST example."""

import argparse
import os

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

tf.disable_eager_execution()
tf.logging.set_verbosity(tf.logging.INFO)

parser = argparse.ArgumentParser(description="Tensorflow Digits Example")
parser.add_argument("--use-adasum", action="store_true", default=False, help="use adasum algorithm to do reduction")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
parser.add_argument("--checkpoint-dir", default="./checkpoints")
args = parser.parse_args()


def model(feature, target):
    """Two layers of convolution, one dense."""
    w1 = tf.get_variable("w1", [3, 3, 1, 16], initializer=tf.glorot_uniform_initializer())
    hidden = tf.nn.relu(tf.nn.conv2d(feature, w1, [1, 1, 1, 1], "SAME"))
    hidden = tf.nn.max_pool2d(hidden, 2, 2, "SAME")
    w2 = tf.get_variable("w2", [3, 3, 16, 32], initializer=tf.glorot_uniform_initializer())
    hidden = tf.nn.relu(tf.nn.conv2d(hidden, w2, [1, 1, 1, 1], "SAME"))
    hidden = tf.reshape(hidden, [-1, 4 * 4 * 32])
    w3 = tf.get_variable("w3", [4 * 4 * 32, 10], initializer=tf.glorot_uniform_initializer())
    b3 = tf.get_variable("b3", [10], initializer=tf.zeros_initializer())
    logits = tf.matmul(hidden, w3) + b3
    return tf.argmax(logits, 1), tf.losses.sparse_softmax_cross_entropy(target, logits)


def train_input_generator(x_train, y_train, batch_size=32):
    while True:
        p = np.random.permutation(len(x_train))
        x_train, y_train = x_train[p], y_train[p]
        index = 0
        while index <= len(x_train) - batch_size:
            yield x_train[index : index + batch_size], y_train[index : index + batch_size]
            index += batch_size


def main(_):
    # Horovod: initialize Horovod.
    hvd.init()
    tf.set_random_seed(1 + hvd.rank())  # what differs here, the broadcast makes the same

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
    x_train, y_train = images[:1500], digits.target[:1500]

    # Build model...
    with tf.name_scope("input"):
        image = tf.placeholder(tf.float32, [None, 8, 8, 1], name="image")
        label = tf.placeholder(tf.int64, [None], name="label")
    predict, loss = model(image, label)

    lr_scaler = hvd.size()
    # Horovod: adjust learning rate based on lr_scaler.
    opt = tf.train.AdamOptimizer(0.001 * lr_scaler)

    # Horovod: add Horovod Distributed Optimizer.
    opt = hvd.DistributedOptimizer(
        opt,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    global_step = tf.train.get_or_create_global_step()
    train_op = opt.minimize(loss, global_step=global_step)
    with tf.control_dependencies([train_op]):
        checksum = tf.add_n([tf.reduce_sum(tf.abs(variable.read_value())) for variable in tf.trainable_variables()])

    hooks = [
        # Horovod: BroadcastGlobalVariablesHook broadcasts initial variable states from rank 0 to all other processes.
        hvd.BroadcastGlobalVariablesHook(0),
        # Horovod: adjust number of steps based on number of GPUs.
        tf.train.StopAtStepHook(last_step=240 // hvd.size()),
        tf.train.LoggingTensorHook(tensors={"step": global_step, "loss": loss}, every_n_iter=40),
    ]

    # Horovod: pin GPU to be used to process local rank (one GPU per process)
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    # Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting them.
    checkpoint_dir = args.checkpoint_dir if hvd.rank() == 0 else None
    training_batch_generator = train_input_generator(x_train, y_train)
    # The MonitoredTrainingSession takes care of session initialization, restoring from a checkpoint, saving to a
    # checkpoint, and closing when done or an error occurs.
    with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, hooks=hooks, config=config) as mon_sess:
        while not mon_sess.should_stop():
            # Run a training step synchronously.
            image_, label_ = next(training_batch_generator)
            _, last_loss, weights, predicted = mon_sess.run(
                [train_op, loss, checksum, predict], feed_dict={image: image_, label: label_}
            )

    accuracy = np.mean(predicted == label_)
    print("rank %d loss %.4f accuracy %.2f weights %s" % (hvd.rank(), last_loss, accuracy, float(weights).hex()))
    if hvd.rank() == 0:
        assert os.path.exists(os.path.join(args.checkpoint_dir, "checkpoint"))


if __name__ == "__main__":
    tf.app.run()
