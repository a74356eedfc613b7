"""torch.remote.load_file: safetensors files to the device, read by the worker or sent in pieces."""

import functools
import json
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from python_processes import Python, run_python
from safetensors.torch import save_file

from torch_remote import weights


@pytest.fixture(params=[weights._PIECE, 64], ids=["one piece", "pieces"])
def piece(request, monkeypatch):
    monkeypatch.setattr(weights, "_PIECE", request.param)
    return request.param


@pytest.fixture(params=[True, False], ids=["there", "sent"])
def load(request):
    return functools.partial(torch.remote.load_file, on_worker=request.param)


def tensors():
    return {
        "matrix": torch.randn(33, 17),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "half": torch.randn(5, 7).half(),
        "brain": torch.randn(41).bfloat16(),
        "eight": torch.randn(65).to(torch.float8_e4m3fn),
        "long": torch.randint(-9, 9, (3, 2, 5)),
        "bytes": torch.randint(0, 255, (129,), dtype=torch.uint8),
        "bool": torch.randn(70) > 0,
        "complex": torch.randn(9, dtype=torch.complex64),
    }


def same(got, expected):
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].device.type == "remote" and got[name].dtype == tensor.dtype, name
        assert torch.equal(got[name].cpu().view(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name
        assert got[name].shape == tensor.shape and got[name].is_contiguous(), name


def test_all_dtypes(remote, tmp_path, load, piece):
    expected = tensors()
    save_file(expected, tmp_path / "w.safetensors", metadata={"format": "pt"})
    same(load(tmp_path / "w.safetensors"), expected)
    same(load(str(tmp_path / "w.safetensors"), device="remote:0", progress=False), expected)
    here = torch.remote.load_file(tmp_path / "w.safetensors", device="cpu")
    for name in expected:
        assert here[name].device.type == "cpu"
        (tmp_path / "w.safetensors").touch()
        here[name].zero_()  # the result is a copy of the file
    same(load(tmp_path / "w.safetensors", device=0), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_change_on_the_way(remote, tmp_path, load, piece, dtype):
    expected = tensors()
    save_file(expected, tmp_path / "w.safetensors")
    expected = {k: t.to(dtype) if t.dtype.is_floating_point else t for k, t in expected.items()}
    same(load(tmp_path / "w.safetensors", dtype=dtype), expected)


def shards(folder):
    expected = {name: t for name, t in tensors().items() if name != "empty"}
    names = list(expected)
    files = {"model-00001-of-00002.safetensors": names[:4], "model-00002-of-00002.safetensors": names[4:]}
    for file, its in files.items():
        save_file({name: expected[name] for name in its}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, its in files.items() for name in its}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return expected, index


def test_shards(remote, tmp_path, load):
    expected, index = shards(tmp_path)
    same(load(tmp_path / "model.safetensors.index.json"), expected)
    same(load(tmp_path), expected)
    del index["weight_map"]["matrix"]  # only tensors that the index names are loaded
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "matrix" not in load(tmp_path)
    index["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(KeyError, match="'ghost', which it does not contain"):
        load(tmp_path)
    for wrong in ("../other.safetensors", "/etc/passwd"):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": wrong}}))
        with pytest.raises(ValueError, match="is outside of its folder"):
            load(tmp_path)


def test_folders(remote, tmp_path):
    load = torch.remote.load_file
    with pytest.raises(FileNotFoundError, match="has no safetensors files"):
        load(tmp_path)
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    assert load(tmp_path)["a"].tolist() == [1, 1]
    save_file({"a": torch.ones(2)}, tmp_path / "two.safetensors")
    with pytest.raises(FileNotFoundError, match="has 2 safetensors files without an index; name one"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="No such file"):
        load(tmp_path / "three.safetensors")
    with pytest.raises(FileNotFoundError, match="No such file"):
        load(tmp_path / "three.safetensors", on_worker=True)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "three.safetensors", on_worker=False)
    with pytest.raises(ValueError, match="on_worker=True is for tensors on a remote device, not on cpu"):
        load(tmp_path / "one.safetensors", "cpu", on_worker=True)


def raw(header, data=b"", pad=True):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    text += b" " * (-len(text) % 8 if pad else 0)
    return struct.pack("<Q", len(text)) + text + data


F4 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has 0 bytes"),
        (b"abc", "it has 3 bytes"),
        (b"\xff" * 64, "its header would have 18446744073709551615 bytes"),
        (struct.pack("<Q", 100) + b"{}", "its header would have 100 bytes"),
        (raw(b"{"), "its header is not understood"),
        (raw(b"[1]"), "its header is not understood"),
        (raw({"a": 3}), "its header is not understood"),
        (raw({"a": {**F4, "dtype": "F3"}}, b"0000"), "'a' has the dtype 'F3', which torch does not have"),
        (raw({"a": {**F4, "shape": [-1]}}, b"0000"), "its header is not understood"),
        (raw({"a": {**F4, "shape": [True]}}, b"0000"), "its header is not understood"),
        (raw({"a": {**F4, "shape": [2]}}, b"0000"), "another number of bytes than its shape needs"),
        (raw({"a": {**F4, "shape": [1 << 62, 4]}}, b"0000"), "another number of bytes than its shape needs"),
        (raw({"a": F4, "b": F4}, b"0000"), "does not begin where the tensor before it ends"),
        (raw({"a": {**F4, "data_offsets": [4, 8]}}, b"00000000"), "does not begin where"),
        (raw({"a": F4}, b"000"), "but its header describes"),
        (raw({"a": F4}, b"00000"), "but its header describes"),
    ],
)
def test_damaged_files(remote, tmp_path, load, content, message):
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "w.safetensors")


def test_what_is_no_safetensors_file(remote, tmp_path):
    torch.save({"a": torch.ones(300)}, tmp_path / "w.bin")
    with pytest.raises(ValueError, match=r"torch\.load\(path, map_location='remote', mmap=True\)"):
        torch.remote.load_file(tmp_path / "w.bin")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="is not an index of safetensors files"):
        torch.remote.load_file(tmp_path / "config.json")
    with pytest.raises(ValueError, match=r"dtype=torch\.int8 is not a floating point type"):
        torch.remote.load_file(tmp_path / "w.bin", dtype=torch.int8)


def test_data_that_is_not_aligned(remote, tmp_path, load, piece):
    values = torch.randn(50)
    about = {"a": {"dtype": "F32", "shape": [50], "data_offsets": [0, 200]}}
    for spaces in range(4):
        text = json.dumps(about).encode() + b" " * spaces
        (tmp_path / "w.safetensors").write_bytes(raw(text, values.numpy().tobytes(), pad=False))
        assert torch.equal(load(tmp_path / "w.safetensors")["a"].cpu(), values)


def test_a_model_takes_them(remote, tmp_path, load):
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    with torch.device("meta"):
        there = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    there.load_state_dict(load(tmp_path / "m.safetensors"), assign=True)
    x = torch.randn(3, 8)
    torch.testing.assert_close(there(x.to("remote")).cpu(), model(x))
    there(x.to("remote")).sum().backward()
    assert there[0].weight.grad is not None


def test_progress_is_shown(remote, tmp_path, capsys, piece):
    save_file({"a": torch.ones(1000)}, tmp_path / "w.safetensors")
    torch.remote.load_file(tmp_path / "w.safetensors", progress=True)
    shown = capsys.readouterr().err
    assert "w.safetensors: 100%" in shown and "4.00k/4.00k" in shown
    torch.remote.load_file(tmp_path / "w.safetensors")
    assert capsys.readouterr().err == ""


def memory():
    """Anonymous memory of this process in bytes, without the file's pages and memory shared with a worker."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


def test_this_process_holds_no_second_copy(remote, tmp_path, load, monkeypatch):
    monkeypatch.setattr(weights, "_ON_THE_WAY", 16 << 20)
    save_file({f"l{i}": torch.full((4 << 20,), float(i)) for i in range(8)}, tmp_path / "w.safetensors")  # 128 MB
    torch.ones(1, device="remote").item()
    most, ended = 0, threading.Event()

    def watch():
        nonlocal most
        while not ended.wait(0.001):
            most = max(most, memory())

    watcher = threading.Thread(target=watch)
    before = memory()
    watcher.start()
    try:
        loaded = load(tmp_path / "w.safetensors")
        torch.remote.synchronize()
        time.sleep(0.01)
    finally:
        ended.set()
        watcher.join()
    assert most - before < 48 << 20
    assert [loaded[f"l{i}"].sum().item() for i in range(8)] == [float(i * (4 << 20)) for i in range(8)]


def test_no_bytes_go_through_this_process(remote, tmp_path):
    save_file({"a": torch.arange(1e6), "b": torch.ones(100, dtype=torch.half)}, tmp_path / "w.safetensors")
    torch.ones(1, device="remote").item()
    for dtype, sent in ((None, False), (torch.bfloat16, False), (None, True)):
        torch.remote.reset_stats()
        loaded = torch.remote.load_file(tmp_path / "w.safetensors", dtype=dtype, on_worker=False if sent else None)
        torch.remote.synchronize()
        assert loaded["a"].dtype == (dtype or torch.float32)
        stats = torch.remote.stats()
        assert stats["bytes_uploaded"] == (4_000_200 if sent else 0) and stats["bytes_downloaded"] < 1000
        assert loaded["a"][-1].item() == (torch.tensor(999999.0).to(dtype) if dtype else 999999)


def test_what_the_worker_read_is_a_copy(remote, tmp_path):
    save_file({"a": torch.ones(1000)}, tmp_path / "w.safetensors")
    loaded = torch.remote.load_file(tmp_path / "w.safetensors", on_worker=True)
    loaded["a"].add_(1)
    save_file({"a": torch.full((1000,), 7.0)}, tmp_path / "w.safetensors")
    assert loaded["a"].sum().item() == 2000
    assert torch.remote.load_file(tmp_path / "w.safetensors", on_worker=True)["a"].sum().item() == 7000


def test_links_and_relative_paths(remote, tmp_path, monkeypatch):
    (tmp_path / "blobs").mkdir()
    save_file({"a": torch.ones(3)}, tmp_path / "blobs/5f2c")
    (tmp_path / "w.safetensors").symlink_to("blobs/5f2c")  # as model hubs store files
    monkeypatch.chdir(tmp_path)
    assert torch.remote.load_file("w.safetensors", on_worker=True)["a"].tolist() == [1, 1, 1]


def test_a_file_that_changes_meanwhile(remote, tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.ones(1000)}, path)
    original = weights.WorkerFile.read

    def read(self, offset, shape, dtype):
        if offset > 8:
            path.write_bytes(path.read_bytes()[:-4])
        return original(self, offset, shape, dtype)

    monkeypatch.setattr(weights.WorkerFile, "read", read)
    with pytest.raises(RuntimeError, match="was changed meanwhile; load it again"):
        torch.remote.load_file(path, on_worker=True)
    assert torch.ones(2, device="remote").sum().item() == 2  # the session still works


OTHER_WORKER = """
import sys
import torch, torch_remote
path, other, inside = sys.argv[1:]
load = torch.remote.load_file
assert load(path)["a"].tolist() == [1, 1]  # however it comes here
assert load(other)["a"].tolist() == [1, 1]
for wrong in (other, "../secret.safetensors/no"):
    try:
        load(wrong, on_worker=True)
    except (PermissionError, FileNotFoundError) as error:
        print(type(error).__name__, error)
if inside:
    torch.remote.reset_stats()
    assert load("w.safetensors")["a"].tolist() == [1, 1]  # of the worker's folder: there is none here
    assert torch.remote.stats()["bytes_uploaded"] == 0
"""


@pytest.mark.parametrize("allowed", [False, True])
def test_a_worker_that_listens(remote, tmp_path, allowed):
    (tmp_path / "in").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "in/w.safetensors")
    save_file({"a": torch.ones(2)}, tmp_path / "secret.safetensors")
    os.rename(tmp_path / "in/w.safetensors", tmp_path / "in/model.safetensors")
    os.link(tmp_path / "in/model.safetensors", tmp_path / "in/w.safetensors")
    python = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": python}
    arguments = [f"--allow-files={tmp_path}/in"] if allowed else []
    worker = Python(
        [sys.executable, "-m", "torch_remote.worker", "--listen", "tcp://127.0.0.1:0", *arguments],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        environment["TORCH_REMOTE_WORKER"] = worker.stdout.readline().strip()
        (tmp_path / "elsewhere").mkdir()
        result = run_python(
            "-c", OTHER_WORKER, tmp_path / "in/w.safetensors", "../secret.safetensors", "yes" if allowed else "",
            env=environment, cwd=tmp_path / "elsewhere",
        )  # fmt: skip
    finally:
        worker.kill()
        worker.wait()
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        if allowed:
            assert line.startswith("FileNotFoundError") and "outside of the folder" in line
        else:
            assert line.startswith("PermissionError") and "start it with --allow-files" in line
