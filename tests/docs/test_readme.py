"""The README's examples run as they stand (those with prompts are doctests already)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dprmt.cli import build_parser, main

A_TRAINER = """
sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, num_labels=2, **sizes))
data = [{"input_ids": [1 + i % 7, 2, 3 + i % 5], "labels": i % 2} for i in range(280)]
how = {"max_steps": 1, "per_device_train_batch_size": 64, "report_to": []}
args = transformers.TrainingArguments(folder, use_cpu=True, save_strategy="no", **how)
"""
A_LOOP = """
from torch.nn.functional import cross_entropy
rows = torch.utils.data.TensorDataset(torch.randn(40, 6), torch.arange(40) % 2)
loader, model = torch.utils.data.DataLoader(rows, batch_size=10, shuffle=True), torch.nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
README = Path(__file__).parents[2] / "README.md"


TEXT = README.read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::FutureWarning:transformers")
def test_training_example_runs(tmp_path: Path) -> None:
    """With a Trainer that a user brings, whose model has a layer wide enough for an estimate."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("dprmt.training.clipping")
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    script, loop = [block for block in blocks if ">>>" not in block]
    names: dict[str, Any] = {"transformers": transformers, "folder": str(tmp_path)}
    exec(compile(A_TRAINER, "trainer", "exec"), names)
    before = {name: value.clone() for name, value in names["model"].named_parameters()}
    exec(compile(script, "README.md", "exec"), names)
    assert not any(value.equal(before[name]) for name, value in names["model"].named_parameters())
    private = names["trainer"].private
    assert private.steps_charged == 1
    assert 3.5 < private.epsilon().upper <= 3.8
    assert str(private.mechanism.norms) == "ExactNorms()"
    names = {"torch": pytest.importorskip("torch")}
    exec(compile(A_LOOP, "loop", "exec"), names)
    exec(compile(loop, "README.md", "exec"), names)
    assert names["private"].steps_charged == 12


def test_commands_parse_and_one_setting_has_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command is one, and its answer is the number next to it. `test_page_numbers` holds the table."""
    commands = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in commands if line.startswith("dprmt ")]
    assert len(words) >= 3
    for _, *arguments in words:
        assert build_parser().parse_args(arguments)
    epsilon, probes = ([*w[1:]] for w in words if w[1] in ("epsilon", "probes"))
    assert main(epsilon) == 0
    (stated,) = re.findall(r"# exact norms: (.*)", TEXT)
    assert capsys.readouterr().out.startswith(f"{stated} at")
    assert main(probes) == 0
    assert len(capsys.readouterr().out.splitlines()) > 5
