"""The door for Keras: the optimizer, callbacks, broadcasts, elastic state."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "keras-local-scaled-twice",
        "gradients of local layers are never divided by the number of ranks",
        "hvdlite/keras/reducer.py",
        "settings.factor / ranks if settings.scale_local else settings.factor)",
        "settings.factor)",
        guards.KERAS,
    ),
    Mutant(
        "keras-names-of-own",
        "each rank names gradients by its own variables, not by the first rank's",
        "hvdlite/keras/reducer.py",
        "for name, variable in zip(labels[len(common) :], new, strict=True):",
        "for name, variable in zip(map(name_of, new), new, strict=True):",
        guards.KERAS_ON_TORCH,
    ),
    Mutant(
        "keras-broadcast-optimizer",
        "the optimizer's variables are not broadcast",
        "hvdlite/keras/model_state.py",
        "variables += [variable for optimizer in optimizers for variable in variables_of(optimizer)]",
        "pass",
        guards.KERAS_ON_TORCH,
    ),
    Mutant(
        "keras-broadcast-one-optimizer",
        "optimizers in other attributes than that of compile() are not broadcast",
        "hvdlite/keras/model_state.py",
        "return held_by(model, is_optimizer)",
        'return {"optimizer": model.optimizer}',
        guards.KERAS,
    ),
    Mutant(
        "keras-counts-executions",
        "callbacks count executions, not batches",
        "hvdlite/keras/batches.py",
        "count = max(1, last - self._last)",
        "count = 1",
        guards.KERAS,
    ),
    Mutant(
        "keras-metric-sum",
        "the metrics of an epoch are added up over the ranks, not averaged",
        "hvdlite/keras/callbacks.py",
        "logs[name] = float(np.mean([theirs[name] for theirs in everyone]))",
        "logs[name] = float(np.sum([theirs[name] for theirs in everyone]))",
        guards.KERAS_ON_TORCH,
    ),
    Mutant(
        "keras-momentum",
        "what an optimizer with momentum has accumulated is not scaled with the rate",
        "hvdlite/keras/callbacks.py",
        "slot.assign(slot * (after / before))",
        "slot.assign(slot * 1.0)",
        guards.KERAS_ON_TORCH,
    ),
    Mutant(
        "keras-single-batches",
        "batches that the program asks for are not compared",
        "hvdlite/keras/start_check.py",
        "        if self.results is not None:",
        "        if False:",
        guards.KERAS,
    ),
    Mutant(
        "keras-traced-loop",
        "a traced loop of one's own is not compared",
        "hvdlite/keras/reducer.py",
        "elif self.check is not None and not self.check.after_batches:",
        "elif self.check is not None and self.check.after_batches:",
        guards.KERAS,
    ),
)
