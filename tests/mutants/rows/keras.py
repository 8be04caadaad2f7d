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
        "names = everyone[0][1]",
        "names = mine",
        guards.KERAS,
    ),
    Mutant(
        "keras-broadcast-optimizer",
        "the optimizer's variables are not broadcast",
        "hvdlite/keras/callbacks.py",
        "variables = [*model.weights, *variables_of(optimizer)]",
        "variables = [*model.weights]",
        guards.KERAS,
    ),
    Mutant(
        "keras-metric-sum",
        "the metrics of an epoch are added up over the ranks, not averaged",
        "hvdlite/keras/callbacks.py",
        'ops.allreduce_async(np.array(float(value)), name=f"keras.metric.{metric}")',
        'ops.allreduce_async(np.array(float(value)), name=f"keras.metric.{metric}", op=ops.Sum)',
        guards.KERAS,
    ),
    Mutant(
        "keras-momentum",
        "what an optimizer with momentum has accumulated is not scaled with the rate",
        "hvdlite/keras/callbacks.py",
        "slot.assign(slot * (after / before))",
        "slot.assign(slot * 1.0)",
        guards.KERAS,
    ),
)
