"""What tests compare a training by `hvdlite.torch.elastic.Job` with: one process that trains with the whole batches."""

# The beginning of a program. It is text, because programs cannot import modules of the tests. samples(epoch) gives the samples
# of an epoch, each a pair of an input and a target. The batches are those of a job with seed 4, and the learning rate falls
# after each epoch.
TRAIN_ALONE = """
    import random
    import torch

    def train_alone(model, optimizer, samples, batch_size, epochs):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for epoch in range(epochs):
            chosen = samples(epoch)
            order = list(range(len(chosen)))
            random.Random(f"4 {epoch}").shuffle(order)
            for begin in range(0, len(order), batch_size):
                x, y = torch.utils.data.default_collate([chosen[index] for index in order[begin : begin + batch_size]])
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()
"""
