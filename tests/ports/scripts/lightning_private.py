"""A Lightning module."""

import warnings

import lightning
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from dprmt import make_private

warnings.filterwarnings("ignore", module="lightning")
torch.manual_seed(0)
points = torch.randn(400, 16)
rows = TensorDataset(points, (points[:, 0] > 0).long())
loader = DataLoader(rows, batch_size=80, shuffle=True)


class Classifier(lightning.LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.ReLU(), torch.nn.Linear(24, 2))

    def train_dataloader(self):
        return self.private.epoch()

    def configure_optimizers(self):
        sgd = torch.optim.SGD(self.net.parameters(), lr=1.0)
        self.private = make_private(self.net, sgd, loader, norms="exact", clipping_norm=1, epochs=4, noise_multiplier=1)
        return sgd

    def training_step(self, batch, index):
        self.private.step(lambda row: cross_entropy(self.net(row[0]), row[1], reduction="none"), batch)


module = Classifier()
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
lightning.Trainer(max_epochs=4, accelerator="cpu", **quiet).fit(module)
score = float((module.net(points).argmax(1) == rows.tensors[1]).float().mean())
print(module.private.epsilon(delta=1e-4))
