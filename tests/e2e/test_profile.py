"""torch.remote.profile: the contents of the trace, and that it is complete whatever happens."""

from __future__ import annotations

import _thread
import json
import os
import re
import signal
import threading
import time
from collections import Counter, defaultdict

import pytest
import torch

PHASES = set("XMbesfi")


def line_of(mark: str) -> int:
    with open(__file__) as file:
        return next(i for i, text in enumerate(file, 1) if f"# {mark}" in text)


def check_format(events: list[dict]) -> None:
    """Checks the trace-event format, as far as viewers depend on it."""
    open_spans = Counter()
    arrows = defaultdict(list)
    for e in events:
        assert e["ph"] in PHASES and isinstance(e["name"], str)
        assert isinstance(e["pid"], int) and isinstance(e["tid"], int)
        assert isinstance(e["ts"], int | float)
        if e["ph"] == "X":
            assert e["dur"] >= 0
        elif e["ph"] in "be":
            open_spans[e["pid"], e["cat"], e["id2"]["local"], e["name"]] += 1 if e["ph"] == "b" else -1
        elif e["ph"] in "sf":
            arrows[e["id"]].append(e)
    assert not any(open_spans.values())
    for ends in arrows.values():
        assert sorted(e["ph"] for e in ends) == ["f", "s"], ends
        start, end = sorted(ends, key=lambda e: e["ph"] == "f")
        assert start["ts"] <= end["ts"]


def check_nesting(events: list[dict]) -> None:
    """Spans of a track are nested or disjoint; times are rounded to a ns."""
    tracks = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            tracks[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["name"]))
    for spans in tracks.values():
        enclosing: list[tuple] = []
        for span in sorted(spans, key=lambda s: (s[0], -s[1])):
            while enclosing and enclosing[-1][1] <= span[0] + 0.0015:
                enclosing.pop()
            assert not enclosing or span[1] <= enclosing[-1][1] + 0.0015, (enclosing[-1], span)
            enclosing.append(span)


def spans(profile, name: str) -> list[dict]:
    return [e for e in profile.events if e["ph"] == "X" and re.fullmatch(name, e["name"])]


def test_the_file_is_a_valid_trace_of_client_wire_and_worker(remote, tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(remote)
    optimizer = torch.optim.Adam(net.parameters())
    path = tmp_path / "trace.json"
    with torch.remote.profile(path) as profile:
        for _ in range(3):
            loss = net(torch.ones(3, 4).to(remote)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    assert events == profile.events and trace["otherData"]["events_dropped"] == 0
    check_format(events)
    check_nesting(events)
    tracks = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"client", "wire"} <= tracks and any(name.startswith("worker: ") for name in tracks)
    assert len(spans(profile, r"wait \(item\)")) == 3
    assert len(spans(profile, "upload")) == 2 * 3  # on the client and on the worker
    sent = {e["id2"]["local"]: e for e in events if e["ph"] == "b"}
    done = {e["id2"]["local"]: e for e in events if e["ph"] == "e"}
    assert sent.keys() == done.keys()
    for number, e in sent.items():
        assert e["args"]["bytes"] > 32
        waited = float(e["args"]["waited_for_worker"].removesuffix(" µs"))
        assert 0 <= waited <= done[number]["ts"] - e["ts"] + 0.002


def test_all_ops_of_a_program_run_on_the_worker_and_know_their_lines(remote):
    x = torch.randn(8, 8).to(remote)
    torch.remote.synchronize()
    with torch.remote.profile() as profile:
        y = torch.relu(x @ x)  # relu line
        z = y.softmax(-1)  # softmax line
        z.sum().item()
    ops = [e for e in profile.events if e.get("cat") == "op"]
    assert [e["name"] for e in ops] == ["mm", "relu", "_softmax", "sum"]
    assert ops[0]["args"]["op"] == "aten::mm(f32[8, 8], f32[8, 8])"
    assert f"test_profile.py:{line_of('relu line')} in test_all" in ops[1]["args"]["line"]
    assert f"test_profile.py:{line_of('softmax line')} " in ops[2]["args"]["line"]
    (run,) = [e for e in spans(profile, "run program .*") if e["args"]["ops"] == 4]
    for op in ops:
        assert run["ts"] <= op["ts"] and op["ts"] + op["dur"] <= run["ts"] + run["dur"] + 0.002
    # There was one flush, whose program was built. Its spans follow one another.
    (record,) = spans(profile, "record 4 ops")
    (flush,) = spans(profile, r"flush \(item\)")
    assert flush["args"]["result"].startswith("miss") and flush["args"]["ops"] == 4
    assert record["ts"] + record["dur"] <= flush["ts"] + 0.002
    (build,) = spans(profile, "build program .*")
    for step in ("import", "lift", "canonicalize", "cse", "dce", "plan", "encode"):
        assert len(spans(profile, step)) == 1
    assert build["tid"] != flush["tid"]


def test_the_runner_of_each_op_is_named(remote):
    x = torch.randn(8, 8).to(remote)
    with torch.remote.profile() as profile:
        (x @ x).relu().sum().item()
    aten = f"ATen {torch.__version__.partition('+')[0]}"
    ops = [e for e in profile.events if e.get("cat") == "op"]
    assert [e["args"]["runner"] for e in ops] == [aten] * 3
    assert re.search(rf"aten::relu +1 .* {aten}$", profile.summary(), re.M)


def test_ranges_that_the_user_names(remote):
    nvtx = torch.remote.nvtx
    x = torch.ones(4, device=remote)
    nvtx.range_push("before")  # ends within the profile, and is cut at its beginning
    with torch.remote.profile() as profile:
        nvtx.range_pop()
        assert nvtx.range_push("outer") == 0
        with nvtx.range("inner {}", 7):
            x.sum().item()
        overlapping = nvtx.range_start("overlapping")
        nvtx.mark("here")
        assert nvtx.range_pop() == 0 and nvtx.range_pop() == -1
        thread = threading.Thread(target=lambda: nvtx.range_end(overlapping))
        thread.start()
        thread.join()
        nvtx.range_end(overlapping)  # it has already ended

        @nvtx.range("called")
        def f():
            return x.exp().sum().item()

        f(), f()
        nvtx.range_push("never ends")
    assert nvtx.range_pop() == 0
    nvtx.mark("after")
    check_format(profile.events)
    check_nesting(profile.events)
    named = {e["name"]: e for e in profile.events if e.get("cat") == "range"}
    assert set(named) == {"before", "outer", "inner 7", "overlapping", "here", "called"}
    assert named["before"]["ts"] == 0
    outer, inner = named["outer"], named["inner 7"]
    (wait,) = (w for w in spans(profile, r"wait \(item\)") if w["ts"] < outer["ts"] + outer["dur"])
    assert outer["ts"] <= inner["ts"] <= wait["ts"]
    assert wait["ts"] + wait["dur"] <= inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    assert outer["tid"] == inner["tid"] == named["here"]["tid"] != wait["tid"]
    tracks = {e["tid"]: e["args"]["name"] for e in profile.events if e["name"] == "thread_name"}
    assert tracks[outer["tid"]] == f"ranges: {tracks[wait['tid']]}"
    assert [e["ph"] for e in profile.events if e["name"] == "overlapping"] == ["b", "e"]
    assert len(spans(profile, "called")) == 2
    assert re.search(r"called +2 ", profile.summary()) and "here" not in profile.summary()
    with torch.remote.profile() as profile:
        pass
    assert not [e for e in profile.events if e.get("cat") == "range"]


def test_the_same_program_of_another_line_and_other_sizes(remote):
    def first(x):
        return (x + 1).exp().sum().item()  # first line

    def second(x):
        return (x + 1).exp().sum().item()  # second line

    first(torch.ones(4, device=remote)), second(torch.ones(5, device=remote))
    with torch.remote.profile() as profile:
        first(torch.ones(6, device=remote))
        second(torch.ones(7, device=remote))
        first(torch.ones(8, device=remote))
    exps = [e for e in profile.events if e.get("cat") == "op" and e["name"].startswith("exp")]
    lines = [int(re.search(r":(\d+) in", e["args"]["line"])[1]) for e in exps]
    assert lines == [line_of("first line"), line_of("second line"), line_of("first line")]
    assert ["[6]" in exps[0]["args"]["op"], "[7]" in exps[1]["args"]["op"]] == [True, True]
    assert all(e["args"]["result"] == "hit" for e in spans(profile, "flush .*"))


def test_waits_say_why_and_on_which_line(remote):
    x = torch.ones(4, device=remote)
    torch.remote.synchronize()
    with torch.remote.profile() as profile:
        (x + 1).sum().item()  # item line
        (x + 2).cpu()  # cpu line
        torch.nonzero(x + 3)  # dynamic line
        x.add_(1)
        torch.remote.synchronize()  # synchronize line
    lines = {e["args"]["reason"]: e["args"]["line"] for e in spans(profile, "wait .*")}
    flushes = {e["args"]["reason"]: e["args"]["line"] for e in spans(profile, "flush .*")}
    for reason, mark in (("item", "item"), ("copy to cpu", "cpu"), ("dynamic", "dynamic"), ("synchronize",) * 2):
        assert f"test_profile.py:{line_of(mark + ' line')} " in lines[reason], lines
        assert f"test_profile.py:{line_of(mark + ' line')} " in flushes[reason], flushes
    text = profile.summary()
    assert re.search(rf"item +1 .*test_profile\.py:{line_of('item line')} in", text), text
    assert re.search(r"aten::add_\.Tensor +1", text) and re.search(r"idle +[\d.]+ .?s +\d", text), text


def test_backward_lines_are_not_changed_by_reading_the_loss(remote):
    w = torch.ones(4, device=remote, requires_grad=True)
    with torch.remote.profile() as profile:
        loss = w.sin().sum()  # forward line
        loss.item()
        loss.backward()
        w.grad.sum().item()
    (op,) = [e for e in profile.events if e.get("cat") == "op" and "cos" in e["name"]]
    assert f"test_profile.py:{line_of('forward line')} " in op["args"]["line"]
    assert op["args"]["line"].endswith("(backward)")


def test_accumulated_gradients_do_not_have_the_line_of_the_threads_first_ops(remote):
    def work():
        w = torch.ones(4, device=remote)  # line without a node
        w.requires_grad_()
        with torch.autograd.set_multithreading_enabled(False):
            for _ in range(2):
                (w * 2).sum().backward()
        torch.remote.synchronize()

    with torch.remote.trace() as trace:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    text = "".join(map(str, trace.graphs))
    line = rf"test_profile\.py:{line_of('line without a node')} in [^\"\n]*"
    assert re.search(line, text) and not re.search(line + r"\(backward\)", text), text


def test_ops_of_other_threads(remote):
    x = torch.ones(16, device=remote)

    def work():
        for i in range(20):
            (x * i).sum().item()

    with torch.remote.profile() as profile:
        threads = [threading.Thread(target=work, name=f"worker thread {i}") for i in range(2)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
    check_format(profile.events)
    check_nesting(profile.events)
    waits = spans(profile, r"wait \(item\)")
    assert len(waits) == 60 and len({e["tid"] for e in waits}) == 3
    assert sum(e["args"]["ops"] for e in spans(profile, "flush .*")) == 120


def test_profiles_do_not_nest_and_one_follows_another(remote):
    x = torch.ones(4, device=remote)
    with torch.remote.profile() as outer:
        x.sum().item()
        with pytest.raises(RuntimeError, match="records a profile already"), torch.remote.profile():
            pass
        x.sum().item()
    with torch.remote.profile() as second:
        x.sum().item()
    assert len(spans(outer, r"wait \(item\)")) == 2
    assert len(spans(second, r"wait \(item\)")) == 1
    with pytest.raises(RuntimeError, match="available after the block"):
        torch.remote.profile().summary()
    with pytest.raises(ValueError, match="max_events"):
        torch.remote.profile(max_events=0)


def test_an_unwritable_path_is_said_at_entry(remote, tmp_path):
    entered = False
    with pytest.raises(OSError), torch.remote.profile(tmp_path / "missing" / "trace.json"):
        entered = True
    assert not entered
    with torch.remote.profile():  # the failure left no state behind
        pass


def test_what_is_too_much_is_dropped_and_counted(remote, tmp_path):
    x = torch.ones(4, device=remote)
    path = tmp_path / "trace.json"
    with torch.remote.profile(path, max_events=30) as profile:
        for _ in range(50):
            (x + 1).sum().item()
    check_format(profile.events)
    marks = [e["name"] for e in profile.events if e["ph"] == "i"]
    assert len(marks) == 2 and all(re.fullmatch(r"\d+ events dropped", mark) for mark in marks), marks
    assert json.loads(path.read_text())["otherData"]["events_dropped"] > 100
    assert "events dropped" in profile.summary()


def test_failures_of_ops_are_raised_where_they_would_be(remote):
    x = torch.ones(4, 2, device=remote)
    index = torch.tensor([9]).to(remote)
    with torch.remote.profile() as profile:
        bad = x.index_select(0, index)
    assert [e for e in profile.events if e.get("cat") == "op"]
    with pytest.raises(IndexError):
        bad.cpu()


def test_an_exception_in_the_block_leaves_the_trace(remote, tmp_path):
    path = tmp_path / "trace.json"
    with pytest.raises(ZeroDivisionError), torch.remote.profile(path):
        torch.ones(4, device=remote).sum().item()
        1 / 0  # noqa: B018
    check_format(json.loads(path.read_text())["traceEvents"])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_worker_lost_in_the_middle_leaves_the_trace_so_far(remote, worker_processes, tmp_path, restarts):
    path = tmp_path / "trace.json"
    x = torch.ones(4, device=remote)
    x.sum().item()
    with torch.remote.profile(path) as profile:
        (x + 1).sum().item()  # lost worker's line
        time.sleep(0.2)  # an idle worker sends what it has recorded after 0.1 s
        (x * 1).sum().item()
        time.sleep(0.4)
        (pid,) = worker_processes()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(torch.remote.WorkerLost):
            for _ in range(100):
                (x + 2).sum().item()
        if restarts:
            torch.remote.restart()
            torch.ones(4, device=remote).exp().sum().item()
    torch.remote.restart()
    events = json.loads(path.read_text())["traceEvents"]
    check_format(events)
    check_nesting(events)
    assert spans(profile, r"wait \(item\)")
    (add,) = [e for e in events if e.get("cat") == "op" and e["name"] == "add.Tensor"]
    assert add["args"]["op"].startswith("aten::add.Tensor(f32[4]")
    assert f"test_profile.py:{line_of('lost worker')}" in add["args"]["line"]
    (mark,) = [e for e in events if e["ph"] == "i"]
    assert mark["name"] == "worker lost" and mark["pid"] == add["pid"] and "0.1 s" in mark["args"]["note"]
    assert mark["ts"] >= add["ts"] + 300_000
    text = profile.summary()
    assert re.search(r"lost [\d.]+ ms after the profile began: .*restart", text) and "aten::add.Tensor" in text, text
    assert ("aten::exp" in text) == restarts


def test_a_worker_that_is_replaced_gives_what_it_recorded(remote):
    with torch.remote.profile() as profile:
        (torch.ones(4, device=remote) + 1).sum().item()
        torch.remote.restart()
        (torch.ones(4, device=remote) - 1).sum().item()
    names = {e["name"] for e in profile.events if e.get("cat") == "op"}
    assert {"add.Tensor", "sub.Tensor"} <= names
    assert len({e["pid"] for e in profile.events if e.get("cat") == "op"}) == 2
    check_nesting(profile.events)


@pytest.mark.parametrize("where", ["local", "inproc"])
def test_no_worker_is_started_by_a_profile_and_the_first_is_recorded(script, remote, where):
    result = script(
        """
    import torch, torch_remote
    with torch.remote.profile() as nothing:
        pass
    assert torch_remote._C.worker_info(0) is None
    assert not [e for e in nothing.events if e["ph"] == "X"], nothing.events
    print(nothing.summary().splitlines()[0])
    with torch.remote.profile() as profile:
        (torch.ones(4, device="remote") + 1).sum().item()
    print([e["name"] for e in profile.events if e.get("cat") == "op"])
    print(len([e for e in profile.events if e["name"] == "start worker"]), len({e["pid"] for e in profile.events}))
    """,
        TORCH_REMOTE_WORKER=where,
    )
    first, ops, counts = result.stdout.splitlines()
    assert first.startswith("profile: ")
    assert "'add.Tensor', 'sum'" in ops
    assert counts == "1 3"  # client, wire, worker


def test_a_reply_that_is_logged_before_its_message():
    """The sending thread may be preempted between sending a message and logging it."""
    from torch_remote.profiling.events import chrome_events
    from torch_remote.profiling.recording import ClientEvent, Recording, Worker, WorkerMessage

    def event(kind: str, name: str, thread: int, begin: int, end: int) -> ClientEvent:
        return ClientEvent(kind, name, thread, begin, end, 0, 1, -1, 0, 8, 0, "")

    log = [event("reply", "", 12, 6000, 6500), event("send", "read", 11, 1000, 9000)]
    for client in (log, log[::-1]):
        worker = Worker(20, "local", None, 0, None, messages=[WorkerMessage("read", 1, 2000, 5000)])
        events = chrome_events(Recording(10, 0, 10_000, {11: "main", 12: "reader"}, client, 0, [worker], []))
        check_format(events)
        assert sorted(e["name"] for e in events if e["ph"] in "sf") == ["read", "read", "reply", "reply"]


def test_names_of_threads_that_are_no_text():
    """The kernel cuts a name after 15 bytes, perhaps within a character."""
    import ctypes

    from torch_remote.profiling.recording import _thread_names

    named, over, found = threading.Event(), threading.Event(), []

    def work() -> None:
        found.append(threading.get_native_id())
        ctypes.CDLL(None).prctl(15, "abcdefghijklmnä".encode(), 0, 0, 0)  # PR_SET_NAME
        named.set()
        over.wait(60)

    _thread.start_new_thread(work, ())  # threading does not know it
    assert named.wait(60)
    names = _thread_names([{"kind": "wait", "thread": found[0]}, {"kind": "wait", "thread": 2**30}])
    over.set()
    assert names[found[0]] == "abcdefghijklmn\ufffd" and names[2**30] == "thread"


def test_clocks():
    from torch_remote.profiling.recording import clock_of

    assert clock_of([])(5) == 5
    assert clock_of([(1000, -20, 30)])(5) == 5  # the same clock, within the precision of the measurement
    ahead = clock_of([(1000, 4980, 5020)])
    assert ahead(6000) == 1000
    drifting = clock_of([(0, 1000, 1000), (1_000_000, 1100, 1100)])
    assert drifting(1000) == 0
    assert abs(drifting(1_001_100) - 1_000_000) <= 1
    assert abs(drifting(501_050) - 500_000) <= 1
