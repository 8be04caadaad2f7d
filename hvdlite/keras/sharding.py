"""Sharded optimizer state with Keras 3: each variable is updated by one rank, its owner, and only the owner keeps its slots.

A slot is a variable of the optimizer that belongs to one variable of the model, such as its momentum.

All ranks have whole variables and whole, averaged gradients. In a training step each rank updates the variables that it owns.
Then the owners broadcast their variables. So weights have the same bits as without sharding. (The torch door splits variables
into slices. Graphs and programs of XLA know only one shape of a variable, so slices would need copies here.) An empty variable
stands in for a slot that another rank keeps. Averages of weights (``use_ema``) and sums of gradients
(``gradient_accumulation_steps``) stay whole on every rank. This partition of the state is stage 1 of ZeRO (Rajbhandari et al.,
ZeRO: Memory optimizations toward training trillion parameter models, SC 2020).

`KerasShardedState` and `ShardedSteps` are mixed into an optimizer's own class, like the mixins of `hvdlite.keras.optimizer`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvdlite import ops
from hvdlite.agreement import compare
from hvdlite.dtypes import code_of_name
from hvdlite.errors import InvalidArgumentError, MismatchError, UnsupportedError
from hvdlite.keras.backends import KerasBackend, SharedVariables
from hvdlite.keras.library import KERAS_3, Mixin, keras
from hvdlite.keras.variables import dtype_of, read, variables_of
from hvdlite.ownership import owners_of
from hvdlite.process_sets import ProcessSet

_Variable: Any = getattr(keras, "Variable", object)  # Keras 2 has no such class

_AVERAGES_AND_SUMS = ("_model_variables_moving_average", "_accumulated_gradients")
_WHOLE = ("_trainable_variables", "_variables", *_AVERAGES_AND_SUMS)


def check_shard(shard: Any, optimizer: Any) -> None:
    """Checks the argument `shard`.

    Raises:
        InvalidArgumentError: `shard` is no bool.
        UnsupportedError: the state of the optimizer cannot be split, or is split already; or this is not Keras 3.

    """
    if not isinstance(shard, bool):
        raise InvalidArgumentError(f"shard must be True or False, got {shard!r}")
    if shards_of(optimizer) is not None:
        raise UnsupportedError(
            "an optimizer with shard=True cannot be wrapped again, because this rank has only a part of its state: save the "
            "model on all ranks, load it with keras.models.load_model, and wrap the optimizer of the loaded model"
        )
    if not shard:
        return
    if not KERAS_3:
        raise UnsupportedError(f"shard=True needs Keras 3, this is {keras.__name__} {keras.__version__}: leave shard out")
    several = getattr(keras.optimizers, "MultiOptimizer", None)
    if hasattr(optimizer, "optimizers") or (several is not None and isinstance(optimizer, several)):
        raise UnsupportedError("shard=True does not work with MultiOptimizer, which has several optimizers: leave shard out")


def shards_of(optimizer: Any) -> "Shards | None":
    """The `Shards` of this optimizer, or of the optimizer inside this loss scaler; None: the state is whole."""
    found: Shards | None = getattr(type(optimizer), "_hvdlite_shards", None)
    # An optimizer that is made from the configuration of a wrapped one has the class of the wrapped one, with its Shards, until
    # the new optimizer is wrapped itself.
    return found if found is not None and found.optimizer is getattr(optimizer, "inner_optimizer", optimizer) else None


def common_variables(optimizer: Any) -> list[Any]:
    """An optimizer's variables without those that differ between ranks by design: slots that are split, and sums of gradients
    that are not reduced yet.
    """
    shards = shards_of(optimizer)
    sums = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_accumulated_gradients", ())
    own = {id(each) for each in sums}
    return [each for each in variables_of(optimizer) if id(each) not in own and (shards is None or not shards.is_slot(each))]


@dataclass(frozen=True)
class _Slot:
    """A slot: a variable of the optimizer that belongs to one variable of the model.

    Attributes:
        owner: index in the process set of the rank that keeps the slot.
        shape: the slot's shape on the owner.
    """

    owner: int
    shape: tuple[int, ...]


class _Elsewhere(_Variable):
    """An empty variable that stands in for a slot that another rank keeps."""

    @property
    def path(self) -> str:
        """Raises an error, so that the variable cannot be saved in the older format of files, nor be broadcast.

        When Keras writes a file in that format, it reads the path, and does not call the optimizer's `save_own_variables`. A
        broadcast reads the path when the ranks compare their variables.

        Raises:
            UnsupportedError: always.

        """
        raise UnsupportedError(
            "an optimizer with shard=True cannot be saved in this format, nor broadcast, because this rank has only a part of "
            "its state: save the model as a .keras file, or with include_optimizer=False, and broadcast model.variables"
        )

    def __repr__(self) -> str:
        return "<a slot that another rank keeps>"


class Shards:
    """The owners of one optimizer's variables. The owner of a variable updates the variable and keeps its slots.

    Args:
        optimizer: an optimizer of Keras 3 that is no loss scaler.
        process_set: the ranks that share the state; this rank is one of them.
        prefix: start of the names of collectives. It is unique among optimizers, and the same on all ranks.
        backend: the backend that Keras runs on.

    Attributes:
        left_out: True: Keras's files get nothing of the optimizer's state.
    """

    def __init__(self, optimizer: Any, process_set: ProcessSet, prefix: str, backend: KerasBackend) -> None:
        self.optimizer = optimizer
        self.left_out = False
        self._process_set = process_set
        self._ranks = list(process_set.ranks or ())
        self._place = process_set.rank() or 0
        self._prefix = prefix
        self._backend = backend
        self._begun = int(read(optimizer._iterations)) if optimizer.built else 0
        self._owners: list[int] = []  # indices of ranks in the set, by the variable's number in the optimizer
        self._slots: dict[int, _Slot] = {}  # by id of the slot
        self._common: list[Any] = []  # the other variables that only owners update: `share` broadcasts them too

    def describe(self) -> list[tuple[str, Any]]:
        """The facts that must be the same on all ranks, as (name, value)."""
        return [("iterations of the state when it was sharded (load it on all ranks)", self._begun)]

    def split(self) -> None:
        """Replaces the slots of other ranks' variables by empty variables. Does nothing before the optimizer is built.

        Slots of one element are not replaced, because that would save nothing.

        Raises:
            UnsupportedError: the optimizer has a variable that is no scalar, and hvdlite does not know to which variable of the
                model it belongs.

        """
        optimizer = self.optimizer
        if self._owners or not optimizer.built:
            return
        variables = optimizer._trainable_variables
        owners = owners_of([_bytes_of(variable) for variable in variables], len(self._ranks))
        lists = {name: list(held) for name, held in vars(optimizer).items() if _is_of_slots(name, held, variables)}
        same = [optimizer._iterations, optimizer._learning_rate]
        same += [each for name in _AVERAGES_AND_SUMS for each in getattr(optimizer, name, ())]
        known = {id(each) for held in (same, *lists.values()) for each in held}
        self._common = [each for each in optimizer._variables if id(each) not in known]
        for each in self._common:
            if len(each.shape):
                raise UnsupportedError(
                    f"shard=True does not work with {type(optimizer).__name__}: its variable {each.path!r} is in no list with "
                    "one for each variable of the model, so its owner is not known. Leave shard out"
                )
        self._owners = owners
        for name, held in lists.items():
            kept = [None if slot is None else self._kept(owner, slot) for owner, slot in zip(owners, held, strict=True)]
            vars(optimizer)[name] = kept  # not by setattr, after which Keras would count these variables a second time

    def _kept(self, owner: int, slot: Any) -> Any:
        """The slot if this rank is its owner, and otherwise the empty variable that replaces it."""
        kept, shape = slot, tuple(slot.shape)
        if owner != self._place and math.prod(shape) > 1:
            kept = _Elsewhere(keras.initializers.Zeros(), shape=(0,), dtype=slot.dtype, trainable=False, name=slot.name)
            variables = self.optimizer._variables
            variables[[each is slot for each in variables].index(True)] = kept
        self._slots[id(kept)] = _Slot(owner, shape)
        return kept

    def is_mine(self, variable: Any) -> bool:
        """Whether this rank updates this variable of the model."""
        return self._owner_of(variable) == self._place

    def _owner_of(self, variable: Any) -> int:
        number: int = self.optimizer._get_variable_index(variable)
        return self._owners[number]

    def is_slot(self, variable: Any) -> bool:
        """Whether this variable of the optimizer is a slot. Only the owner has the value of a slot."""
        return id(variable) in self._slots

    def share(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Broadcasts the updated variables from their owners. Collective over the process set, eager or traced.

        Args:
            variables: the variables of the model that have been updated; the same on all ranks.
            gradients: the gradients by which these variables were updated.
        """
        numbers = [self.optimizer._get_variable_index(variable) for variable in variables]
        places = [self._owners[number] for number in numbers]
        sent = [*variables, *self._common]
        roots = [self._ranks[place] for place in places + places[:1] * len(self._common)]
        names = [f"{self._prefix}.{number}.stepped" for number in numbers]
        names += [f"{self._prefix}.stepped{number}" for number in range(len(self._common))]
        steps = self.optimizer.gradient_accumulation_steps
        complete = (self.optimizer._iterations + 1) % steps == 0 if steps else None
        shared = SharedVariables(sent, roots, names, self._process_set, gradients, complete)
        values = self._backend.broadcast_from(shared)
        for variable, value in zip(sent, values, strict=True):
            if value is not None:
                variable.assign(value)

    # --- the state --------------------------------------------------------------------------------------------------

    def whole(self, variables: Sequence[Any]) -> Iterator[Any]:
        """The values that the optimizer's variables would have without sharding. Collective over the process set."""
        for number, variable in enumerate(variables):
            slot = self._slots.get(id(variable))
            if slot is None:
                yield read(variable)
                continue
            mine = read(variable) if slot.owner == self._place else np.zeros(slot.shape, read(variable).dtype)
            yield ops.broadcast(mine, self._ranks[slot.owner], f"{self._prefix}.state{number}", self._process_set)

    def load(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Loads whole values. This rank keeps only the slots that it owns. Collective over the process set.

        Raises:
            InvalidArgumentError: a value has not the shape of its variable, or there are more or fewer values than variables.
            MismatchError: the ranks load different states. After either error no rank has changed its variables.

        """
        problem = self.agree(variables, values)
        if problem:
            raise InvalidArgumentError(f"an optimizer with shard=True cannot load this state: it is {problem}")
        for variable, value in zip(variables, values, strict=True):
            slot = self._slots.get(id(variable))
            if slot is None or slot.owner == self._place:
                variable.assign(value)

    def agree(self, variables: Sequence[Any], values: Sequence[Any]) -> str:
        """Compares the states that the ranks are about to load. Collective over the process set.

        Returns:
            What is wrong with the state, which is the same on all ranks, in words; "" if all ranks can load it.

        Raises:
            MismatchError: the ranks load different states.

        """
        problem, iterations = "", int(read(self.optimizer._iterations))
        if len(values) != len(variables):
            problem = f"one of {len(values)} variables for an optimizer of {len(variables)}"
        for variable, value in zip(variables, values, strict=False):
            slot = self._slots.get(id(variable))
            shape = tuple(variable.shape) if slot is None else slot.shape
            if problem:
                break
            if tuple(value.shape) != shape:
                problem = f"one with shape {tuple(value.shape)} for a variable of shape {shape}"
            elif variable is self.optimizer._iterations:
                iterations = int(np.asarray(value))
        found = problem or f"one of {iterations} iterations"
        _, differing = compare([("the state that is loaded", found)], f"{self._prefix}.load", self._process_set)
        if differing:
            raise MismatchError(f"an optimizer with shard=True must load the same state on all ranks: {differing}")
        return problem


class KerasShardedState(Mixin):
    """Saves and loads an optimizer with sharded state, or the loss scaler around it, as a plain optimizer."""

    _hvdlite_shards: Shards

    def save_own_variables(self, store: Any) -> None:
        """Gathers the state and stores it. Collective over the process set, so the model must be saved on all ranks of the set.

        Stores nothing if the state is left out (`Shards.left_out`).
        """
        if self._hvdlite_shards.left_out:
            return
        for number, value in enumerate(self._hvdlite_shards.whole(self.variables)):
            store[str(number)] = value

    def load_own_variables(self, store: Any) -> None:
        """Loads a state that was saved by any number of ranks. Collective over the process set.

        If the state of all ranks has another number of variables than the optimizer, Keras warns, and nothing is loaded.

        Raises:
            InvalidArgumentError, MismatchError: as for `Shards.load`.

        """
        values = [store[key] for key in sorted(store.keys(), key=int)]
        if len(values) != len(self.variables):
            self._hvdlite_shards.agree(self.variables, values)
            super().load_own_variables(store)  # warns
        else:
            self._hvdlite_shards.load(self.variables, values)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Loads whole values, one for each variable. Collective over the process set."""
        self._hvdlite_shards.load(self.variables, weights)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses to be pickled and copied.

        Raises:
            UnsupportedError: always.

        """
        raise UnsupportedError(
            "an optimizer with shard=True cannot be pickled or copied, because this rank has only a part of its state: save "
            "the model on all ranks"
        )

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> Any:
        """Refuses to be saved in a checkpoint of TensorFlow, because the checkpoint would contain only this rank's part.

        Raises:
            UnsupportedError: `save_type` is ``"checkpoint"``.

        """
        if save_type == "checkpoint":
            raise UnsupportedError(
                "tf.train.Checkpoint cannot save an optimizer with shard=True, because this rank has only a part of its state: "
                "save the model as a .keras file, on all ranks"
            )
        return super()._trackable_children(save_type, **options)


class ShardedSteps(KerasShardedState):
    """Makes the training steps of an optimizer with sharded state. The optimizer may be inside a loss scaler."""

    def build(self, variables: Any) -> Any:
        """Makes all slots, and then keeps only the slots that this rank owns."""
        super().build(variables)
        self._hvdlite_shards.split()

    def _apply_weight_decay(self, variables: Any) -> Any:
        return super()._apply_weight_decay([each for each in variables if self._hvdlite_shards.is_mine(each)])

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
        """Updates the variables that this rank owns. Then each owner broadcasts its variables to the other ranks."""
        shards = self._hvdlite_shards
        pairs = zip(grads, trainable_variables, strict=True)
        mine = [(gradient, variable) for gradient, variable in pairs if shards.is_mine(variable)]
        if mine:
            super()._backend_update_step([gradient for gradient, _ in mine], [each for _, each in mine], learning_rate)
        shards.share(trainable_variables, grads)


def _is_of_slots(name: str, held: Any, variables: Sequence[Any]) -> bool:
    """Whether this attribute of the optimizer is a list that has, for each variable of the model, a slot or None."""
    if name in _WHOLE or not isinstance(held, list) or len(held) != len(variables):
        return False
    others = {id(variable) for variable in variables}
    return all(each is None or (isinstance(each, keras.Variable) and id(each) not in others) for each in held)


def _bytes_of(variable: Any) -> int:
    elements: int = math.prod(variable.shape)
    return elements * code_of_name(dtype_of(variable)).itemsize
