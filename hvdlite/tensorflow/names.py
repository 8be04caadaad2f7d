"""Names of collectives. The engine matches the ranks' tensors by name.

Eagerly operations run one after another, so the user's name is used unchanged. The name "" means that the operation gets a
number when it runs. In a graph several operations are in flight together, in any order, so each needs a name of its own:

    train_step/scope/loss            the tf.functions being traced, the name scope, the name
    train_step/scope/loss_1          the second operation of that name in the same graph

A name depends only on the program, and not on the number or the order of tracings. So all ranks that run the same program have
the same names.
"""

import re
from collections import Counter
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

_taken: WeakKeyDictionary[tf.Graph, Counter[str]] = WeakKeyDictionary()


def normalise(name: str) -> str:
    """A TensorFlow name: underscores replace all characters except letters, digits, dots, dashes and slashes."""
    return re.sub(r"[^a-zA-Z0-9_.\-/]", "_", name)


def collective_name(name: str | None, default: str = "", ignore_scope: bool = False, scoped: bool = True) -> str:
    """The name of an operation that is about to be made, for `hvdlite.tensorflow.collective_ops`.

    Args:
        name: the user's name, or None.
        default: the name that a graph uses if `name` is None.
        ignore_scope: True: use the user's name alone. No other operation of that name may be in flight.
        scoped: True: the name scope is a part of the name. False is for names that are known to be the same on all ranks, while
            the scope may differ, because Keras numbers its scopes, and the number depends on the layers that a rank has made.
    """
    if tf.executing_eagerly():
        return name or ""
    if name is not None and ignore_scope:
        return name
    functions, _ = _functions()
    parts = (*functions, tf.get_current_name_scope() if scoped else "", normalise(default if name is None else name))
    return numbered("/".join(part for part in parts if part))


def numbered(name: str) -> str:
    """The name. In a graph it gets a number if another operation of the graph, or of a branch or loop in it, has the name."""
    if tf.executing_eagerly():
        return name
    _, graph = _functions()
    taken = _taken.setdefault(graph, Counter())
    taken[name] += 1
    return name if taken[name] == 1 else f"{name}_{taken[name] - 1}"


def _functions() -> tuple[list[str], tf.Graph]:
    """The names of the functions that are being traced, the outermost first, and the graph of the outermost one.

    Branches and loops have graphs, too, but these graphs' names are left out: TensorFlow numbers them in each process, and the
    numbers may differ between ranks. For the same reason the number of a function's backward function is left out.
    """
    graph = tf.compat.v1.get_default_graph()
    names: list[str] = []
    while isinstance(graph, FuncGraph):
        if type(graph) is FuncGraph:
            names.insert(0, normalise(re.sub(r"^(__backward_.*)_\d+$", r"\1", graph.name)))
        if not isinstance(graph.outer_graph, FuncGraph):
            break
        graph = graph.outer_graph
    return names, graph
