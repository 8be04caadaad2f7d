"""An example for each name of torch.md. The reference shows it below the name; the tests run it on two ranks."""

import torch

import hvdlite.torch as hvd

hvd.init()

# --- training ---


def DistributedOptimizer():
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    model(torch.full((1, 2), 2.0 * hvd.rank())).sum().backward()  # gradient 0 on rank 0, 2 on rank 1
    assert model.weight.grad.tolist() == [[1.0, 1.0]]  # the average of both
    optimizer.step()


def broadcast_parameters():
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, hvd.rank() + 5.0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    assert model.weight.tolist() == [[5.0, 5.0]]


def broadcast_optimizer_state():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + hvd.rank()))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # moments, step counters and options
    assert optimizer.param_groups[0]["lr"] == 0.1


def SyncBatchNorm():
    layer = hvd.SyncBatchNorm(1, affine=False)
    batch = torch.tensor([[4.0 * hvd.rank()], [4.0 * hvd.rank()]])  # 0, 0 on rank 0; 4, 4 on rank 1
    normalised = layer(batch)  # the mean of all four numbers is 2, and so is their standard deviation
    assert torch.allclose(normalised, torch.full((2, 1), 2.0 * hvd.rank() - 1), atol=1e-4)


def SyncBatchNorm_convert_sync_batchnorm():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(model[1], hvd.SyncBatchNorm)


def check_consistency():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.check_consistency(model, optimizer)  # now
    hvd.check_consistency(model, optimizer, every=1000)  # and after each 1000 steps of the optimizer


# --- collectives with gradients ---


def allreduce():
    x = torch.tensor([2.0 * hvd.rank()], requires_grad=True)
    mean = hvd.allreduce(x, name="loss")
    assert mean.tolist() == [1.0]
    mean.sum().backward()  # the gradient is reduced as the tensor was: here averaged
    assert x.grad.tolist() == [1.0]


def grouped_allreduce():
    x, y = torch.ones(2, requires_grad=True), torch.ones(3) * hvd.rank()
    first, second = hvd.grouped_allreduce([x, y], op=hvd.Sum)
    assert second.tolist() == [1.0, 1.0, 1.0]
    first.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def sparse_allreduce_async():
    row = torch.tensor([[hvd.rank()]])  # rank 0 has row 0 of a matrix of shape [4, 2], rank 1 has row 1
    gradient = torch.sparse_coo_tensor(row, torch.ones(1, 2), (4, 2))
    wait = hvd.sparse_allreduce_async(gradient, name="embedding", op=hvd.Sum)
    assert wait().to_dense().sum(dim=1).tolist() == [2.0, 2.0, 0.0, 0.0]


def allgather():
    x = torch.full((1 + hvd.rank(), 2), float(hvd.rank()), requires_grad=True)
    rows = hvd.allgather(x)  # 1 row of rank 0, 2 rows of rank 1
    assert rows[:, 0].tolist() == [0.0, 1.0, 1.0]
    rows.sum().backward()
    assert x.grad.shape == x.shape


def grouped_allgather():
    ids, rows = hvd.grouped_allgather([torch.tensor([hvd.rank()]), torch.ones(2, 3)])
    assert (ids.tolist(), rows.shape) == ([0, 1], (4, 3))


def broadcast():
    x = torch.tensor([float(hvd.rank())], requires_grad=True)
    same = hvd.broadcast(x, root_rank=1)
    assert same.tolist() == [1.0]
    same.sum().backward()  # the root gets the average of the ranks' gradients, the others zeros
    assert x.grad.tolist() == [float(hvd.rank())]


def alltoall():
    x = torch.tensor([10.0, 11.0]) + 100 * hvd.rank()
    assert hvd.alltoall(x).tolist() == [[10.0, 110.0], [11.0, 111.0]][hvd.rank()]
    _, received_splits = hvd.alltoall(x, splits=[0, 2])  # all rows to rank 1
    assert received_splits.tolist() == [[0, 0], [2, 2]][hvd.rank()]


def reducescatter():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    mine = hvd.reducescatter(x, op=hvd.Sum)
    assert mine.tolist() == [[2.0], [4.0]][hvd.rank()]
    mine.sum().backward()


def grouped_reducescatter():
    first, second = hvd.grouped_reducescatter([torch.ones(4, 3), torch.tensor([1.0, 2.0])], op=hvd.Sum)
    assert first.shape == (2, 3)
    assert second.tolist() == [[2.0], [4.0]][hvd.rank()]


# --- messages with gradients ---


def send():
    if hvd.rank() == 0:
        x = torch.tensor([2.0], requires_grad=True)
        hvd.send(x, dst=1).backward()  # receives the gradient from rank 1
        assert x.grad.tolist() == [3.0]
    else:
        (3 * hvd.recv(torch.empty(1, requires_grad=True), src=0)).backward()


def recv():
    if hvd.rank() == 0:
        hvd.send(torch.tensor([2.0]), dst=1)
    else:
        assert hvd.recv(torch.empty(1), src=0).tolist() == [2.0]  # without a gradient: as hvdlite.recv


# --- a codec that keeps state ---


def BucketCodec():
    from hvdlite.compression import BucketCodec

    class Halves(BucketCodec):  # sends float16
        def reduce(self, gradients, loss_scale):
            sent = [gradient.whole().half() for gradient in gradients]
            yield sent  # one round: afterwards they are reduced
            return [each.float() for each in sent]

        def describe(self):
            return "halves"

    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=Halves(), start_check="off")
    model(torch.full((1, 2), 2.0 * hvd.rank())).sum().backward()
    assert model.weight.grad.tolist() == [[1.0, 1.0]]


def CodedGradient():
    from hvdlite.torch.coded_bucket import CodedGradient

    gradient = CodedGradient("weight", (2,), torch.float32, value=torch.tensor([1.0, 2.0]), state={})
    gradient.state["residual"] = torch.tensor([0.5, 0.0])  # what the codec has lost in the step before
    assert gradient.with_residual(loss_scale=1.0).tolist() == [1.5, 2.0]
    assert CodedGradient("weight", (2,), torch.float32, value=None, state={}).whole().tolist() == [0.0, 0.0]


# --- elastic ---


def Job():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    job = hvd.elastic.Job(model=model, optimizer=optimizer, scheduler=scheduler, batch_size=4)
    job.register_reset_callbacks([lambda: print("now on", hvd.size(), "ranks")])
    for batch in job.batches(torch.arange(8.0).reshape(8, 1), epochs=2):  # 2 samples on each of 2 ranks
        with job.step():
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if job.ends_epoch:
                scheduler.step()
    assert (job.position, job.epoch) == (4, 2)


def Job_committed():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), shard=True)
    job = hvd.elastic.Job(model=model, optimizer=optimizer, batch_size=4, commit_every=2)
    for batch in job.batches(torch.arange(12.0).reshape(12, 1), epochs=1):
        with job.step():
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        # After step 1 a loss would take the ranks back to the beginning, and after the others it would take back no step.
        assert job.committed == (0 if job.position == 1 else job.position)


def ElasticSampler():
    sampler = hvd.elastic.ElasticSampler(range(8), shuffle=False)
    loader = torch.utils.data.DataLoader(range(8), batch_size=2, sampler=sampler)
    for index, batch in enumerate(loader):
        assert batch.tolist() == sampler.get_indices(index, 2)
        sampler.record_batch(index, 2)
        break
    assert sampler.processed_num == 4  # 2 samples on each of 2 ranks
    sampler.set_epoch(1)  # at the end of an epoch


def ElasticSampler_record_indices():
    sampler = hvd.elastic.ElasticSampler(range(8), shuffle=False)
    sampler.record_indices(range(4))  # these need not be read again
    sampler.reset()  # divides the rest
    assert list(sampler) == [[4, 6], [5, 7]][hvd.rank()]


def ElasticSampler_state_dict():
    sampler = hvd.elastic.ElasticSampler(range(8), shuffle=False)
    sampler.record_indices([0, 1])
    resumed = hvd.elastic.ElasticSampler(range(8), shuffle=False)
    resumed.load_state_dict(sampler.state_dict())
    assert len(resumed) == 3  # 6 samples are left for 2 ranks


def TorchState():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, epoch=0)
    state.sync()  # rank 0's weights on all ranks
    with torch.no_grad():
        model.weight.zero_()
    state.commit()  # saves them
    state.epoch = 5
    state.restore()
    assert state.epoch == 0


def run():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, epoch=0)

    @hvd.elastic.run  # hvdlite calls train again after the loss of a rank, with the last commit
    def train(state):
        while state.epoch < 2:
            state.model(torch.ones(4, 2)).square().mean().backward()
            state.optimizer.step()
            state.optimizer.zero_grad()
            state.epoch += 1
            state.commit()

    train(state)
