"""Reviews to opinions: word vectors, averaged over each review's own words."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)


def review(label):
    words = torch.randint(2, 60, (int(torch.randint(4, 12, ())),))
    words[::2] = torch.randint(60, 80, words[::2].shape) if label else torch.randint(80, 100, words[::2].shape)
    return words, label


def pad(rows):
    words, labels = zip(*rows, strict=True)
    return pad_sequence(list(words), batch_first=True), torch.tensor(labels)


class Opinion(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.hidden, self.head = nn.Embedding(100, 16, padding_idx=0), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, words):
        own = (words != 0)[..., None]
        mean = (self.table(words) * own).sum(1) / own.sum(1)
        return self.head(torch.relu(self.hidden(mean)))


loader = DataLoader([review(label % 2) for label in range(400)], batch_size=80, shuffle=True, collate_fn=pad)
model = Opinion()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
model.train()
losses = []
for _ in range(5):
    for words, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(words), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
model.eval()
words, labels = pad([review(label % 2) for label in range(100)])
score = float((model(words).argmax(1) == labels).float().mean())
