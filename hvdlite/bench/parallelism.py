"""Measures torch's FSDP2 and pipelines on the backends "hvdlite" and gloo: `mpirun -n 2 python -m hvdlite.bench.parallelism`.

FSDP2 trains a transformer of 4 layers of width 512. The program measures a step on each backend, and the same step without
sharding on every rank. The difference is communication that computation does not hide, and the work of FSDP2 itself; torch's
backend "fake", which sends no messages, shows the work of FSDP2 alone. The processor time is printed as well, because it is
more exact on a busy machine.

The pipeline has torch's schedule 1F1B, and stages that sleep instead of computing, so that ranks do not compete for a core. The
program prints the bubble, that is the part of the time in which a rank has no microbatch, and the smallest bubble of the
schedule, (p-1)/(m+p-1) with p ranks and m microbatches. The time of one microbatch is measured without a pipeline, alternately
with the pipeline, because a microbatch takes longer than its stage sleeps.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

_LAYERS, _WIDTH, _BATCH, _LENGTH = 4, 512, 2, 64
_STEPS, _ROUNDS = 2, 7
_MICROBATCHES, _SLEEP, _MESSAGE = 8, 0.1, 16384  # a stage sleeps _SLEEP seconds in forward, and again in backward


def _transformer() -> Any:
    import torch

    torch.manual_seed(0)
    make = torch.nn.TransformerEncoderLayer
    return torch.nn.Sequential(*(make(_WIDTH, 8, 4 * _WIDTH, 0.0, batch_first=True) for _ in range(_LAYERS)))


def _stepper(group: Any) -> Callable[[], None]:
    """A function that makes a training step, sharded over the ranks of a group; without sharding if `group` is None."""
    import torch

    model = _transformer()
    if group is not None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(_BATCH, _LENGTH, _WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def _sharded() -> None:
    """Measures steps without sharding and on each backend alternately, so that noise affects all alike, and prints times."""
    import torch.distributed as dist
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend

    ways: dict[str, Any] = {"alone": None}
    ways.update((backend, dist.new_group(backend=backend)) for backend in ("hvdlite", "gloo", "fake"))
    steps = {name: _stepper(group) for name, group in ways.items()}
    for what, clock in (("a step", time.perf_counter), ("the processor's time of a step", time.process_time)):
        times: dict[str, list[float]] = {name: [] for name in ways}
        for round_number in range(_ROUNDS + 1):
            for name, step in steps.items():
                dist.barrier()
                begin = clock()
                for _ in range(_STEPS):
                    step()
                if round_number:
                    times[name].append((clock() - begin) / _STEPS)
        found = {name: median(each) for name, each in times.items()}
        exposed = {name: seconds - found["alone"] for name, seconds in found.items()}
        if dist.get_rank() == 0:
            print(f"FSDP2, {what}: " + ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in found.items()))
            ratios = (f"{name} {exposed[name] / exposed['gloo']:.2f}" for name in ("hvdlite", "fake"))
            print(f"added time, as a multiple of gloo's: {', '.join(ratios)}")


def _sleeping() -> Any:
    """A module that takes time without using a core."""
    import torch

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            time.sleep(_SLEEP)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            time.sleep(_SLEEP)
            return grads[0].clone()

    class Stage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, x: Any) -> Any:
            return Sleep.apply(x * self.weight)  # type: ignore[no-untyped-call]

    return Stage()


def _pipelined(backend: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    group = dist.new_group(backend=backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(_sleeping(), rank, ranks, torch.device("cpu"), group=group)
    pipeline = Schedule1F1B(stage, _MICROBATCHES, loss_fn=lambda output, _: output.mean())
    data = torch.randn(_MICROBATCHES, _MESSAGE)
    given: dict[str, Any] = {"target": data} if rank == ranks - 1 else {}
    alone = _sleeping()
    times, works = [], []
    for _ in range(_ROUNDS + 1):
        dist.barrier()
        begin = time.perf_counter()
        pipeline.step(*([data] if rank == 0 else []), **given)
        dist.barrier()
        ended = time.perf_counter()
        alone(data[:1].clone().requires_grad_()).mean().backward()
        times.append(ended - begin)
        works.append(time.perf_counter() - ended)
    took, work = median(times[1:]), median(works[1:])
    bubble, own = 1 - _MICROBATCHES * work / took, (ranks - 1) / (_MICROBATCHES + ranks - 1)
    if rank == 0:
        said = f"a step {took * 1e3:.1f} ms, a microbatch alone {work * 1e3:.1f} ms"
        print(f"1F1B on {backend}: {said}, bubble {bubble:.4f}, smallest bubble of the schedule {own:.4f}")


def main() -> None:
    """Measures FSDP2 and the pipelines on the ranks of this job."""
    import torch
    import torch.distributed as dist

    import hvdlite.torch.distributed

    torch.set_num_threads(1)
    dist.init_process_group(hvdlite.torch.distributed.BACKEND)
    _sharded()
    for backend in ("hvdlite", "gloo"):
        _pipelined(backend)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
