"""The core API: objects, compression, data loaders, elastic states, process sets, knobs; and Horovod's names."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "objects-sender",
        "an object that cannot be pickled is blamed on the rank's place among those that sent",
        "hvdlite/objects.py",
        "sent.append((state, rank, data[start : start + size]))",
        "sent.append((state, len(sent), data[start : start + size]))",
        guards.OBJECTS,
    ),
    Mutant(
        "objects-root-failure",
        "where the root cannot pickle its object the others get its text",
        "hvdlite/objects.py",
        '    if state == _FAILED:\n        raise InvalidArgumentError(f"broadcast_object:',
        '    if state == _FAILED and is_root:\n        raise InvalidArgumentError(f"broadcast_object:',
        guards.OBJECTS,
    ),
    Mutant(
        "data-queue-limit",
        "a loader reads one batch more ahead than it may",
        "hvdlite/data.py",
        "self._changed.wait_for(lambda: self._closed or len(self._ready) < self._limit)",
        "self._changed.wait_for(lambda: self._closed or len(self._ready) <= self._limit)",
        guards.DATA,
    ),
    Mutant(
        "data-error-lost",
        "what a loader's thread raises ends the pass without a word",
        "hvdlite/data.py",
        "            raise self._error\n",
        "            return\n",
        guards.DATA,
    ),
    Mutant(
        "elastic-shallow",
        "a state that was restored is the saved one itself, and changes with it",
        "hvdlite/elastic/kept.py",
        "self._load(_copy(self._tree, self._kept, self._kept))",
        "self._load(self._tree)",
        guards.ELASTIC,
    ),
    Mutant(
        "elastic-stale-note",
        "a note about hosts that is older than the last one counts again",
        "hvdlite/elastic/state.py",
        "if timestamp > latest:",
        "if timestamp:",
        guards.ELASTIC,
    ),
    Mutant(
        "elastic-sampler-union",
        "after a sync a sampler knows only what this rank has processed",
        "hvdlite/torch/elastic/state.py",
        "processed = set().union(*allgather_object(self.value.processed_indices))",
        "processed = set(allgather_object(self.value.processed_indices)[rank()])",
        ("tests/adapters/torch/test_elastic_state.py",),
    ),
    Mutant(
        "shim-module-twice",
        "a module under Horovod's name is another one than under ours",
        "hvdlite/horovod/finder.py",
        "module = importlib.import_module(self._own)\n        self._spec = module.__spec__",
        "module = importlib.util.module_from_spec(importlib.util.find_spec(self._own))\n"
        "        module.__spec__.loader.exec_module(module)\n        self._spec = module.__spec__",
        guards.SHIM,
    ),
    Mutant(
        "shim-doors",
        "horovod.keras is not ours but the shim's own",
        "hvdlite/horovod/finder.py",
        'DOORS = ("torch", "tensorflow", "keras")',
        'DOORS = ("torch", "tensorflow")',
        guards.SHIM,
    ),
    Mutant(
        "shim-spawned",
        "processes that multiprocessing starts afresh do not know Horovod's names",
        "hvdlite/horovod/install.py",
        "    spawn.get_preparation_data = prepare_with_finder\n",
        "",
        guards.SHIM,
    ),
)
