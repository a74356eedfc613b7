"""Tests remote-dump through its command line."""

import json
import re

import pytest
from tool import capture, output, perceptron, run

DUMP = "remote-dump"
OPT = "remote-opt"
GRAPH = perceptron(100)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    return capture(tmp_path_factory.mktemp("session") / "train.rreplay")


def without_comments(text):
    return re.sub(r"^//.*\n", "", text, flags=re.M)


# -- graphs and programs -----------------------------------------------------------------------------------------------


def test_a_graph_is_its_text_with_a_head(tmp_path):
    text = output(DUMP, GRAPH)
    assert re.match(r"// \d+ ops, \d+ buffers, \d+ parameters\ngraph\(", text)
    assert without_comments(text) == GRAPH.read_text()
    program = tmp_path / "program.bin"
    output(OPT, "--emit", "program", "-o", program, GRAPH)
    assert without_comments(output(DUMP, program)) == output(OPT, GRAPH) == output(OPT, "--passes", "none", program)


def test_numbers_of_the_ops():
    text = output(DUMP, "--numbers", GRAPH)
    numbers = re.findall(r"^  .*\(.*  // op (\d+)$", text, re.M)
    assert numbers == [str(n) for n in range(len(numbers))] and len(numbers) > 90
    assert output(OPT, "--passes", "none", stdin=text) == GRAPH.read_text()


def test_runners_of_a_graph_are_not_known():
    result = run(DUMP, "--runners", GRAPH)
    assert result.returncode == 2 and "--runners needs a capture" in result.stderr


def test_json_of_a_graph():
    graph = json.loads(output(DUMP, "--json", GRAPH))
    assert graph["schema"] == "torch-remote.graph/2" and len(graph["nodes"]) > 90
    assert graph == json.loads(output(OPT, "--emit", "json", "--passes", "none", GRAPH))


# -- captures ----------------------------------------------------------------------------------------------------------


def test_a_capture_at_a_glance(session):
    lines = output(DUMP, session).splitlines()
    assert lines[0].startswith(f"{session}: complete; ") and "torch 2.13.0" in lines[0]
    assert lines[1] == "2 programs, 4 runs; 2 uploads (256 B), 1 read (68 B), 0 errors"
    assert lines[3].split() == ["program", "ops", "buffers", "parameters", "differ", "runs"]
    assert lines[4].split() == ["1", "4", "5", "2", "2", "3"] and lines[5].split()[-2:] == ["0", "1"]
    assert output(DUMP, stdin=session.read_bytes()).splitlines()[1:] == lines[1:]


def test_one_program_and_what_differs_between_its_runs(session):
    text = output(DUMP, session, "--program", 1)
    assert "// program 1: 3 runs, 2 parameters with different values\n" in text
    assert "//   s0 (size 0 of %0): 32 in 2 runs, 17 in 1 run\n" in text
    assert re.search(
        r"^//   s1 \(argument 'alpha' of op \d \(aten::add_.Tensor\)\): 0.5 in 1 run, 0.25 in 2 runs$", text, re.M
    )
    assert '"train.py:20 in step")' in text and "may_reuse" in text
    assert output(OPT, "--passes", "none", stdin=text) == without_comments(text)


def test_the_graph_before_the_passes(session):
    before = without_comments(output(DUMP, session, "--program", 1, "--before-passes"))
    assert before.count("aten::neg") == 2 and "aten::relu_" in before and "may_reuse" not in before
    after = without_comments(output(DUMP, session, "--program", 1))
    assert after.count("aten::neg") == 1
    assert output(OPT, "--program", 1, session) == after


def test_all_programs_and_all_parameters(session):
    text = output(DUMP, session, "--all", "--params")
    assert text.count("graph(") == 2 and text.startswith(str(session))
    assert len(re.findall(r"^//   s\d+", text, re.M)) > 50


def test_events_of_the_session(session):
    text = output(DUMP, session, "--events")
    assert re.findall(r"message \d+  (\w+)", text) == [
        "upload", "upload", "program", "run", "run", "run", "read", "program", "run",
    ]  # fmt: skip
    assert "run of program 1: inputs 1, 2; makes 4; frees 3" in text
    assert "read: buffer 5, sizes [17] of 4 bytes" in text
    assert len(output(DUMP, session, "--runs", "--program", 2).splitlines()) == 1


def test_json_of_a_capture(session):
    data = json.loads(output(DUMP, session, "--json", "--all"))
    assert data["schema"] == "torch-remote.capture/1" and data["runs"] == 4 and data["ending"] == "complete"
    assert [p["runs"] for p in data["programs"]] == [3, 1]
    first = data["graphs"][0]
    assert first["params"][0] == {
        "name": "s0", "use": "size 0 of %0", "values": [{"value": 32, "runs": 2}, {"value": 17, "runs": 1}],
        "runs_with_others": 0,
    }  # fmt: skip
    assert [v["value"] for v in first["params"][1]["values"]] == [0.5, 0.25]
    assert first["graph"]["nodes"][-1]["source"] == "train.py:20 in step"
    events = json.loads(output(DUMP, session, "--json", "--events"))["events"]
    assert [e["event"] for e in events][2:4] == ["program", "run"] and events[3]["inputs"] == [1, 2]


def test_damaged_captures_are_refused(session):
    data = session.read_bytes()
    for at in range(0, len(data), len(data) // 60):
        result = run(DUMP, "--all", stdin=data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        assert result.returncode in (0, 2) and "Traceback" not in result.stderr
        assert result.returncode == 0 or result.stderr.startswith("remote-dump: <stdin>: "), result.stderr
    newer = run(DUMP, stdin=data[:8] + bytes([9]) + data[9:])
    assert newer.returncode == 2 and "9" in newer.stderr and "format" in newer.stderr
    cut = output(DUMP, stdin=data[: len(data) - 64])
    assert "cut off" in cut.splitlines()[0]


# -- differences -------------------------------------------------------------------------------------------------------


def test_equal_inputs_have_no_difference(session, tmp_path):
    program = tmp_path / "program.txt"
    program.write_text(output(DUMP, session, "--program", 2))
    assert output(DUMP, "--diff", session, session) == ""
    assert output(DUMP, "--diff", session, program, "--program", 2) == ""
    assert json.loads(output(DUMP, "--diff", "--json", session, session)) == {"same": True, "differences": []}


def test_two_captures(session, tmp_path):
    other = capture(tmp_path / "other.rreplay", "sigmoid")
    result = run(DUMP, "--diff", session, other, "--before-passes")
    assert result.returncode == 1
    first, *diff = result.stdout.splitlines()
    a, b = f"{session} program 1", f"{other} program 1"
    assert first == (
        f"{a} has op 2 (aten::relu_, train.py:14 in forward), {b} has op 2 (aten::sigmoid_, train.py:14 in forward)"
    )
    assert diff[:2] == [f"--- {a}", f"+++ {b}"]
    assert [line for line in diff[2:] if line[0] in "+-"] == ["-  aten::relu_(%3!)", "+  aten::sigmoid_(%3!)"]


def test_a_graph_before_and_after_the_passes(tmp_path):
    after = tmp_path / "after.txt"
    output(OPT, GRAPH, "-o", after)
    result = run(DUMP, "--diff", "--json", GRAPH, after)
    data = json.loads(result.stdout)
    assert result.returncode == 1 and data["same"] is False
    assert data["differences"][0]["diff"].startswith(f"--- {GRAPH}\n+++ {after}\n@@ ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--diff", GRAPH], "--diff needs two files"),
        ([GRAPH, GRAPH], "two files are for --diff"),
        (["--program", 7, "SESSION"], "has no program 7; it has 1, 2"),
        (["--program", 1, "--all", "SESSION"], "--program excludes --all"),
        (["--before-passes", GRAPH], "only a capture has the graphs before the passes"),
        (["--events", GRAPH], "--program, --all, --events and --params are for captures"),
        (["--program", 0, "SESSION"], "--program"),
        (["--diff", "-", "-"], "only one of them can be the standard input"),
        (["-"], "<stdin> is empty"),
        (["/proc/nonexistent"], "cannot open /proc/nonexistent"),
    ],
)
def test_bad_use_exits_with_2(session, arguments, message):
    result = run(DUMP, *[session if a == "SESSION" else a for a in arguments])
    assert result.returncode == 2 and result.stderr.startswith("remote-dump: ") and message in result.stderr


def test_a_capture_of_several_programs_wants_a_choice(session):
    result = run(OPT, session)
    assert result.returncode == 2 and result.stderr == (
        f"remote-opt: {session}: has 2 programs; choose one with --program: 1, 2\n"
    )


def test_help_is_for_newcomers():
    assert "Examples:" in output(DUMP, "--help")
