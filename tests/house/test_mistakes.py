"""A mistake on the command line is one line on stderr and exit code 2, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Say

BATCHES = "--sample-rate 0.02 --steps 50"
RUN = f"--noise-multiplier 1.1 {BATCHES}"
SIGMA = "--sigma must be a finite number in [1e-100, 1e+100], got"
EPOCHS = "--sampling allocation --steps-per-epoch 20 --epochs 3"
AT = "--delta 1e-5"
DONE = "--phase noise-multiplier=1,steps=1000"
FIVE, NOISE = "--steps 5", f"--noise-multiplier 1 {AT}"
RECIPE = "train minilm-docstrings --set"
RECORD = '{"mechanism": {}, "steps": 3'
PHASE = "[[phases]]\nnoise_multiplier ="
SUFFIXES = ".npy, .npz, .safetensors, .pt, .pth, .ckpt, .bin, .gguf, .h5, .hdf5, .mat"
MISTAKES = [
    (f"epsilon {RUN}", "--delta must be given, or in a record that --from-json names"),
    *((f"epsilon {RUN} --delta {x}", f"in [1e-290, 1), got {x}") for x in ("-1e-5", "-.5", "-inf", "-nan", "1/0")),
    (f"epsilon {AT}", "--noise-multiplier must be given, for every phase"),
    (f"epsilon {RUN} {AT} --noise-multiplier 0", "--noise-multiplier must be a finite number in [0.001, 1e+06], got 0"),
    *(
        (f"epsilon {NOISE} {FIVE} --sample-rate {rate}", "--sample-rate must be a finite number in [1e-09, 1]")
        for rate in ("nan", "3/0", "1e-999999999", "5/4")
    ),
    *(
        (f"epsilon {NOISE} --sample-rate .1 --steps {x}", f"--steps must be an integer in [1, 1000000000], got {x}")
        for x in ("0", "1.5e0", "1e999", "1e")
    ),
    (f"epsilon {NOISE} {FIVE}", "--samples must be given with --batch-size where --sample-rate is not"),
    (f"epsilon {NOISE} {FIVE} --samples 9", "--batch-size must be given where --sample-rate is not"),
    (f"epsilon {NOISE} {FIVE} --sample-rate .1 --samples 9", "--samples must be left out where --sample-rate"),
    (f"epsilon {NOISE} --sample-rate .1", "--steps must be given where --epochs is not"),
    (f"epsilon {NOISE} --sample-rate .1 {FIVE} --epochs 2", "--epochs must be left out where --steps is given"),
    (f"epsilon {NOISE} --sampling allocation --epochs 3", "--steps-per-epoch must be given"),
    (f"epsilon {NOISE} --sampling allocation --steps-per-epoch 3", "--epochs must be given"),
    (f"epsilon {NOISE} {EPOCHS} --steps 60", "--steps must be left out where --sampling is allocation, got 60"),
    (f"epsilon {NOISE} {EPOCHS} --epochs 1.5", "--epochs must be an integer in [0, "),
    *(
        (f"epsilon {NOISE} --sampling fixed-order {more}", message)
        for more, message in (
            ("", "--epochs"),
            ("--epochs 1.5", "--epochs must be an integer"),
            ("--epochs 1 --sample-rate 0.1", "left out where --sampling is fixed-order"),
            ("--epochs 1 --neighbours add-remove", "in a fixed order"),
        )
    ),
    (f"epsilon {NOISE} {BATCHES} --participations 2", "--participations must be left out where --sampling is poisson"),
    (
        f"epsilon {NOISE} --sampling allocation --samples 100 --batch-size 10 --steps 5",
        "--steps must be left out where --sampling is allocation, and so must --samples and --batch-size; give"
        " --steps-per-epoch and --epochs instead",
    ),
    (f"epsilon {RUN} {AT} --rank 4", "--rank must be left out where --probes is not given, got 4"),
    (f"epsilon {RUN} {AT} --secret-probes", "--secret-probes must be left out where --probes is not given, got given"),
    (f"epsilon {RUN} {AT} --probes 16", "--secret-probes must be given where --probes is, or --public-probes"),
    (f"epsilon {RUN} {AT} --probes 9 --secret-probes --public-probes", "--public-probes must be left out where"),
    (f"epsilon {RUN} {AT} --probes 9 --public-probes --power-iteration", "--power-iteration must be left out"),
    (f"epsilon {RUN} {AT} --probes 9 --public-probes --sketch 9 --analysis envelope", "--analysis must be left out"),
    (f"epsilon {RUN} {AT} --sampling cyclic-poisson --bands 90", "--sample-rate must be a finite number in [1e-09"),
    (f"epsilon {RUN} {AT} --also gauss:1", "did you mean 'gaussian'?"),
    (f"epsilon {RUN} {AT} --also laplace", "--also must be gaussian:SIGMA"),
    (f"epsilon {RUN} {AT} --also gaussian:0", "--also must be a release whose noise multiplier is a finite number in"),
    *((f"epsilon {AT} --phase {one}", "--phase must be options with their values") for one in ("100,2", "steps=3,=2")),
    *(
        (words, f"no such option: --{words.split()[1][2:]}$")
        for words in ("epsilon --epsilon 3", "delta --delta 1e-5", "epsilon --colour red")
    ),
    (f"epsilon {AT} --phase steps=3,noise=2", "--phase: no such option: --noise"),
    (f"epsilon {AT} --phase noise-multiplyer=2", "did you mean '--noise-multiplier'?"),
    (f"epsilon {AT} --phase steps", "--steps: expected one argument"),
    (f"epsilon {AT} --phase steps=3", "--noise-multiplier must be given, for every phase"),
    (f"epsilon {AT} --phases x.toml", "--phases must be a TOML file with a list of tables [[phases]] (["),
    (f"epsilon {RUN} {AT} --colour red", "no such option: --colour"),
    (f"steps --epsilon 2 --sample-rate .01 {AT} {DONE}", "--steps must be left out"),
    (f"steps --epsilon 2 {RUN} {AT}", "--steps must be left out"),
    *(
        (f"noise {BATCHES} {AT} {targets}", "pass exactly one of --epsilon, --advantage, --true-positive-rate")
        for targets in ("", "--advantage 0.1 --epsilon 2")
    ),
    (f"noise {BATCHES} {AT} --true-positive-rate 0.1", "--false-positive-rate must be given"),
    (f"noise {BATCHES} {AT} --advantage 0.1 --false-positive-rate 0.1", "--false-positive-rate must be left out with"),
    (f"noise {BATCHES} {AT} --true-positive-rate 0.01 --false-positive-rate 0.1", ": --true-positive-rate must be"),
    (f"tradeoff {RUN} --plot curve.gif", "--plot must be a file name that ends in .png, .pdf or .svg"),
    (f"tradeoff {RUN} --plot missing-folder/curve.png", "--plot must be a file in an existing folder"),
    (f"statement {RUN} {AT} --run nowhere", "--noise-multiplier must be left out where --run is given"),
    ("nonsense", "dprmt: no such command: 'nonsense'"),
    *(
        (words, "must be the name of a")
        for words in (
            "report --out ''",
            "report --out page --recipe ' '",
            "train ''",
            "train minilm-docstrings --out ''",
            "spectrum '' --sigma 1",
            f"tradeoff {RUN} --plot ''",
        )
    ),
    ("train", "a recipe must be named"),
    ("train --resume nowhere", "--resume must be the folder of a run that was started"),
    ("train minilm-docstrings --resume runs/x", "or only the folder of a run"),
    ("report --out file", "--out"),
    ("report --out . --recipe no-such-recipe", "no-such-recipe"),
    ("report --out out --seeds 0", "--seeds must be"),
    ("report --out out --run runs/x --steps 3", "--steps must be left out where --run is given"),
    ("recipes no-such", "no-such"),
    *(
        (f"spectrum file --sigma {sigma or repr('')}", f"{SIGMA}{sigma and f' {sigma}'}")
        for sigma in ("0", "-1", "nan", "inf", "abc", "1e-300", "")
    ),
    ("spectrum missing.npy --sigma 1", "missing.npy must be a file (no such file)"),
    ("spectrum folder.npz --sigma 1", f"folder.npz must be a folder with a file that ends in {SUFFIXES}"),
    ("spectrum file --sigma 1", f"file must be a file that ends in {SUFFIXES}, or a folder of them"),
    *(
        (words, f"(did you mean {meant!r}?)")
        for words, meant in (
            ("epsilom --x", "epsilon"),
            ("--verson", "--version"),
            ("epsilon --noise-multiplyer 1 --steps 3 --delta 1e-5", "--noise-multiplier"),
            ("epsilon --noise-multiplier=1 --stepps=3", "--steps"),
            *((f"epsilon {word}", "--noise-multiplier") for word in ("--noise 1", "--sigma 1", "--phase noise=2")),
            ("epsilon --rate .1", "--sample-rate"),
            ("train minilm-docstring", "minilm-docstrings"),
            ("recipes minilm-sst", "minilm-sst2"),
            (f"{RECIPE} trainig.steps=3", "training"),
            (f"{RECIPE} training.stps=3", "steps"),
            (f"{RECIPE} privacy.norms=hutchpp", "hutch++"),
        )
    ),
]
IN_FILES = [
    *(
        ("epsilon --from-json file", text, message)
        for text, message in (
            ("{", "--from-json must be a file with what --json printed"),
            ("[1]", "--from-json must be"),
            ('{"phases": 3}', "of a run: one with a mechanism and steps, or with phases"),
            (f'{RECORD}, "delta": 5}}', "--delta must be a finite number in [1e-290, 1), got 5"),
            (f"{RECORD}}}", "--delta must be given: the record of --from-json does not state it"),
        )
    ),
    ("epsilon --from-json file --steps 3", f"{RECORD}}}", "--steps must be left out where --from-json is given"),
    (f"epsilon --from-json file {AT}", '{"mechanism": {"kind": "dpsgd"}, "steps": 3}', "without 'noise_multiplier'"),
    (f"epsilon --from-json file {AT}", '{"mechanism": {"kind": "pate"}, "steps": 3}', "whose mechanism is 'dpsgd'"),
    *(
        (f"epsilon --phases file {AT}", text, message)
        for text, message in (
            ("", "[[phases]]"),
            ("phases = 3", "[[phases]]"),
            ("[[phases", "[[phases]]"),
            ("[[phases]]\nnoise = 2", "no such option: --noise"),
            ("[[phases]]\nsteps = 2", "--noise-multiplier must be given, for every phase"),
            (f"{PHASE} -1\nsteps = 3\nsample_rate = 1", "--noise-multiplier must be a finite number"),
            (f"{PHASE} 1\nsteps = true\nsample_rate = 1", "--steps: expected one argument"),
        )
    ),
    *(
        ("verify file", text, "file: ")
        for text in ("{", '{"epsilon": 3}', '{"steps": 4, "delta": 1e-5, "epsilon": {"upper": 1}}', "[]")
    ),
]


@pytest.mark.parametrize(("words", "text", "message"), [*((words, "", said) for words, said in MISTAKES), *IN_FILES])
def test_a_mistake_is_one_line_that_names_it(
    refusal: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text(text)
    (tmp_path / "folder.npz").mkdir()
    said = refusal(words)
    assert message in f"{said}$"  # where it ends
    assert said.startswith("dprmt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.npz"]
