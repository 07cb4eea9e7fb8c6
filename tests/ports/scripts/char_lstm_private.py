"""Names to languages: a character LSTM, read at each name's own last character."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from dprmt import make_private

torch.manual_seed(0)
ENDINGS = ("ova", "ini")


def name(label):
    start = torch.randint(97, 123, (int(torch.randint(2, 6, ())),))
    return torch.cat([start, torch.tensor([ord(letter) for letter in ENDINGS[label]])]) - 96, label


def collate(rows):
    letters, labels = zip(*rows, strict=True)
    lengths = torch.tensor([len(row) for row in letters])
    return pad_sequence(list(letters), batch_first=True), lengths, torch.tensor(labels)


class CharLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.lstm, self.head = nn.Embedding(27, 16), nn.LSTM(16, 24, batch_first=True), nn.Linear(24, 2)

    def forward(self, letters, lengths):
        states, _ = self.lstm(self.table(letters))
        return self.head(states[torch.arange(len(letters)), lengths - 1])


names = [name(label % 2) for label in range(160)]
loader = DataLoader(names, batch_size=40, shuffle=True, collate_fn=collate)
model = CharLSTM()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
private = make_private(model, optimizer, loader, norms="exact", clipping_norm=1, epochs=4, target_epsilon=8, delta=1e-4)
for batch in private:
    private.step(lambda rows: cross_entropy(model(*rows[:2]), rows[2], reduction="none"), batch)
print(private.epsilon())
model.eval()
letters, lengths, labels = collate([name(label % 2) for label in range(100)])
score = float((model(letters, lengths).argmax(1) == labels).float().mean())
