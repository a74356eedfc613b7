"""Tests what counts towards the contract, and that docs/reliability.md agrees with the code and the results file."""

import re
from pathlib import Path

import pytest

from tests.gates import results, running
from tests.gates.parts import PARTS
from tests.gates.pieces import Outcome
from tests.gates.running import run_piece

PAGE = Path("docs/reliability.md").read_text()
RECORDS = results.read(Path("tests/gates/results.jsonl"))


def part(**more):
    return results.Part(**{"name": "3", "what": "", "contract": 100, "piece": 40, "short": 1, "run": None, **more})


def record(piece, count=40, load=0.5, commit="a", wrong=0, late=0, worst=0.0):
    return {
        "part": "3", "piece": piece, "count": count, "wrong": wrong, "late": late, "worst": worst, "kinds": {},
        "text": "", "seconds": 1.0, "cores": 2, "load": load, "commit": commit,
    }  # fmt: skip


def test_page_has_the_table_of_the_results():
    assert results.replace_table(PAGE, results.table(PARTS, RECORDS)) == PAGE, (
        "bazel run //tests/gates -- --page writes it"
    )


def test_page_states_the_contract():
    stated = dict(re.findall(r"^\| (\S+) \| ([\d,]+) \| .*\|$", PAGE, re.M))
    assert {name: int(number.replace(",", "")) for name, number in stated.items()} == {
        part.name: part.contract for part in PARTS
    }


def test_results_are_of_parts_that_exist():
    assert {record["part"] for record in RECORDS} <= {part.name for part in PARTS}


def test_pieces_add_up():
    done = [record(0), record(1)]
    assert results.count(part(), done) == 80
    assert results.next_piece(part(), done, "a", idle=True) == 2
    done.append(record(2, count=20))
    assert results.count(part(), done) == 100
    assert results.next_piece(part(), done, "a", idle=True) is None


def test_pieces_begin_at_a_number():
    assert results.next_piece(part(), [record(1)], "a", idle=True, start=1) == 2
    assert results.next_piece(part(), [record(1), record(2)], "a", idle=True, start=1) is None


def test_a_loaded_piece_counts_only_without_a_limit_of_time():
    done = [record(0, load=2.5, worst=9.0, late=1, wrong=1)]
    assert results.count(part(), done) == 40
    assert results.count(part(limit=2.0), done) == 0
    cells = results.row(part(limit=2.0, worst="{} s"), done).split(" | ")
    assert cells[3:8] == ["0", "no", "40", "1", ""]  # times are not published, wrong results are


def test_a_loaded_piece_is_run_again_when_the_machine_is_idle():
    done = [record(0, load=2.5), record(1), record(2, count=20)]
    assert results.next_piece(part(limit=2.0), done, "a", idle=False) is None
    assert results.next_piece(part(limit=2.0), done, "a", idle=True) == 0
    done.append(record(0, worst=0.5))
    assert results.count(part(limit=2.0), done) == 100
    assert results.next_piece(part(limit=2.0), done, "a", idle=True) is None


def test_what_was_wrong_stays_wrong_until_another_commit():
    done = [record(0, wrong=1), record(0), record(1), record(2, count=20)]
    assert results.row(part(), done).split(" | ")[4:7] == ["no", "0", "1"]
    assert results.next_piece(part(), done, "a", idle=True) is None
    assert results.next_piece(part(), done, "b", idle=True) == 0
    done.append(record(0, commit="b"))
    assert results.row(part(), done).split(" | ")[4:7] == ["yes", "0", "0"]


def test_late_pieces_do_not_reach_the_contract():
    done = [record(0, late=1), record(1), record(2, count=20)]
    assert results.row(part(limit=2.0), done).split(" | ")[4] == "no"
    assert results.row(part(limit=2.0, over=0.01), done).split(" | ")[4] == "yes"
    assert results.next_piece(part(limit=2.0), done[:2], "b", idle=True) == 0  # comes before missing pieces


def test_a_short_piece_counts_as_what_it_was():
    soak = part(contract=7_200, piece=3_600, least=600)
    done = [record(0, count=3_600), record(1, count=700), record(2, count=3_000)]
    assert results.next_piece(soak, done[:2], "a", idle=True) == 2
    assert results.next_piece(soak, done, "a", idle=True) is None


def test_the_file_keeps_what_is_added(tmp_path):
    for piece in range(3):
        results.append(tmp_path / "results", record(piece))
    assert results.read(tmp_path / "results") == [record(0), record(1), record(2)]


@pytest.mark.parametrize("idle", [False, True])
def test_on_a_loaded_machine_parts_with_a_limit_come_last(idle, tmp_path, monkeypatch):
    def run(piece):
        return Outcome(piece.count, 0)

    monkeypatch.setattr(running, "is_idle", lambda seconds: idle)
    monkeypatch.setattr(running, "git", lambda *arguments: "")
    monkeypatch.setattr(running, "prepare", lambda folder: None)
    monkeypatch.setattr(running.os, "getloadavg", lambda: (0.0 if idle else 1000.0, 0.0, 0.0))
    parts = [part(name="timed", limit=1.0, run=run), part(name="other", run=run)]
    assert running.run_missing(parts, tmp_path / "results", minutes=1, start=0) == 0
    order = [record["part"] for record in results.read(tmp_path / "results")]
    assert order == (["timed", "other"] * 3 if idle else ["other"] * 3 + ["timed"] * 3)


@pytest.mark.parametrize("factor", [1, 3])
def test_times_are_judged_by_the_limit(factor):
    timed = part(limit=1.0, run=lambda piece: Outcome(piece.count, 0, [0.5, 1.5, 2.5]))
    found = run_piece(timed, 0, factor, "a")
    assert (found["count"], found["worst"], found["late"]) == (40, 2.5, 2 if factor == 1 else 0)


def test_a_piece_that_raises_is_wrong():
    def raises(piece):
        raise RuntimeError("broken")

    found = run_piece(part(run=raises), 2, 1, "a")
    assert (found["count"], found["wrong"], found["text"]) == (0, 1, "RuntimeError: broken")
