"""Names of collectives, by which the engine pairs the ranks' tensors.

Eagerly operations run one after another, so a name given by the user is used as it is, and "" stands for none: the
operation is numbered when it runs. In a graph operations are in flight together and in any order, so each has a name:

    train_step/scope/loss            the tf.functions being traced, the name scope, the name
    train_step/scope/loss_1          the second operation of that name in the same graph

It depends on the program alone and not on how often or in which order functions were traced, so it is the same on all
ranks that run the same program.
"""

import re
from collections import Counter
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

__all__ = ["collective_name", "normalise"]

_taken: WeakKeyDictionary[tf.Graph, Counter[str]] = WeakKeyDictionary()


def normalise(name: str) -> str:
    """A TensorFlow name, with underscores for all characters except letters, digits, dots, dashes and slashes."""
    return re.sub(r"[^a-zA-Z0-9_.\-/]", "_", name)


def collective_name(name: str | None, default: str = "", ignore_scope: bool = False, scoped: bool = True) -> str:
    """The name of an operation that is about to be made, for `hvdlite.tensorflow.collective_ops`.

    Args:
        name: the user's, or None.
        default: stands in for it in graphs.
        ignore_scope: use the user's name alone. It must then be the only one in flight.
        scoped: is the name scope a part of the name? It is not where the name is known to be the same on all ranks, and the
            scope may be numbered by what this rank has made before, as Keras's are.
    """
    if tf.executing_eagerly():
        return name or ""
    if name is not None and ignore_scope:
        return name
    functions, graph = _functions()
    parts = (*functions, tf.get_current_name_scope() if scoped else "", normalise(default if name is None else name))
    full = "/".join(part for part in parts if part)
    taken = _taken.setdefault(graph, Counter())
    taken[full] += 1
    return full if taken[full] == 1 else f"{full}_{taken[full] - 1}"


def _functions() -> tuple[list[str], tf.Graph]:
    """The tf.functions being traced, the outermost first, and the graph of the outermost one.

    Branches and loops have graphs of their own, whose names are numbered through the process: not the same on all ranks.
    """
    graph = tf.compat.v1.get_default_graph()
    names: list[str] = []
    while isinstance(graph, FuncGraph):
        if type(graph) is FuncGraph:
            names.insert(0, normalise(graph.name))
        if not isinstance(graph.outer_graph, FuncGraph):
            break
        graph = graph.outer_graph
    return names, graph
