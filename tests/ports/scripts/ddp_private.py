"""Several processes: start it with torchrun."""

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dprmt import make_private

if not distributed.is_initialized():
    distributed.init_process_group("gloo")
torch.manual_seed(0)
points = torch.randn(240, 16)
rows = TensorDataset(points, (points[:, 0] > 0).long())
model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
size = 80 // distributed.get_world_size()
loader = DataLoader(rows, batch_size=size, sampler=DistributedSampler(rows))
budget = {"norms": "exact", "clipping_norm": 1, "batch_size": 80, "epochs": 4, "target_epsilon": 8, "delta": 1e-4}
private = make_private(model, optimizer, loader, **budget)
for batch in private:
    private.step(lambda rows: cross_entropy(model(rows[0]), rows[1], reduction="none"), batch)
score = float((model(points).argmax(1) == rows.tensors[1]).float().mean())
