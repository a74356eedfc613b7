"""Tests the page of remote-viz in a headless Chromium: a graph of 5,000 ops, and a capture of 202 programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from tool import capture, output, perceptron, run

GRAPH = perceptron(5000)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    (folder / "bench.json").write_text(json.dumps([{"program": 1, "node": 7, "p50_us": 123.0, "p99_us": 456.0}]))
    output("remote-viz", GRAPH, "--times", folder / "bench.json", "-o", folder / "page.html")
    return folder / "page.html"


@pytest.fixture
def browser(page: Path) -> Iterator[Browser]:
    with Browser() as browser:
        browser.seconds = browser.open(page)
        yield browser
        assert browser.errors == []


def pixels_unlike_the_background(browser: Browser, canvas: str) -> int:
    return browser.evaluate(
        f"""(() => {{
          const canvas = document.querySelector("{canvas} canvas");
          const {{ data }} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          let count = 0;
          for (let i = 4; i < data.length; i += 4) count += data[i] !== data[0] || data[i + 1] !== data[1];
          return count;
        }})()"""
    )


def test_opens_in_less_than_two_seconds_and_shows_something(browser):
    assert browser.seconds < 2
    assert pixels_unlike_the_background(browser, "#graph") > 1000
    assert pixels_unlike_the_background(browser, "#memory") > 1000
    assert "5005 ops" in browser.evaluate("document.getElementById('summary').textContent")


def test_all_ops_at_once(browser):
    took = browser.evaluate(
        """(() => {
          const begin = performance.now();
          document.querySelector("#levels button:last-child").click();
          return performance.now() - begin;
        })()"""
    )
    assert took < 2000
    browser.settle()
    assert pixels_unlike_the_background(browser, "#graph") > 1000
    frame = browser.evaluate(
        "(() => { const begin = performance.now(); drawAll(); return performance.now() - begin; })()"
    )
    assert frame < 200, f"a frame takes {frame} ms"


def test_hover_shows_shapes_line_and_time(browser):
    place = browser.evaluate("remoteViz.locate(7)")
    browser.settle()
    browser.move_to(place["x"], place["y"])
    text = browser.evaluate("document.getElementById('tooltip').innerText")
    assert browser.evaluate("document.getElementById('tooltip').hidden") is False
    for part in ("aten::", "op 7", "train.py:11 in forward", "f32[", "strides (", "p50 123 µs, p99 456 µs"):
        assert part in text, text


def test_search_finds_counts_and_goes_there(browser):
    browser.evaluate("document.getElementById('search').focus()")
    browser.type("mm step")
    count = int(browser.evaluate("document.getElementById('found').textContent").split()[0])
    assert 10 < count < 2000
    browser.press("Enter")
    browser.press("Enter")
    assert browser.evaluate("document.getElementById('found').textContent") == f"2 of {count}"
    details = browser.evaluate("document.getElementById('details').innerText")
    assert "mm" in details and "in step" in details and "needs" in details
    browser.press("Escape")
    assert browser.evaluate("document.getElementById('found').textContent") == ""


def test_a_click_opens_a_group_and_the_panel_closes_it(browser):
    boxes = browser.evaluate("drawn.boxes.length")
    place = browser.evaluate(
        """(() => {
          const [x, y] = toScreen(drawn.boxes[0].x, drawn.boxes[0].y);
          const area = graphCanvas.getBoundingClientRect();
          return { x: area.left + x, y: area.top + y };
        })()"""
    )
    browser.click(place["x"], place["y"])
    assert browser.evaluate("drawn.boxes.length") == boxes + 3  # a function of four lines
    browser.evaluate("remoteViz.locate(2)")
    browser.evaluate("document.querySelector('#details button').click()")
    assert browser.evaluate("drawn.boxes.length") == boxes


def test_memory_tells_about_a_buffer_and_leads_to_its_op(browser):
    place = browser.evaluate(
        """(() => {
          const [buffer, first, last, offset, bytes] = data.memory.bars[40];
          moveMemory(first - 2, 12);
          drawAll();
          const area = memoryCanvas.getBoundingClientRect();
          return { x: area.left + memoryX(first + 0.5), y: area.top + memoryY(offset + bytes / 2), first, buffer };
        })()"""
    )
    browser.move_to(place["x"], place["y"])
    assert f"buffer b{place['buffer']}" in browser.evaluate("document.getElementById('tooltip').innerText")
    browser.click(place["x"], place["y"])
    assert f"op {place['first']}," in browser.evaluate("document.getElementById('details').innerText")


def test_zoom_and_pan(browser):
    before = browser.evaluate("[view.x, view.y, view.scale]")
    browser.mouse("mouseWheel", 600, 300, deltaX=0, deltaY=-120)
    browser.settle()
    assert browser.evaluate("view.scale") > before[2]
    browser.mouse("mousePressed", 100, 300, button="left", clickCount=1, buttons=1)
    browser.mouse("mouseMoved", 160, 350, button="left", buttons=1)
    browser.mouse("mouseReleased", 160, 350, button="left", clickCount=1)
    browser.settle()
    assert browser.evaluate("view.x") < before[0] and browser.evaluate("view.y") < before[1] + 1


def test_dark_mode_has_other_colours(page):
    with Browser() as browser:
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        browser.open(page)
        pixel = browser.evaluate("[...graphCanvas.getContext('2d').getImageData(1, 1, 1, 1).data]")
        assert max(pixel[:3]) < 60 and browser.errors == []


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with 202 programs, of which 200 have about 600 ops before the passes and share little."""
    folder = tmp_path_factory.mktemp("programs")
    output("remote-viz", capture(folder / "many.rreplay", "relu", "200", "600"), "-o", folder / "page.html")
    return folder / "page.html"


def number_of_ops(browser: Browser) -> int:
    return int(browser.evaluate("document.getElementById('summary').textContent").split()[0])


def chosen(browser: Browser) -> str:
    return browser.evaluate("document.getElementById('program').selectedOptions[0].textContent")


def test_a_page_of_many_programs_opens_fast(programs):
    assert programs.stat().st_size < 64 << 20
    with Browser() as browser:
        seconds = browser.open(programs)
        assert seconds < 4
        assert browser.evaluate("document.getElementById('program').options.length") == 202
        assert pixels_unlike_the_background(browser, "#graph") > 1000
        took = browser.evaluate(
            "(() => { const begin = performance.now(); showProgram(100); return performance.now() - begin; })()"
        )
        assert took < 1000, f"a program is shown after {took} ms"
        assert browser.errors == []


def test_the_menu_and_keys_choose_a_program(programs):
    with Browser() as browser:
        browser.open(programs)
        browser.evaluate("remoteViz.locate(3)")
        assert browser.evaluate("document.getElementById('details').hidden") is False
        browser.evaluate("document.getElementById('program').focus()")
        browser.type_key("1")  # the browser's own search in a menu: the next entry that begins so
        browser.wait_until("location.hash.startsWith('#program=1')")
        number = browser.evaluate("location.hash.slice(9)")
        assert chosen(browser).startswith(f"{number}: {number_of_ops(browser)} ops, 1 run")
        assert browser.evaluate("document.activeElement.id") == "program"
        browser.evaluate("location.hash = 'program=1'")
        browser.wait_until("document.title === 'program 1 of many.rreplay'")
        assert number_of_ops(browser) == 4 and chosen(browser).startswith("1: 4 ops, 3 runs")
        assert browser.evaluate("document.getElementById('details').hidden") is True
        browser.evaluate("document.getElementById('program').blur()")
        browser.type_key("]")
        browser.wait_until("location.hash === '#program=2'")
        assert number_of_ops(browser) == 105 and chosen(browser).startswith("2: 105 ops, 1 run")
        assert pixels_unlike_the_background(browser, "#memory") > 1000
        browser.type_key("[")
        browser.type_key("[")  # there is no program before the first one
        browser.wait_until("location.hash === '#program=1'")
        browser.evaluate("history.back()")
        browser.wait_until("location.hash === '#program=2'")
        assert chosen(browser).startswith("2:")
        assert browser.errors == []


def test_a_search_goes_on_in_another_program(programs):
    with Browser() as browser:
        browser.open(programs, "program=1")
        browser.evaluate("document.getElementById('search').focus()")
        browser.type("neg")
        assert browser.evaluate("document.getElementById('found').textContent") == "1 ops"
        browser.evaluate("showProgram(1)")
        assert browser.evaluate("document.getElementById('found').textContent") == "0 ops"


def test_the_fragment_selects_a_program(programs):
    with Browser() as browser:
        browser.open(programs, "program=2")
        assert number_of_ops(browser) == 105 and browser.evaluate("document.getElementById('message').hidden") is True
        for fragment in ("program=999", "%zz", "op=3"):
            browser.evaluate(f"location.hash = '{fragment}'")
            browser.wait_until("!document.getElementById('message').hidden")
            message = browser.evaluate("document.getElementById('message').innerText")
            assert f'This page has no "{fragment}". Write #program=N with one of its programs: 1, 2, 3' in message
            assert number_of_ops(browser) > 105  # the most expensive one
            browser.evaluate("location.hash = 'program=2'")
            browser.wait_until("document.getElementById('message').hidden")
        assert browser.errors == []


def test_a_program_that_was_left_out_is_listed(tmp_path):
    session = capture(tmp_path / "many.rreplay", "relu", "30", "200")
    result = run("remote-viz", session, "--limit", "400K", "-o", tmp_path / "page.html")
    number = int(result.stderr.split("left out ")[1].split(",")[0])
    with Browser() as browser:
        browser.open(tmp_path / "page.html", f"program={number}")
        text = browser.evaluate(f"document.getElementById('program').options[{number - 1}].textContent")
        assert text.endswith("(it does not fit into the page)")
        assert browser.evaluate(f"document.getElementById('program').options[{number - 1}].disabled") is True
        message = browser.evaluate("document.getElementById('message').innerText")
        assert f"remote-viz --program {number} makes a page with it." in message
        assert browser.errors == []


def test_one_graph_has_no_menu(browser):
    assert browser.evaluate("document.getElementById('programs').offsetParent") is None
