"""tensorpack: its HorovodTrainer on graphs of TensorFlow 1, under `python -m hvdlite.horovod` with TF_USE_LEGACY_KERAS=1."""

import sys

import numpy as np
import tensorpack
from common import digits, report
from tensorpack import Callback, FeedInput, FullyConnected, ModelDesc, TrainConfig, launch_train_with_config
from tensorpack.compat import tfv1
from tensorpack.dataflow import BatchData, DataFromList
from tensorpack.train import HorovodTrainer

import hvdlite


class Model(ModelDesc):
    def inputs(self):
        return [tfv1.TensorSpec([None, 64], tfv1.float32, "images"), tfv1.TensorSpec([None], tfv1.int64, "labels")]

    def build_graph(self, images, labels):
        hidden = FullyConnected("hidden", images, 64, activation=tfv1.nn.relu)
        scores = FullyConnected("scores", hidden, 10)
        right = tfv1.cast(tfv1.equal(tfv1.argmax(scores, 1), labels), tfv1.float32)
        tfv1.reduce_mean(right, name="accuracy")
        return tfv1.reduce_mean(tfv1.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores), name="cost")

    def optimizer(self):
        return tfv1.train.AdamOptimizer(2e-3)


class Report(Callback):
    """After the last step, on all ranks: what the ranks have, and how the test images are read."""

    _chief_only = False

    def __init__(self, test):
        self.test = test

    def _setup_graph(self):
        self.predict = self.trainer.get_predictor(["images", "labels"], ["accuracy"])

    def _after_train(self):
        weights = self.trainer.sess.run(tfv1.trainable_variables())
        report(f"tensorpack {tensorpack.__version__}", weights, accuracy=float(self.predict(*self.test)[0]))


def main():
    train, test = digits()
    # As tensorpack's manual says: each rank brings its own data.
    mine = [list(pair) for pair in zip(*(part[hvdlite.rank() :: hvdlite.size()] for part in train), strict=True)]
    batches = BatchData(DataFromList(mine, shuffle=True), 32)
    tensorpack.logger.auto_set_dir("d", "train_log")
    config = TrainConfig(
        model=Model(),
        data=FeedInput(batches),
        callbacks=[Report(test)],
        extra_callbacks=[],
        monitors=[],
        max_epoch=10,
        steps_per_epoch=len(mine) // 32,
    )
    launch_train_with_config(config, HorovodTrainer())


if __name__ == "__main__":
    hvdlite.init()
    sys.modules[HorovodTrainer.__module__].tf = tfv1  # tensorpack 0.11 forgets this where TensorFlow is 2
    np.random.seed(hvdlite.rank())
    main()
