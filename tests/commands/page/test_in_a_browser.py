"""The page in a real Chromium: curves, values under the pointer, zoom, axes, phone width, Chinese, and runs that grow.

Pictures for a person to look at lie in the folder that MINIMIND_SCREENSHOTS names, if it names one.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimind.commands.report import write_report
from tests.browser import Browser, Page
from tests.commands.page.runs import about, add, end, evaluation, finding, finished, rollback, train, write

pytestmark = pytest.mark.browser
LOSS = "document.querySelector('.u-over')"
HOSTILE = "</script><img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser.start(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of two runs: one that went back and was resumed, and a shorter one."""
    folder = tmp_path_factory.mktemp("runs")
    records = [about(400, nats_per_byte_floor=0.2), finding(None, "lr-high", HOSTILE), *map(train, range(1, 201))]
    records += [finding(200, "loss-spike", "the loss jumped"), *rollback(200, 100), *map(train, range(101, 301))]
    records += [evaluation(300, 0.7), about(400, step=300, nats_per_byte_floor=0.2), *map(train, range(301, 401))]
    first = write(folder / "first", [*records, evaluation(400, 0.65), end(400)])
    (first / "samples.jsonl").write_text('{"step": 400, "prompt": "Once", "text": " upon a time"}\n')
    second = write(folder / "second", finished(60), "learning_rate: 0.0003\n")
    return f"file://{write_report([first, second])}"


def _open(page: Page, address: str) -> None:
    page.open(address)
    page.wait("document.querySelectorAll('canvas').length > 3")


def _box(page: Page) -> tuple[float, float, float, float]:
    """Left, top, width and height of the loss chart's area, scrolled into view."""
    page.value(f"{LOSS}.scrollIntoView({{block: 'center'}})")
    left, top, width, height = page.value(
        f"(() => {{ const b = {LOSS}.getBoundingClientRect(); return [b.left, b.top, b.width, b.height] }})()"
    )
    return left, top, width, height


def _ticks(page: Page) -> list[float]:
    """Steps at the ends of the x axis: what the pointer reads there."""
    left, top, width, height = _box(page)
    steps = []
    for x in (left + 1, left + width - 2):
        page.mouse("mouseMoved", x, top + height / 2)
        steps.append(float(page.text(".tip").split("\n")[0].split()[-1].replace(",", "")))
    return steps


def test_values_marks_and_zoom(browser: Browser, report: str) -> None:
    with browser.page() as page:
        _open(page, report)
        left, top, width, height = _box(page)
        page.mouse("mouseMoved", left + width / 2, top + height / 2)
        text = page.text(".tip")
        assert "step 20" in text and "first: training" in text and "rolled-back (step 200)" in text
        page.mouse("mouseMoved", left + width * 0.4, top + height / 2)
        assert "first: least possible" in page.text(".tip") and "first: taken back" in page.text(".tip")
        assert _ticks(page)[1] > 390
        page.drag((left + width * 0.5, top + 20), (left + width * 0.75, top + 20))
        first, last = _ticks(page)
        assert 190 < first < 215 and 285 < last < 310
        page.value("document.querySelector('[data-value=\"0\"]').click()")
        assert _ticks(page)[1] > 390
        assert page.errors() == [] and page.requests() == [report]
        page.picture("report-desktop-light", whole=True)


def test_the_part_that_matters_fills_the_height(browser: Browser, report: str) -> None:
    """A loss that falls from 5.8 to 0.6 within the first 30 steps of 400: what lies above is cut off, and said."""
    with browser.page(dark=True) as page:
        _open(page, report)
        above = "document.querySelector('.above').textContent"
        assert "not shown" in page.value(above)
        page.value("document.querySelector('[data-value=all]').click()")
        assert page.value(above) == ""
        page.value("document.querySelector('[data-value=log]').click()")
        page.value("document.querySelector('[data-value=tokens]').click()")
        page.value("document.querySelector('[data-value=elapsed]').click()")
        left, top, width, height = _box(page)
        page.mouse("mouseMoved", left + width / 2, top + height / 2)
        assert page.text(".tip").split("\n")[0].endswith("s")  # a time
        assert page.errors() == []
        page.picture("report-desktop-dark", whole=True)


def test_a_phone_in_chinese(browser: Browser, report: str) -> None:
    with browser.page(390, 844, language="zh-CN", phone=True) as page:
        _open(page, report)
        assert page.value("document.documentElement.scrollWidth") == 390
        text = page.text()
        assert "概览" in text and "已完成" in text and "Overview" not in text and "upon a time" in text
        page.picture("report-phone-chinese", whole=True)
        page.value("document.getElementById('language').click()")
        assert "Overview" in page.text() and HOSTILE in page.text("#findings")
        assert page.value("document.title") == "first, second" and page.errors() == []


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    pytest.importorskip("uvicorn")
    run = write(tmp_path / "run", [about(60), *map(train, range(1, 21))])
    command = [sys.executable, "-m", "minimind.cli", "watch", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield next(word for word in process.stdout.readline().split() if word.startswith("http")), run
        process.terminate()


def test_a_watched_run_grows_goes_back_and_fails(browser: Browser, watched: tuple[str, Path]) -> None:
    address, run = watched
    with browser.page(dark=True) as page:
        _open(page, address)
        steps = "document.querySelector('#overview').innerText.includes"
        assert page.value(f"{steps}('20 of 60')")
        add(run, [*map(train, range(21, 41)), evaluation(40, 0.8)])
        page.wait(f"{steps}('40 of 60')")
        page.wait("document.querySelectorAll('figure').length > 6")  # held-out curves came
        add(run, [*rollback(40, 30), train(31)])
        page.wait(f"{steps}('31 of 60') && document.querySelector('#findings').innerText.includes('rolled-back')")
        add(run, [finding(31, "run-failed", "no rung is left"), end(31, "failed")])
        page.wait("document.querySelector('.state').className.includes('failed')")
        assert math.isclose(_ticks(page)[1], 31, abs_tol=1)
        write(run, [about(60), *map(train, range(1, 4))])  # a new run in its place
        page.wait(f"{steps}('3 of 60')")
        assert page.errors() == []
