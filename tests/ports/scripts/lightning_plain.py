"""A Lightning module."""

import warnings

import lightning
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", module="lightning")
torch.manual_seed(0)
points = torch.randn(400, 16)
rows = TensorDataset(points, (points[:, 0] > 0).long())
loader = DataLoader(rows, batch_size=80, shuffle=True)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.ReLU(), torch.nn.Linear(24, 2))

    def train_dataloader(self):
        return loader

    def configure_optimizers(self):
        sgd = torch.optim.SGD(self.net.parameters(), lr=1.0)
        return sgd

    def training_step(self, batch, index):
        points, labels = batch
        loss = cross_entropy(self.net(points), labels)
        self.log("loss", loss)
        return loss


module = Classifier()
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
lightning.Trainer(max_epochs=4, accelerator="cpu", **quiet).fit(module)
score = float((module.net(points).argmax(1) == rows.tensors[1]).float().mean())
