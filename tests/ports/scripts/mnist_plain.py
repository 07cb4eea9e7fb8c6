"""Digits: a small convolutional network."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def digits(count):
    labels = torch.arange(count) % 2
    images = torch.randn(count, 1, 14, 14) / 2
    images[labels == 1, :, 4:10, 6:8] += 2.0
    return TensorDataset(images, labels)


def accuracy(model, data):
    model.eval()
    with torch.no_grad():
        right = model(data.tensors[0]).argmax(1) == data.tensors[1]
    model.train()
    return float(right.float().mean())


torch.manual_seed(0)
loader, test = DataLoader(digits(240), batch_size=40, shuffle=True), digits(200)
model = nn.Sequential(
    nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(3):
    for images, labels in loader:
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: accuracy {accuracy(model, test):.2f}")
score = accuracy(model, test)
