"""The calculator answers what the command line does, in any Python and in a browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprmt.accounting import DPSGD, Group, Hutchinson, HutchPlusPlus, RandomAllocation
from tests.docs import browser
from tests.docs.modules import ROOT, module

FOLDER = ROOT / "docs" / "calculator"
SETTINGS = {"noise_multiplier": "1", "sample_rate": "0.0297", "steps": "400", "delta": "1e-5", "probes": "32"}
SETTINGS |= {"sketch": "16", "norms": "exact", "sampling": "poisson", "secret": True, "neighbours": "zero-out"}
SETTINGS |= {"group": "1", "steps_per_epoch": "34", "epochs": "12", "batch_size": "2000", "samples": "67349"}
STAND_IN = """
onmessage = async ({ data }) => {
  const asked = await fetch("/answer", { method: "POST", body: JSON.stringify(data.question) });
  postMessage({ id: data.id, answer: await asked.json() });
};
postMessage({ status: "ready" });
"""


ANSWER = module(FOLDER / "answer.py")


@pytest.mark.parametrize(
    ("words", "run"),
    [
        ({"norms": "hutchinson", "secret": False}, DPSGD(1.0, 0.0297, Hutchinson(32, secret=False))),
        ({"norms": "hutch++", "group": "2"}, DPSGD(1.0, 0.0297, HutchPlusPlus(32, 16, secret=True), Group(2))),
        ({"sampling": "allocation"}, DPSGD(1.0, RandomAllocation(34))),
    ],
)
def test_answers_are_the_librarys(words: dict[str, Any], run: DPSGD) -> None:
    """The record, and a curve of the same run that ends at its bounds."""
    asked = SETTINGS | words
    found = ANSWER.answer(asked)
    unit, last = ("epochs", 12) if asked["sampling"] == "allocation" else ("steps", 400)
    curve, bounds = found["curve"], run.epsilon(**{unit: last}, delta=1e-5)
    assert found["record"]["mechanism"] == run.as_dict()
    assert (found["record"]["epsilon"]["upper"], curve["unit"], curve["steps"][-1]) == (bounds.upper, unit, last)
    assert curve["upper"] == sorted(curve["upper"])
    assert curve["upper"][-1] == pytest.approx(bounds.upper, rel=2e-3)
    assert json.loads(ANSWER.answer_json(json.dumps(asked))) == found


def test_what_the_command_refuses_is_refused_in_its_words() -> None:
    found = ANSWER.answer(SETTINGS | {"sample_rate": "2.0"})
    assert found["error"].startswith("dprmt epsilon: --sample-rate must be")
    assert "record" not in found


def test_the_archive_needs_numpy_and_scipy_alone(tmp_path: Path) -> None:
    """In an interpreter that sees neither this checkout nor other packages of this one."""
    sys.path.insert(0, str(ROOT / "docs" / "_site"))
    try:
        site = module(ROOT / "docs" / "_site" / "calculator.py")
    finally:
        sys.path.pop(0)
    assert site.core(ROOT) == site.core(ROOT)
    (tmp_path / "dprmt.zip").write_bytes(site.core(ROOT))
    extras = "matplotlib rich safetensors torch opacus transformers peft datasets joblib shtab tomli_w cryptography"
    code = (
        f"import sys; sys.modules |= dict.fromkeys({extras.split()}); sys.path.insert(0, sys.argv[1]); import answer\n"
        "print(answer.answer_json(sys.argv[2]))\n"
        "print([name for name, module in sys.modules.items() if name.split('.')[0] == 'dprmt'\n"
        "       and getattr(module, '__file__', None) and 'dprmt.zip' not in module.__file__])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", code, str(tmp_path / "dprmt.zip"), json.dumps(SETTINGS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    answer, elsewhere = done.stdout.splitlines()
    assert elsewhere == "[]"  # an editable installation finds what the archive lacks; a browser does not
    assert json.loads(answer) == ANSWER.answer(SETTINGS)


def page_alone() -> bytes:
    """What the site makes a page of, without the site."""
    text = (ROOT / "docs" / "calculator.md").read_text(encoding="utf-8")
    (form,) = re.findall(r"<form.*</script>", text, re.DOTALL)
    style = '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="extra.css">'
    heading = '<h1 id="calculator">Calculator</h1>'  # as the site names it
    return f'<!doctype html><meta charset="utf-8">{style}<body class="md-typeset">{heading}{form}</body>'.encode()


def files(changed: dict[str, bytes], runtime: Path | None = None) -> Callable[[str], bytes | None]:
    known = {"page.html": page_alone(), "extra.css": (ROOT / "docs" / "_site" / "extra.css").read_bytes()}
    known |= {f"calculator/{path.name}": path.read_bytes() for path in FOLDER.glob("*.js")} | changed

    def find(path: str) -> bytes | None:
        if runtime is not None and path.startswith("pyodide/") and (runtime / path[8:]).is_file():
            return (runtime / path[8:]).read_bytes()
        return known.get(path)

    return find


def chosen(page: browser.Page, name: str, value: str) -> None:
    """As if somebody had."""
    page.value(f"document.forms[0].{name}.value = {value!r}")
    page.value(f"document.forms[0].{name}.dispatchEvent(new Event('change'))")


needs_browser = pytest.mark.skipif(browser.installed() is None, reason="no Chromium is installed")


@pytest.mark.slow
@needs_browser
def test_the_page_in_a_browser_shows_what_python_answers() -> None:
    """Its sliders, its questions and its words; Python runs beside the browser here, with the page's own program."""
    answers = {"/answer": lambda body: ANSWER.answer_json(body.decode()).encode()}
    state = "document.forms[0].dataset.state"
    said = "document.querySelector('[data-says=\"{}\"]').textContent"
    with browser.served(files({"calculator/worker.js": STAND_IN.encode()}), answers) as address, browser.page() as page:
        page.go(f"{address}/page.html")
        page.wait(f"{state} === 'answered'")
        upper = DPSGD(1.0, 0.0297).epsilon(steps=400, delta=1e-5).upper
        shown = page.value(said.format("epsilon"))
        assert upper <= float(shown.removeprefix("ε ≤ ")) <= upper + 1e-4
        assert "Poisson sampling" in page.value(said.format("statement"))
        assert page.value("document.querySelectorAll('[data-says=curve] polyline').length") == 1
        lower = DPSGD(1.0, 0.0297).epsilon(steps=400, delta=1e-5).lower
        verdicts = {upper * 1.0001: "holds", lower * 0.9999: "is refuted", 0.5 * (lower + upper): "is not"}
        for stated, verdict in verdicts.items():
            page.value(f"document.forms[0].stated.value = '{stated!r}'")
            page.value("document.forms[0].stated.dispatchEvent(new Event('input'))")
            assert f"{stated!r} {verdict}" in page.value(said.format("verdict"))
        page.value("document.forms[0].noise_multiplier_slider.value = Math.log10(2)")
        page.value("document.forms[0].noise_multiplier_slider.dispatchEvent(new Event('input'))")
        page.wait(f"{state} === 'answered' && {said.format('command')}.includes('--noise-multiplier 2 ')")
        assert float(page.value(said.format("epsilon")).removeprefix("ε ≤ ")) < upper
        assert "noise_multiplier=2" in page.value("location.search")
        chosen(page, "sampling", "allocation")
        page.wait(f"{state} === 'answered' && {said.format('command')}.includes('--steps-per-epoch 34 --epochs 12')")
        assert page.value(
            "document.forms[0].sample_rate.offsetParent === null && !!document.forms[0].epochs.offsetParent"
        )
        page.go(f"{address}/page.html?norms=hutchinson&secret=false&steps=100", width=390, height=844, dark=True)
        page.wait(f"{state} === 'answered'")
        asked = SETTINGS | {"norms": "hutchinson", "secret": False, "steps": "100"}
        assert page.value(said.format("command")) == " ".join(["dprmt", *ANSWER.command(asked)])
        assert page.value("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
@needs_browser
def test_a_page_without_its_runtime_says_so() -> None:
    with browser.served(files({})) as address, browser.page() as page:
        page.go(f"{address}/page.html")
        page.wait("document.forms[0].dataset.state === 'failed'")
        assert "built without the Python runtime" in page.value("document.body.innerText")


# What is asked of the page, each beside the same question to Python here: ε with every kind of norms, sampling and
# neighbours, so many steps that indices need more than 32 bits (the browser's own integers), and a δ far out.
ASKED_IN_THE_BROWSER: list[dict[str, Any]] = [
    {"norms": "hutch++"},
    {"norms": "exact"},
    {"norms": "hutchinson", "secret": False},
    {"neighbours": "replace-one"},
    {"norms": "exact", "neighbours": "add-remove", "group": "3"},
    {"sampling": "allocation"},
    {"sampling": "allocation", "neighbours": "replace-one"},
    {"steps": "100000", "noise_multiplier": "5", "sample_rate": "0.3", "delta": "1e-12"},
]


@pytest.mark.slow
@needs_browser
def test_the_page_computes_in_the_browser_itself() -> None:
    """With Pyodide, NumPy and SciPy as ``.ci/pyodide build/pyodide`` fetches them."""
    runtime = Path(os.environ.get("DPRMT_PYODIDE", ROOT / "build" / "pyodide"))
    if not all([*runtime.glob(f"{name}*.whl")] for name in ("numpy", "scipy")):
        pytest.skip(f"{runtime} lacks NumPy's or SciPy's wheel for the browser: .ci/pyodide fetches them")
    site = module(ROOT / "docs" / "_site" / "calculator.py")
    done = "['answered', 'refused', 'failed'].includes(document.forms[0].dataset.state)"
    said = "document.querySelector('[data-says={}]').textContent"
    with browser.served(files({"calculator/dprmt.zip": site.core(ROOT)}, runtime)) as address, browser.page() as page:
        page.go(f"{address}/page.html?norms=hutch%2B%2B")
        page.wait(done, seconds=300)
        for changed in ASKED_IN_THE_BROWSER:
            asked = SETTINGS | changed
            for name, value in asked.items():
                script = f"document.forms[0].{name}.{'checked' if name == 'secret' else 'value'} = {json.dumps(value)}"
                page.value(script)
            chosen(page, "norms", asked["norms"])
            page.wait(f"{done} && {said.format('command')} === {' '.join(['dprmt', *ANSWER.command(asked)])!r}", 300)
            assert page.value(said.format("error")) == ""
            here = ANSWER.answer(asked)["record"]["epsilon"]
            shown = page.value(said.format("epsilon")), page.value(said.format("interval"))
            upper = float(shown[0].removeprefix("ε ≤ "))
            lower = float(re.findall(r"ε ≥ ([\d.]+);", shown[1])[0])
            # Rounded outward to four places; another machine's logarithms choose other nodes of the grids.
            slack = 0.01 * (here["upper"] - here["lower"])
            assert -slack <= upper - here["upper"] <= 1e-4 + slack, (changed, shown, here)
            assert -slack <= here["lower"] - lower <= 1e-4 + slack, (changed, shown, here)
            assert page.value("document.querySelectorAll('[data-says=curve] polyline').length") == 1
        chosen(page, "sample_rate", "3")
        page.wait("document.forms[0].dataset.state === 'refused'")
        assert "--sample-rate must be" in page.value(said.format("error"))
