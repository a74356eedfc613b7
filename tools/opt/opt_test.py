"""Tests remote-opt through its command line."""

import json
import re
from pathlib import Path

import pytest
from tool import output, perceptron, run

OPT = "remote-opt"
EXAMPLES = re.findall(r"```graph\n(.*?)```", Path("docs/ir.md").read_text(), re.S)

PASSES = ["lift", "canonicalize", "cse", "accumulate", "dce", "layout", "fuse", "plan"]
TWICE = """graph(s0..s2) {
  s3 = 4
  s4 = s0 * 4
  b0: input survives
  b1: fresh(s4)
  b2: fresh(s4) survives
  b3: fresh(s4)
  %0: f32[s0]{1} @b0 + s1
  %1: f32[s0]{1} @b1 = aten::neg(%0)
  %2: f32[s0]{1} @b3 = aten::neg(%0)
  %3: f32[s0]{1} @b2 = aten::add.Tensor(%1, %2, alpha=1)
}
"""


@pytest.mark.parametrize("example", EXAMPLES)
def test_without_passes_the_text_is_as_it_was(example):
    assert output(OPT, "--passes", "none", stdin=example) == example
    assert output(OPT, "--passes", "none", "-", stdin=example) == example


def test_the_whole_pipeline_is_the_default():
    text = output(OPT, stdin=TWICE)
    assert text.count("aten::neg") == 1 and "may_reuse" in text
    names = output(OPT, "--list")
    assert [line.split()[0] for line in names.splitlines() if not line.startswith(" ")] == PASSES
    assert text == output(OPT, "--passes", ",".join(PASSES), "--verify", stdin=TWICE)


def test_some_passes():
    text = output(OPT, "--passes", "lift,cse", stdin=TWICE)
    assert text.count("aten::neg") == 1 and "may_reuse" not in text
    assert output(OPT, "--passes", "plan", stdin=TWICE).count("aten::neg") == 2


def test_forms_of_the_result(tmp_path):
    program = tmp_path / "program.bin"
    assert output(OPT, "--emit", "program", "-o", program, stdin=TWICE) == ""
    assert output(OPT, "--passes", "none", program) == output(OPT, stdin=TWICE)
    graph = json.loads(output(OPT, "--emit", "json", "--passes", "none", stdin=TWICE))
    assert [node["op"] for node in graph["nodes"]] == ["aten::neg", "aten::neg", "aten::add.Tensor"]


def test_graphs_and_times_go_to_stderr():
    result = run(OPT, "--print-before-all", "--print-after-all", "--time-passes", stdin=TWICE)
    assert result.stdout == output(OPT, stdin=TWICE)
    steps = re.findall(r"^// (before|after) (\w+)$", result.stderr, re.M)
    assert len(steps) == 2 * len(PASSES) and steps[:2] == [("before", "lift"), ("after", "lift")]
    assert re.search(r"^cse +\d+\.\d +\d+\.\d%$", result.stderr, re.M), result.stderr


def test_errors_point_at_their_place(tmp_path):
    path = tmp_path / "net.txt"
    path.write_text(TWICE.replace("neg(%0)", "neg(%7)"))
    result = run(OPT, path)
    assert result.returncode == 2 and result.stdout == ""
    line = "  %1: f32[s0]{1} @b1 = aten::neg(%7)"
    assert result.stderr == f"remote-opt: {path}:9:34: view %7 is not declared\n{line}\n{'^':>34}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--passes", "lift,inline"],
            "there is no pass 'inline'; there are: lift canonicalize cse accumulate dce layout fuse plan",
        ),
        (["--emit", "yaml"], "yaml"),
        (["/proc/nonexistent/graph.txt"], "cannot open /proc/nonexistent/graph.txt: No such file or directory"),
        (["--unknown"], "see remote-opt --help"),
        (["-o", "/proc/nonexistent/graph.txt"], "cannot write /proc/nonexistent/graph.txt: No such file or directory"),
    ],
)
def test_bad_use_exits_with_2(arguments, message):
    result = run(OPT, *arguments, stdin=TWICE)
    assert result.returncode == 2 and result.stderr.startswith("remote-opt: ") and message in result.stderr


def test_damaged_programs_are_refused(tmp_path):
    program = tmp_path / "program.bin"
    output(OPT, "--emit", "program", "-o", program, stdin=TWICE)
    data = program.read_bytes()
    for size in range(8, len(data), 7):
        result = run(OPT, "--passes", "none", stdin=data[:size])
        assert result.returncode == 2 or size + 8 > len(data), size
        assert result.returncode == 0 or result.stderr.startswith("remote-opt: <stdin>: "), result.stderr


def microseconds(graph: Path) -> float:
    """Returns the shortest of three runs, as the machine has other work."""
    runs = [run(OPT, "--time-passes", "-o", "/dev/null", graph).stderr for _ in range(3)]
    return min(float(re.search(r"^total +([\d.]+) ", text, re.M)[1]) for text in runs)


def test_fifty_times_as_many_ops_take_about_fifty_times_as_long():
    # 13 ms for 5,000 ops. A sanitizer may slow both; a quadratic pass would take 2,500 times as long.
    assert microseconds(perceptron(5000)) < 200 * microseconds(perceptron(100))


def test_help_is_for_newcomers():
    text = output(OPT, "--help")
    assert "Examples:" in text and "--passes" in text
    assert output(OPT, "--version").startswith("remote-opt")


def test_groups_of_a_worker_that_does_some():
    run_of_100 = ("--params", "100,0,0", "--group-kinds", "pointwise")
    assert "group" not in output(OPT, stdin=TWICE)
    assert "group" not in output(OPT, "--group-kinds", "pointwise", stdin=TWICE)
    text = output(OPT, *run_of_100, "--verify", stdin=TWICE)
    assert text.count("  group pointwise") == 1  # cse leaves two ops
    assert output(OPT, "--passes", "none", stdin=text) == text
    graph = json.loads(output(OPT, "--passes", "none", "--emit", "json", stdin=text))
    assert [(group["kind"], group["nodes"]) for group in graph["groups"]] == [("pointwise", [0, 1])]
    assert "group" not in output(OPT, *run_of_100, "--options", "fuse.limit=0", stdin=TWICE)
    assert "group" not in output(OPT, *run_of_100, "--options", "fuse=0", stdin=TWICE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--group-kinds", "pointy"), "there is no kind of group 'pointy'; there are: all pointwise rowwise"),
        (("--options", "cse=5"), "'cse=5' is not an option of a pass; there are: lift=0"),
        (("--params", "1,2"), "--params has 2 numbers; the graph has 3 parameters"),
    ],
)
def test_wrong_options_name_what_there_is(arguments, message):
    result = run(OPT, *arguments, stdin=TWICE)
    assert result.returncode == 2 and message in result.stderr
