"""Reduces the gradients of one wrapped optimizer: chooses which gradients are sent, their names and their groups."""

import contextlib
import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hvdlite.agreement import compare, name_of
from hvdlite.compression import describe_compression
from hvdlite.errors import InvalidArgumentError, MismatchError, UnsupportedError
from hvdlite.keras.backends import GradientStep, KerasBackend, Reduction, WeightTotal
from hvdlite.keras.library import KERAS_3, keras
from hvdlite.keras.loss_weights import weight_of_last_loss
from hvdlite.keras.sharding import Shards
from hvdlite.keras.start_check import KerasCheck
from hvdlite.keras.variables import facts_of, is_among
from hvdlite.partition import part_of
from hvdlite.requests import OP_NAMES
from hvdlite.runtime import RUNTIME

# For each process set (the key is its ranks): the number of the next comparison. All ranks of the set compare in one order.
_meetings: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)

# The user's groups: a number of groups of about equal length, or lists of variables.
Groups = int | tuple[tuple[Any, ...], ...] | None


@dataclass(frozen=True)
class Settings:
    """How a wrapped optimizer treats its gradients.

    Attributes:
        name: the user's name of the optimizer; the same on all ranks.
        reduction: how the gradients are reduced.
        groups: the gradients that are agreed on and sent together.
        passes: number of backward passes whose gradients are added up before they are reduced.
        averages_passes: True: the sums are divided by the number of passes.
        scale_local: True: gradients that are not reduced are divided by the number of ranks.
        start_check: the reaction if the ranks train different models: a mode of `hvdlite.start_check`.
        shard: True: each variable is updated by one rank only.
        weighted: True: the weight of a rank's gradients is the divisor of its loss.
        serial: number of optimizers that this process wrapped for the process set before this one; the same on all ranks.

    """

    name: str
    reduction: Reduction
    groups: Groups
    passes: int
    averages_passes: bool
    scale_local: bool
    start_check: str
    shard: bool
    weighted: bool
    serial: int = -1

    @property
    def factor(self) -> float:
        """A factor for all gradients, reduced or not. Without `averages_passes` it undoes Keras 3's division by `passes`."""
        return float(self.passes) if KERAS_3 and not self.averages_passes else 1.0

    @property
    def prefix(self) -> str:
        """The name of the optimizer, unique in the process set and the same on all ranks."""
        return f"keras_{self.name}{self.serial}"

    def describe(self) -> list[tuple[str, Any]]:
        """The settings that must be equal on all ranks, as (name, value)."""
        reduction = self.reduction
        return [
            ("the optimizer in use", f"number {self.serial + 1} of those that were wrapped"),
            ("its name", self.name),
            ("op", OP_NAMES[reduction.op]),
            ("the factor before", reduction.prescale),
            ("the factor after", reduction.postscale * self.factor),
            ("compression", describe_compression(reduction.compression)),
            ("sparse_as_dense", reduction.sparse_as_dense),
            ("groups", self.groups if isinstance(self.groups, int) else self.groups and len(self.groups)),
            ("scale_local_gradients", self.scale_local),
            ("start_check", self.start_check),
            ("shard", self.shard),
            ("weighted", self.weighted),
        ]


class Reducer:
    """Reduces the gradients of one wrapped optimizer, and keeps the state that wrapping adds to it.

    The engine matches gradients of different ranks by name. All ranks use the names that the variables have on the first rank,
    because Keras numbers the layers of each process, and the numbers may differ. So before the first reduction the ranks pair
    their variables by order, compare shapes and dtypes, and agree on the names.

    Attributes:
        settings: how the gradients are treated.
        known: the variables whose gradients are reduced, in the order in which the ranks have compared the variables.
        accumulated: the variables of the accumulated gradients that are reduced next (Keras 3).
        computed: the reduced gradients that `_compute_gradients` returned last, until they are applied (Keras 2).
        aggregation: adds up the gradients of several backward passes (Keras 2); None: the gradients of each pass are reduced.
        wrap_alike: a function that wraps another optimizer with the same arguments.
        check: compares the ranks' models; None: this rank is the only one of the process set, or not in the set.
        shards: knows which rank updates which variables; None: every rank updates all variables.
        weight: the weight of this rank's gradients that the user has set; None: all ranks have the same weight.

    """

    def __init__(self, settings: Settings, backend: KerasBackend, optimizer: Any) -> None:
        self.settings = settings
        self.accumulated: Sequence[Any] = ()
        self.computed: Sequence[Any] = ()
        self.aggregation: Any = None
        self.wrap_alike: Callable[[Any], Any]
        self.weight: Any = None
        self._weight_total: WeightTotal | None = None
        self._weight_of_pass: Any = None  # of the pass that `begin_pass` has begun
        self._backend = backend
        process_set = settings.reduction.process_set
        self._active = bool(process_set.included()) and (process_set.size() or 1) > 1
        self._names: dict[int, str] = {}  # by id of the variable
        self.known: list[Any] = []  # keeps the variables alive, so that no other object gets their ids
        self._local: list[Any] = []
        self._local_layers: list[Any] = []
        self.check: KerasCheck | None = None
        self.shards: Shards | None = None
        if self._active:
            self.check = KerasCheck(self, optimizer)
            if settings.shard:
                self.shards = Shards(getattr(optimizer, "inner_optimizer", optimizer), process_set, settings.prefix, backend)

    def add_local(self, variables: Iterable[Any] = (), layers: Iterable[Any] = ()) -> None:
        """Excludes the gradients of these variables, and of these layers' variables, from the reduction.

        The layers may be built later.

        Raises:
            UnsupportedError: the optimizer has ``shard=True``.

        """
        if self.settings.shard:
            raise UnsupportedError("shard=True does not work with variables that each rank trains for itself: leave shard out")
        self._local += variables
        self._local_layers += layers

    def take_computed(self, gradients: Sequence[Any]) -> bool:
        """Whether `_compute_gradients` returned these gradients last. A second call with the same gradients returns False."""
        computed, self.computed = self.computed, ()
        return len(computed) > 0 and len(computed) == len(gradients) and all(map(operator.is_, computed, gradients))

    def weigh(self, weight: Any) -> None:
        """Sets the weight of this rank's gradients; None: all ranks have the same weight.

        Raises:
            InvalidArgumentError: `weight` is no weight, the op is not Average, or with ``weighted=True`` the loss gives it.

        """
        if self.settings.weighted:
            raise InvalidArgumentError("with weighted=True the loss gives the weight: leave optimizer.weight or weighted out")
        self.weight = None if weight is None else self._backend.as_weight(weight, self.settings.reduction.op)

    def weight_of_pass(self) -> Any:
        """The weight of this rank's gradients of one pass; None: all ranks have the same weight. Call it once in each pass.

        Raises:
            InvalidArgumentError: ``weighted=True`` takes the weight from the loss, and the loss's divisor is not known.

        """
        if not self.settings.weighted or not self._active:
            return self.weight
        divisor = weight_of_last_loss(f"DistributedOptimizer ({self.settings.prefix})")
        return self._backend.as_weight(divisor, self.settings.reduction.op)

    def begin_pass(self) -> None:
        """Begins a pass whose gradients are added up before they are reduced: takes the weight of the pass.

        Raises:
            InvalidArgumentError: as for `weight_of_pass`; or an earlier pass had a weight, and this pass has none.
            UnsupportedError: the backend cannot add up weights.

        """
        weight = self._weight_of_pass = self.weight_of_pass()
        if weight is None and self._weight_total is None:
            return
        if weight is None:
            raise InvalidArgumentError(
                "with gradient accumulation either every pass has a weight, or none: set optimizer.weight before the first "
                "pass, and never set it to None"
            )
        if self._weight_total is None:
            self._weight_total = self._backend.new_weight_total()

    # In each pass but the last of a step, Keras adds the gradients to its sums. In the last pass Keras adds its sums to the
    # gradients, has the result reduced, and then resets the sums. The sum of the weights changes together with Keras's sums. So
    # the sum of the weights and Keras's sums stay as they are if a reduction fails.

    def add_weight(self) -> None:
        """Adds the weight of this pass to the sum of the weights, when Keras adds the gradients of this pass to its sums."""
        if self._weight_total is not None:
            self._weight_total.assign_add(self._weight_of_pass)

    def added_weight(self) -> Any:
        """The sum of the weights of this pass and of the earlier passes of this step; None: no pass has had a weight."""
        return None if self._weight_total is None else self._weight_total.read_value() + self._weight_of_pass

    def reset_weights(self) -> None:
        """Resets the sum of the weights, when Keras resets its sums of gradients after a step."""
        if self._weight_total is not None:
            self._weight_total.assign(0.0)

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any], weight: Any = None) -> list[Any]:
        """Reduces the gradients of one step, and scales them. Collective over the process set.

        Args:
            gradients: one tensor for each variable, eager or traced; None: the loss does not depend on the variable.
            variables: the variables of the gradients.
            weight: the weight of this rank's gradients, from `weight_of_pass` or `added_weight`.

        Returns:
            The gradients that the optimizer applies, in order, with the shapes and dtypes of `gradients`.

        Raises:
            MismatchError: the ranks' variables or settings differ.
            UnsupportedError: the backend cannot reduce one of the gradients, or there are a weight and scaled local gradients.
            HorovodInternalError: a rank failed.

        """
        settings = self.settings
        scaled = list(gradients)
        if not self._active:
            return self._scale(scaled, range(len(scaled)), settings.factor)
        local = self.local_ids()
        places = [place for place, variable in enumerate(variables) if not is_among(variable, local)]
        if len(places) < len(scaled) and settings.scale_local and weight is not None:
            raise UnsupportedError(
                "gradients that stay on this rank are divided by the number of ranks, which ignores its weight: "
                "pass scale_local_gradients=False, or leave the weight out"
            )
        shared = [variables[place] for place in places]
        mine = [gradients[place] for place in places]
        self._meet(shared, mine)
        comparison: Any = contextlib.nullcontext()
        if self.check is not None and self._backend.is_eager(gradients):
            self.check.before_update(mine)
        elif self.check is not None and not self.check.after_batches:
            comparison = self._backend.compare_when_run(mine, shared, settings.reduction, settings.start_check, settings.shard)
        with comparison:
            names = [self._names[id(variable)] for variable in shared]
            groups = self._places_of_groups(shared)
            step = GradientStep(mine, shared, names, groups, settings.reduction, weight)
            reduced = self._backend.reduce_gradients(step) if shared else []
        for place, gradient in zip(places, reduced, strict=True):
            scaled[place] = gradient
        self._scale(scaled, places, settings.factor)
        ranks = settings.reduction.process_set.size() or 1
        kept = sorted(set(range(len(scaled))).difference(places))
        return self._scale(scaled, kept, settings.factor / ranks if settings.scale_local else settings.factor)

    def _scale(self, gradients: list[Any], places: Iterable[int], factor: float) -> list[Any]:
        """Multiplies the gradients at these places of the list by the factor, in place, and returns the list."""
        if factor != 1.0:
            for place in places:
                if gradients[place] is not None:
                    gradients[place] = self._backend.scale(gradients[place], factor)
        return gradients

    def local_ids(self) -> set[int]:
        """The ids of the variables whose gradients stay on this rank."""
        weights = [weight for layer in self._local_layers for weight in layer.trainable_weights]
        return {id(variable) for variable in [*self._local, *weights]}

    def differs(self) -> bool:
        """Whether the optimizer's variables differ between ranks by design."""
        return self.settings.shard or bool(self.local_ids())

    def _places_of_groups(self, variables: Sequence[Any]) -> list[list[int]] | None:
        groups = self.settings.groups
        if groups is None:
            return None
        if isinstance(groups, int):
            count = min(groups, len(variables))
            return [list(part_of(len(variables), count, group)) for group in range(count)]
        places = {id(variable): place for place, variable in enumerate(variables)}
        found = [[places[id(variable)] for variable in group if id(variable) in places] for group in groups]
        return [members for members in found if members]

    def _meet(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Compares between the ranks the variables that are not in `known`, and names their gradients."""
        unknown = [place for place, variable in enumerate(variables) if id(variable) not in self._names]
        if not unknown:
            return
        new = [variables[place] for place in unknown]
        self._backend.check_supported()
        _refuse_overwritten(new)
        facts = facts_of(new)
        if self._backend.traces_steps:
            lacking = [" without a gradient" if gradients[place] is None else "" for place in unknown]
            facts = [(name, what + without) for (name, what), without in zip(facts, lacking, strict=True)]
        for name, variable in zip(self.agree(facts), new, strict=True):
            self._names[id(variable)] = f"{self.settings.prefix}.{len(self.known)}.{name}"
            self.known.append(variable)

    def agree(self, facts: Sequence[tuple[str, str]] = ()) -> list[str]:
        """Compares the settings and `facts` between the ranks. Returns the labels that the facts have on the first rank.

        Raises:
            MismatchError: the ranks differ.

        """
        process_set = self.settings.reduction.process_set
        common = self.settings.describe() + (self.shards.describe() if self.shards is not None else [])
        # Comparisons of all optimizers are counted together. So if the ranks first use different optimizers, they compare these
        # different optimizers with each other, and the error names them.
        exchange = f"keras_optimizers.first_step{next(_meetings[tuple(process_set.ranks or ())])}"
        labels, differing = [label for label, _ in (*common, *facts)], ""
        if not RUNTIME.joins:
            labels, differing = compare([*common, *facts], exchange, process_set)
        if differing:
            raise MismatchError(
                f"DistributedOptimizer in process set {process_set.process_set_id}: {differing}; build the same model and "
                "optimizer on every rank, and call DistributedOptimizer and load_model in the same order there"
            )
        return labels[len(common) :]


def _refuse_overwritten(variables: Sequence[Any]) -> None:
    """Refuses variables of float8 training: their "gradient" is their next value, which must not be summed."""
    found = [name_of(variable) for variable in variables if getattr(variable, "overwrite_with_gradient", False)]
    if found:
        raise UnsupportedError(
            f"DistributedOptimizer cannot reduce the values with which Keras {keras.__version__} overwrites variables of "
            f"float8 layers, such as {found[0]!r}: train without float8, for example with the policy mixed_bfloat16"
        )
