"""Tests remote-viz through its command line; browser_test.py tests the page in a browser."""

import json
import re

import pytest
from tool import capture, output, perceptron, run

VIZ = "remote-viz"
GRAPH = perceptron(100)


def page_data(page: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])


def test_a_page_of_a_text_and_of_a_program(tmp_path):
    page = output(VIZ, GRAPH)
    data = page_data(page)
    assert data["title"] == f"{GRAPH.parent.name}/perceptron_100.txt"
    assert data["graph"]["nodes"][0]["source"] == "train.py:10 in forward"
    assert len(data["memory"]["live"]) == len(data["graph"]["nodes"]) and not data["memory"]["sizes_known"]
    program, file = tmp_path / "program.bin", tmp_path / "page.html"
    output("remote-opt", "--passes", "none", "--emit", "program", "-o", program, GRAPH)
    assert output(VIZ, program, "--title", data["title"], "-o", file) == ""
    assert file.read_text() == page
    assert page_data(output(VIZ, stdin=GRAPH.read_text()))["title"] == "<stdin>"


def test_a_run_of_a_capture_tells_sizes(tmp_path):
    session = capture(tmp_path / "train.rreplay")
    data = page_data(output(VIZ, session, "--program", 1))
    assert data["title"] == "train.rreplay, program 1"
    assert data["values"][0] == 32 and data["memory"]["sizes_known"] and data["bytes"][0] == 2 * 4 * 32
    third = page_data(output(VIZ, session, "--program", 1, "--run", 3, "--before-passes"))
    assert third["values"][0] == 17 and len(third["graph"]["nodes"]) == 5
    result = run(VIZ, session, "--program", 1, "--run", 4)
    assert result.returncode == 2 and "program 1 has 3 runs and no run 4" in result.stderr


def times(*entries: tuple) -> str:
    return json.dumps([dict(zip(("program", "node", "p50_us", "p99_us"), entry, strict=True)) for entry in entries])


def test_times(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(times((1, 0, 10.5, 20), (2, 0, 1, 2), (1, 3, 7, 8)))
    data = page_data(output(VIZ, "--times", path, GRAPH))
    assert data["times"][:5] == [[10.5, 20], None, None, [7, 8], None]
    assert page_data(output(VIZ, "--times", path, "--program", 2, GRAPH))["times"][0] == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bench.json is empty"),
        ("[{,", "bench.json: not JSON: parse error at line 1, column 3"),
        ("7", "not the JSON array of times"),
        ("{}", "not the JSON array of times"),
        ('[{"program": 1, "node": -1, "p50_us": 1, "p99_us": 1}]', "is not a time"),
        ("[7]", "7 is not a time"),
        (times((1, 4000000, 1, 1)), "node 4000000"),
        (times((9, 0, 1, 1)), "has no times of program 1; choose with --program"),
    ],
)
def test_times_that_do_not_fit_are_refused(tmp_path, text, message):
    path = tmp_path / "bench.json"
    path.write_text(text)
    result = run(VIZ, "--times", path, GRAPH)
    assert result.returncode == 2 and result.stderr.startswith("remote-viz: ")
    assert message in " ".join(result.stderr.split())


def test_bad_use_exits_with_2():
    assert run(VIZ, "/nonexistent").returncode == 2
    result = run(VIZ, stdin="graph() {\n  b1: input\n}\n")
    assert result.returncode == 2 and result.stderr.startswith("remote-viz: <stdin>:2:3: expected b0")
    assert "Examples:" in output(VIZ, "--help")
