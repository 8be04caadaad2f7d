"""DeePMD-kit's training on TensorFlow, which asks for Horovod by itself, under `python -m hvdlite.horovod`. It learns the
energies and forces of argon: Lennard-Jones clusters, made here."""

import json
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
from common import report
from deepmd.tf.entrypoints.train import train
from deepmd.tf.env import tf
from deepmd.tf.train.trainer import DPTrainer

import hvdlite

ATOMS, FRAMES = 8, 240

SETTINGS = {
    "model": {
        "type_map": ["Ar"],
        "descriptor": {
            "type": "se_e2_a",
            "sel": [12],
            "rcut_smth": 3.0,
            "rcut": 7.0,
            "neuron": [8, 16],
            "axis_neuron": 4,
            "seed": 1,
        },
        "fitting_net": {"neuron": [24, 24], "seed": 1},
    },
    "learning_rate": {"type": "exp", "decay_steps": 50, "start_lr": 0.005, "stop_lr": 1e-4},
    "loss": {"start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1},
    "training": {"numb_steps": 300, "disp_freq": 50, "seed": 1, "save_freq": 300, "training_data": {"batch_size": 4}},
}


def write_clusters(folder):
    """DeePMD's files of a system: positions (angstrom), energies (eV), forces (eV/angstrom) of clusters without a box."""
    draw = np.random.default_rng(1)
    corners = np.stack(np.meshgrid(*[[0.0, 3.8]] * 3), -1).reshape(-1, 3)
    places = corners + draw.normal(0, 0.15, (FRAMES, ATOMS, 3))
    apart = places[:, :, None] - places[:, None, :]
    distance = np.sqrt((apart**2).sum(-1)) + np.eye(ATOMS) * 1e9
    sixth = (3.4 / distance) ** 6
    energies = 0.5 * (4 * 0.0103 * (sixth**2 - sixth)).sum((1, 2))
    forces = ((4 * 0.0103 * (12 * sixth**2 - 6 * sixth) / distance**2)[..., None] * apart).sum(2)
    (folder / "set.000").mkdir(parents=True)
    (folder / "type.raw").write_text("0\n" * ATOMS)
    (folder / "type_map.raw").write_text("Ar\n")
    (folder / "nopbc").touch()
    boxes = np.tile(20 * np.eye(3), (FRAMES, 1, 1))
    for name, array in (("coord", places), ("energy", energies), ("force", forces), ("box", boxes)):
        np.save(folder / "set.000" / f"{name}.npy", array.reshape(FRAMES, -1))


class Trained:
    """What DeePMD's trainer has in the end, which it gives to nobody."""

    weights = ()

    @classmethod
    def watch(cls):
        inner = DPTrainer.train

        def watched(trainer, *args, **kwargs):
            inner(trainer, *args, **kwargs)
            with trainer.graph.as_default() if hasattr(trainer, "graph") else tf.get_default_graph().as_default():
                cls.weights = trainer.sess.run(tf.trainable_variables())

        DPTrainer.train = watched


def main():
    hvdlite.init()
    folder = Path(hvdlite.broadcast_object(tempfile.mkdtemp(), root_rank=0, name="folder"))
    if hvdlite.rank() == 0:
        write_clusters(folder / "argon")
        SETTINGS["training"]["training_data"]["systems"] = [str(folder / "argon")]
        SETTINGS["training"].update(disp_file=str(folder / "losses"), save_ckpt=str(folder / "model"))
        (folder / "input.json").write_text(json.dumps(SETTINGS))
    hvdlite.barrier()
    Trained.watch()
    train(
        INPUT=str(folder / "input.json"),
        init_model=None,
        restart=None,
        output=str(folder / f"output{hvdlite.rank()}.json"),
        init_frz_model=None,
        mpi_log="master",
        log_level=2,
        log_path=None,
        skip_neighbor_stat=True,
        finetune=None,
    )
    losses = np.loadtxt(folder / "losses")
    report(f"deepmd-kit {version('deepmd-kit')}", Trained.weights, losses=(losses[0, 1], losses[-1, 1]))


if __name__ == "__main__":
    main()
