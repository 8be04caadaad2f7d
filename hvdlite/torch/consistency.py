"""`check_consistency` for PyTorch: modules, optimizers and tensors of all ranks are compared (`hvdlite.consistency`)."""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from numbers import Number
from typing import Any

import torch

from hvdlite.consistency import ConsistencyChecker, RankComparison, check_objects, leaves_of_arguments
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.leaves import Leaf, leaves_in, path_to
from hvdlite.process_sets import ProcessSet, global_process_set, root_of
from hvdlite.requests import Adasum
from hvdlite.torch.arguments import require_initialized
from hvdlite.torch.leaves import leaf_of
from hvdlite.torch.state import broadcast_calls
from hvdlite.torch.steps import is_inner_step


def check_consistency(
    *objects: Any, every: int | None = None, buffers: bool = False, process_set: ProcessSet | None = None
) -> ConsistencyChecker | None:
    """Checks that all ranks hold the same values, bit by bit. Collective over the process set.

    NaNs and infinities are compared by their bits, too. The check changes no object. It copies a tensor to contiguous host
    memory, one tensor at a time, if the tensor is on a GPU, is not in row-major order in memory (``channels_last``), or is a
    lazy conjugate or negative.

    Args:
        objects: the objects to compare:

            - modules: their parameters, frozen ones too. Buffers only with `buffers`.
            - optimizers, wrapped or not: the state of each parameter (moments, step counters), and each option of a parameter
              group whose value is a number, a text, a tensor or a list of these (learning rate, weight decay). The state is
              left out if it differs between ranks by design: with ``shard=True`` each rank has a part of it, and with
              ``op=hvd.Adasum`` each rank takes its own steps.
            - tensors, arrays, numbers, texts, and dicts, lists and tuples of all these, such as ``scheduler.state_dict()``.
        every: None to compare now. With a number n, hvdlite compares in ``step()`` of the first optimizer among `objects`,
            after every n steps. A backward pass without ``step()`` does not count. Wrap the optimizer before this call. Without
            an optimizer, call ``step()`` of the returned checker yourself.
        buffers: compare the buffers of modules, too? Not by default, because running statistics, such as those of BatchNorm,
            come from each rank's own batches.
        process_set: the ranks to compare; None: the ranks of the first wrapped optimizer in `objects`, or all ranks if there is
            no wrapped optimizer. The call does nothing on a rank that is not a member.

    Returns:
        None; or, with `every`, the `hvdlite.consistency.ConsistencyChecker`, whose ``close()`` ends the comparisons. You need
        not keep the checker if `objects` has an optimizer, because the optimizer keeps it.

    Raises:
        MismatchError: (on all ranks, with the same text) values differ; or the names, number, dtypes or shapes of the values
            differ; or the ranks passed different `every`. The text says which ranks differ and in how many values. It
            gives the name, dtype and shape of the first differing value, and this value's first differing element as each rank
            has it. With `every` this call compares no values: the optimizer's ``step()`` compares them after the step, and
            raises this error. In this case the text also names the step, and the last step after which all ranks were equal.
        InvalidArgumentError, UnsupportedError: this rank cannot read an object, such as a tensor of which each rank has a part
            (a sharded DTensor). The other ranks raise InvalidArgumentError; with `every` they raise MismatchError.
        InvalidArgumentError: (on this rank only) another argument is wrong; or, with `every`, the class of the optimizer does
            not call the hooks that run after a step.
        NotInitializedError: `init` has not been called.
        HorovodInternalError: a rank failed.

    """
    optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
    if process_set is None:
        wrapped = [each._hvdlite.settings.process_set for each in optimizers if hasattr(each, "_hvdlite")]
        process_set = wrapped[0] if wrapped else global_process_set

    # The optimizer's hook refers to the checker, and the checker has only a weak reference to the optimizer. Otherwise the two
    # would refer to each other, and only the garbage collector could free them.
    followed = weakref.ref(optimizers[0]) if optimizers and every is not None else None
    kept: list[Any] = [followed if followed is not None and each is optimizers[0] else each for each in objects]

    def leaves(given: Sequence[Any]) -> Iterable[tuple[str, Leaf]]:
        present = [each() if isinstance(each, weakref.ref) else each for each in given]
        return leaves_of_arguments(present, _TorchLeaves(present, buffers))

    def remedy(among: ProcessSet) -> str:
        return f"{broadcast_calls(among)} give all ranks the values of rank {root_of(among)}"

    checker = check_objects(kept, every, RankComparison(leaves, process_set, remedy))
    if checker is not None and followed is not None:
        _follow(checker, optimizers[0])
    return checker


def _follow(checker: ConsistencyChecker, optimizer: torch.optim.Optimizer) -> None:
    """Installs a hook that counts the optimizer's steps.

    Raises:
        InvalidArgumentError: the optimizer's class calls no hooks.

    """
    if not hasattr(optimizer, "_optimizer_step_post_hooks"):
        raise InvalidArgumentError(
            f"check_consistency(every={checker.every}): {type(optimizer).__name__} calls no hooks after its steps, because its "
            "class never calls Optimizer.__init__. Wrap it with hvd.DistributedOptimizer first"
        )

    def count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not is_inner_step(optimizer):
            checker.step()

    checker.follow(optimizer.register_step_post_hook(count).remove)


class _TorchLeaves:
    """Finds the leaves of torch's objects: the values that ranks compare, each with a name (`hvdlite.leaves`).

    The name of a parameter comes from the first module that has the parameter. If no module has it, the name comes from its
    optimizer. If that optimizer is not wrapped, the name is the parameter's place in the optimizer's parameter groups.
    """

    def __init__(self, objects: Iterable[Any], buffers: bool) -> None:
        self._buffers = buffers
        modules = [each for each in objects if isinstance(each, torch.nn.Module)]
        self._names = {param: name for module in reversed(modules) for name, param in module.named_parameters()}

    def __call__(self, value: Any, path: str) -> Iterable[Leaf] | None:
        """See `hvdlite.leaves.FindLeaves`."""
        if isinstance(value, torch.Tensor):
            return _leaves_of_tensor(value, path)
        if isinstance(value, torch.nn.Module):
            return self._of_module(value, path)
        if isinstance(value, torch.optim.Optimizer):
            return self._of_optimizer(value, path)
        return None

    def _of_module(self, module: torch.nn.Module, path: str) -> Iterator[Leaf]:
        named: list[tuple[str, torch.Tensor]] = list(module.named_parameters())
        if self._buffers:
            named += module.named_buffers()
        require_initialized(named)
        for name, tensor in named:
            yield from _leaves_of_tensor(tensor, path_to(path, name))

    def _of_optimizer(self, optimizer: torch.optim.Optimizer, path: str) -> Iterator[Leaf]:
        wrapping: Any = getattr(optimizer, "_hvdlite", None)
        names = {} if wrapping is None else wrapping.names
        for group_place, group in enumerate(optimizer.param_groups):
            options = {key: value for key, value in group.items() if key != "params" and _is_plain(value)}
            yield from leaves_in(options, path_to(path, f"group {group_place}"), self)
            if wrapping is not None and (wrapping.settings.shard or wrapping.settings.op == Adasum):
                continue
            for place, param in enumerate(group["params"]):
                name = self._names.get(param) or names.get(param) or f"{group_place}.{place}"
                yield from leaves_in(optimizer.state.get(param, {}), path_to(path, f"state of {name}"), self)


def _leaves_of_tensor(tensor: torch.Tensor, path: str) -> list[Leaf]:
    placements = getattr(tensor, "placements", None)  # only a DTensor has them
    if placements is not None:
        if not all(placement.is_replicate() for placement in placements):
            raise UnsupportedError(
                f"check_consistency: {repr(path) if path else 'an argument'} is a DTensor of which each rank has a part "
                f"({placements}). Compare only tensors "
                "that are whole on all ranks, or compare tensor.to_local() in a process set of ranks with the same part"
            )
        tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    if tensor.layout is torch.sparse_coo:
        return [
            leaf_of(path_to(path, name), part) for name, part in (("values", tensor._values()), ("indices", tensor._indices()))
        ]
    return [leaf_of(path, tensor)]


def _is_plain(option: Any) -> bool:
    """Is this an option whose value can be compared? Functions, for example, cannot be compared."""
    return isinstance(option, Number | str | torch.Tensor) or (isinstance(option, list | tuple) and all(map(_is_plain, option)))
