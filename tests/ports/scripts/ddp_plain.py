"""Several processes: start it with torchrun."""

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if not distributed.is_initialized():
    distributed.init_process_group("gloo")
torch.manual_seed(0)
points = torch.randn(240, 16)
rows = TensorDataset(points, (points[:, 0] > 0).long())
model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 2))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
size = 80 // distributed.get_world_size()
loader = DataLoader(rows, batch_size=size, sampler=DistributedSampler(rows))
for epoch in range(4):
    loader.sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
score = float((model(points).argmax(1) == rows.tensors[1]).float().mean())
