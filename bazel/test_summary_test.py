"""Tests the end of .ci/run's output, for runs of Bazel that succeed, fail, or do not run at all."""

import json

import pytest
import test_summary


class Run:
    """A folder, filled like those of .ci/run."""

    def __init__(self, folder):
        self.folder = folder

    def bazel(self, name, *events, status=0, ended=True):
        """`events`: (target, status, cases, cached). A case is p, f, e or s; if cases is None, there is no test.xml."""
        lines = []
        for target, outcome, cases, cached in events:
            lines.append({"id": {"targetConfigured": {"label": target}}, "configured": {"testSize": "SMALL"}})
            if cases is not None:
                # As in bazel-testlogs, all parts have the same path.
                report = self.folder / f"{target.replace('/', '_').replace(':', '_')}.xml"
                inside = {"p": "", "f": "<failure/>", "e": "<error/>", "s": "<skipped/>"}
                rows = "".join(f"<testcase>{inside[case]}</testcase>" for case in cases)
                report.write_text(f"<testsuites><testsuite>{rows}</testsuite></testsuites>")
                output = {"name": "test.xml", "uri": f"file://{report}"}
                result = {"testActionOutput": [output], **cached}
                key = {"testResult": {"label": target, "run": 1, "shard": 1}}
                lines.append({"id": key, "testResult": result})
            if outcome:
                summary = {"testSummary": {"label": target}}
                lines.append({"id": summary, "testSummary": {"overallStatus": outcome}})
        if ended:
            lines.append({"id": {"buildFinished": {}}})
        (self.folder / f"{name}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.part(name, "bazel", status)

    def part(self, name, kind, status):
        test_summary.main("add", self.folder, name, kind, str(status), "61")


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def last_line(run, capsys):
    status = test_summary.main("print", run.folder)
    return status, capsys.readouterr().out.splitlines()[-1]


def test_cases_of_all_parts_are_added(run, capsys):
    run.bazel("tests", ("//a:t", "PASSED", "pps", {}), ("//b:t", "PASSED", "p", {"cachedLocally": True}))
    run.bazel("asan", ("//a:t", "PASSED", "pp", {"executionInfo": {"cachedRemotely": True}}))
    run.part("types", "check", 0)
    assert test_summary.main("print", run.folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tests: 3 passed, 0 failed, 1 skipped, 1 of 2 targets from a cache, 1 min 1 s"
    assert lines[1] == "asan: 2 passed, 0 failed, 1 of 1 targets from a cache, 1 min 1 s"
    assert lines[-1] == "6 passed, 0 failed"


def test_a_failed_case_counts_and_its_target_not_again(run, capsys):
    run.bazel("tests", ("//a:t", "FAILED", "pfe", {}), status=3)
    assert last_line(run, capsys) == (1, "1 passed, 2 failed")


@pytest.mark.parametrize("cases", [None, "pp"], ids=["without a report", "all cases passed, then it crashed"])
def test_a_target_that_failed_without_a_case_counts_as_one(run, capsys, cases):
    run.bazel("tests", ("//a:t", "PASSED", "p", {}), ("//b:t", "FAILED", cases, {}), status=3)
    assert last_line(run, capsys) == (1, f"{1 + len(cases or '')} passed, 1 failed")


def test_what_failed_in_one_part_did_not_in_another(run, capsys):
    run.bazel("tests", ("//a:t", "PASSED", "pp", {}))
    run.bazel("tsan", ("//a:t", "FAILED", "pf", {}), status=3)
    assert test_summary.main("print", run.folder) == 1
    assert capsys.readouterr().out.splitlines()[0].startswith("tests: 2 passed, 0 failed")


def test_a_target_that_could_not_be_built_counts_as_one(run, capsys):
    run.bazel("tests", ("//a:t", "PASSED", "p", {}), ("//b:t", None, None, {}), status=1)
    assert last_line(run, capsys) == (1, "1 passed, 1 failed")


def test_a_build_error_outside_the_tests_counts_as_one(run, capsys):
    run.bazel("tests", ("//a:t", "PASSED", "p", {}), status=1)
    assert last_line(run, capsys) == (1, "1 passed, 1 failed")


def test_bazel_that_did_not_start_or_did_not_end_failed(run, capsys):
    run.part("tests", "bazel", 2)
    run.bazel("asan", ("//a:t", "PASSED", "p", {}), ended=False)
    assert last_line(run, capsys) == (1, "1 passed, 2 failed")


def test_a_sanitizer_that_ran_nothing_failed(run, capsys):
    run.bazel("tests", ("//a:t", "PASSED", "p", {}))
    run.bazel("asan")
    assert last_line(run, capsys) == (1, "1 passed, 1 failed")


def test_a_check_that_failed_counts_as_one(run, capsys):
    run.bazel("tests", ("//a:t", "PASSED", "p", {}))
    run.part("tidy", "check", 1)
    assert last_line(run, capsys) == (1, "1 passed, 1 failed")


def test_nothing_at_all_is_a_failure(run, capsys):
    assert last_line(run, capsys) == (1, "0 passed, 0 failed")
