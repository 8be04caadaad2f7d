"""Digits with Keras and Horovod, in the form of Horovod's advanced and ImageNet examples: callbacks, checkpoints, resume."""

import argparse
import os

import horovod.keras as hvd
import keras
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description="Keras Digits Example", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.keras", help="checkpoint file format")
parser.add_argument("--fp16-allreduce", action="store_true", default=False, help="use fp16 compression during allreduce")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--base-lr", type=float, default=0.03)
parser.add_argument("--warmup-epochs", type=int, default=2)
parser.add_argument("--momentum", type=float, default=0.9)
args = parser.parse_args()

# Horovod: initialize Horovod.
hvd.init()

keras.utils.set_random_seed(1 + hvd.rank())  # what differs here, the broadcast makes the same

# If set > 0, will resume training from a given checkpoint.
resume_from_epoch = 0
for try_epoch in range(args.epochs, 0, -1):
    if os.path.exists(args.checkpoint_format.format(epoch=try_epoch)):
        resume_from_epoch = try_epoch
        break

# Horovod: broadcast resume_from_epoch from rank 0 (which will have checkpoints) to other ranks.
resume_from_epoch = int(hvd.broadcast(resume_from_epoch, 0, name="resume_from_epoch"))

# Horovod: print logs on the first worker.
verbose = 2 if hvd.rank() == 0 else 0

digits = load_digits()
images, labels = digits.images[..., None].astype("float32") / 16.0, digits.target
x_train, y_train = images[hvd.rank() : 1500 : hvd.size()], labels[hvd.rank() : 1500 : hvd.size()]
x_test, y_test = images[1500:], labels[1500:]

# Horovod: adjust learning rate based on number of GPUs.
initial_lr = args.base_lr * hvd.size()
# Horovod: (optional) compression algorithm.
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

# Restore from a previous checkpoint, if initial_epoch is specified.
# Horovod: restore on the first worker which will broadcast both model and optimizer weights to other workers.
if resume_from_epoch > 0 and hvd.rank() == 0:
    model = hvd.load_model(args.checkpoint_format.format(epoch=resume_from_epoch), compression=compression)
else:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, (3, 3), activation="relu"),
            keras.layers.MaxPooling2D((2, 2)),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    opt = keras.optimizers.SGD(learning_rate=initial_lr, momentum=args.momentum)
    # Horovod: add Horovod Distributed Optimizer.
    opt = hvd.DistributedOptimizer(opt, compression=compression)
    model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])


class LearningRates(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if hvd.rank() == 0:
            print("\nlearning rate %.4f" % logs["lr"])


callbacks = [
    # Horovod: broadcast initial variable states from rank 0 to all other processes.
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    # Horovod: average metrics among workers at the end of every epoch.
    hvd.callbacks.MetricAverageCallback(),
    # Horovod: using `lr = 1.0 * hvd.size()` from the very beginning leads to worse final accuracy.
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=initial_lr, warmup_epochs=args.warmup_epochs, verbose=verbose),
    # Horovod: after the warmup reduce learning rate by 10 on the fifth epoch.
    hvd.callbacks.LearningRateScheduleCallback(
        initial_lr=initial_lr, multiplier=1.0, start_epoch=args.warmup_epochs, end_epoch=4
    ),
    hvd.callbacks.LearningRateScheduleCallback(initial_lr=initial_lr, multiplier=lambda epoch: 0.1, start_epoch=4),
    LearningRates(),
    # Reduce the learning rate if training plateaues.
    keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=10, verbose=verbose),
]

# Horovod: save checkpoints only on the first worker to prevent other workers from corrupting them.
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint(args.checkpoint_format))

model.fit(
    x_train,
    y_train,
    batch_size=args.batch_size,
    callbacks=callbacks,
    epochs=args.epochs,
    verbose=verbose,
    initial_epoch=resume_from_epoch,
    validation_data=(x_test, y_test),
)

# Evaluate the model on the full data set.
score = hvd.allreduce(model.evaluate(x_test, y_test, verbose=0))
if hvd.rank() == 0:
    print("Test loss:", float(score[0]))
    print("Test accuracy:", float(score[1]))
