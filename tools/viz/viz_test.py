"""Tests remote-viz through its command line; browser_test.py tests the page in a browser."""

import json
import re

import pytest
from tool import capture, output, perceptron, run

VIZ = "remote-viz"
GRAPH = perceptron(100)


def element(page: str, name: str) -> dict:
    return json.loads(re.search(rf'id="{name}">(.*?)</script>', page, re.S)[1])


def unpack(shared: dict, index: int) -> object:
    """Returns the value of an entry; tools/viz/shared_json.h defines the form."""
    entry = shared["entries"][index]
    if isinstance(entry, str):
        return entry
    key, *children = entry
    values = [unpack(shared, child[0]) if isinstance(child, list) else child for child in children]
    return values if key < 0 else dict(zip(shared["keys"][key], values, strict=True))


def all_data(page: str) -> list[dict]:
    """The entries of the menu, each with the data of its program. The program that is shown first has `shown`."""
    menu, shared = element(page, "menu"), element(page, "shared")
    programs = []
    for index, entry in enumerate(menu["programs"]):
        data = {} if entry["entry"] is None else unpack(shared, entry["entry"])
        programs.append({**entry, **data, "title": menu["title"], "shown": menu["shown"] == index})
    return programs


def page_data(page: str) -> dict:
    (data,) = all_data(page)
    return data


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


def test_all_programs_of_a_capture(tmp_path):
    session = capture(tmp_path / "train.rreplay", "relu", "3", "40")
    first, second, *others = all_data(output(VIZ, session))
    assert first["title"] == "train.rreplay"
    assert [first["number"], second["number"], *(o["number"] for o in others)] == [1, 2, 3, 4, 5]
    assert (first["runs"], second["runs"]) == (3, 1)
    assert not first["shown"] and second["shown"]  # 3 runs of few ops, one of a hundred
    assert second["ops"] == len(second["graph"]["nodes"]) > 50
    for number, program in enumerate([first, second, *others], 1):
        alone = page_data(output(VIZ, session, "--program", number))
        for field in ("graph", "edges", "memory", "values", "bytes", "runs"):
            assert alone[field] == program[field]
    some = all_data(output(VIZ, session, "--program", "4,2", "--program", 1))
    assert [program["number"] for program in some] == [1, 2, 4] and some[0]["title"] == "train.rreplay"
    before = all_data(output(VIZ, session, "--before-passes"))
    assert len(before[0]["graph"]["nodes"]) == 5 and len(first["graph"]["nodes"]) == 4


def test_what_does_not_fit_is_listed(tmp_path):
    session = capture(tmp_path / "train.rreplay", "relu", "30", "200")
    result = run(VIZ, session, "--limit", "400K")
    assert result.returncode == 0 and 300_000 < len(result.stdout) < 600_000
    programs = all_data(result.stdout)
    left_out = [program["number"] for program in programs if program["entry"] is None]
    assert len(programs) == 32 and 5 < len(left_out) < 31
    assert {p["missing"] for p in programs if p["entry"] is None} == {"it does not fit into the page"}
    message = f"the page has {32 - len(left_out)} of 32 programs, because the others do not fit into --limit 400K: left"
    assert result.stderr.startswith(f"remote-viz: {message} out {left_out[0]}, ")
    assert "--program N,M chooses programs" in result.stderr
    assert page_data(output(VIZ, session, "--program", left_out[0]))["ops"] > 0
    assert len(output(VIZ, session)) > len(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", 2], "--run counts the runs of one program, and the page has 2 programs; choose one with --program"),
        (["--program", 3], "has no program 3; it has 1, 2"),
        (["--program", "1,3"], "has no program 3; it has 1, 2"),
        (["--program", 0], "--program"),
        (["--program", "x"], "--program"),
        (["--program", 1, "--run", 0], "--run"),
        (["--limit", "much"], "--limit='much' is not a number of bytes; write it like 500M or 4G"),
        (["--times", "bench.json", "--before-passes"], "leave out --before-passes or --times"),
    ],
)
def test_choices_that_do_not_fit_are_refused(tmp_path, arguments, message):
    result = run(VIZ, capture(tmp_path / "train.rreplay"), *arguments)
    assert result.returncode == 2 and result.stderr.startswith("remote-viz: ")
    assert message in " ".join(result.stderr.split())


def times(*entries: tuple) -> str:
    return json.dumps([dict(zip(("program", "node", "p50_us", "p99_us"), entry, strict=True)) for entry in entries])


def test_times(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(times((1, 0, 10.5, 20), (2, 0, 1, 2), (1, 3, 7, 8)))
    data = page_data(output(VIZ, "--times", path, GRAPH))
    assert data["times"][:5] == [[10.5, 20], None, None, [7, 8], None]
    assert page_data(output(VIZ, "--times", path, "--program", 2, GRAPH))["times"][0] == [1, 2]


def test_times_of_several_programs(tmp_path):
    session, path = capture(tmp_path / "train.rreplay"), tmp_path / "bench.json"
    entries = json.loads(times((1, 0, 10, 20), (1, 2, 5, 6), (2, 0, 1, 2)))
    entries[0]["runner"] = entries[1]["runner"] = "matmul loops"
    path.write_text(json.dumps({"programs": [{"program": 1, "p50_us": 18.5, "p99_us": 30}], "times": entries}))
    first, second = all_data(output(VIZ, "--times", path, session))
    assert (first["us"], second["us"]) == (18.5, 1) and first["shown"]
    assert first["runner_counts"] == [["matmul loops", 2]]
    path.write_text(times((1, 0, 10, 20)))
    first, second = all_data(output(VIZ, "--times", path, session))
    assert first["times"] and not second["times"] and second["us"] is None
    path.write_text(times((7, 0, 10, 20)))
    result = run(VIZ, "--times", path, session)
    assert result.returncode == 2
    assert "bench.json: it has no times of a program of" in result.stderr and "it has 7. remote-replay" in result.stderr
    result = run(VIZ, "--times", path, "--program", 1, session)
    assert "it has no times of program 1; choose with --program: it has 7" in result.stderr


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
        (times((9, 0, 1, 1)), "has no times of program 1; choose with --program: it has 9"),
        ('{"programs": [{"program": 1}], "times": []}', "is not the time of a program: it needs program and p50_us"),
        ("[]", "has no times of program 1; choose with --program: it has none"),
    ],
)
def test_times_that_do_not_fit_are_refused(tmp_path, text, message):
    path = tmp_path / "bench.json"
    path.write_text(text)
    result = run(VIZ, "--times", path, GRAPH)
    assert result.returncode == 2 and result.stderr.startswith("remote-viz: ")
    assert message in " ".join(result.stderr.split())


def test_bad_use_exits_with_2():
    assert run(VIZ, "/proc/nonexistent").returncode == 2
    result = run(VIZ, stdin="graph() {\n  b1: input\n}\n")
    assert result.returncode == 2 and result.stderr.startswith("remote-viz: <stdin>:2:3: expected b0")
    for arguments, message in ((["--program", "1,2"], "one number"), (["--run", 1], "--run is for captures")):
        result = run(VIZ, GRAPH, *arguments)
        assert result.returncode == 2 and message in result.stderr
    assert "Examples:" in output(VIZ, "--help")
