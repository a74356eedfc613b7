"""torch.remote.load_file: safetensors files to the device, in pieces."""

import json
import struct
import threading
import time

import pytest
import torch
from safetensors.torch import save_file

from torch_remote import weights


@pytest.fixture(params=[weights._PIECE, 64], ids=["one piece", "pieces"])
def piece(request, monkeypatch):
    monkeypatch.setattr(weights, "_PIECE", request.param)
    return request.param


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


def test_all_dtypes(remote, tmp_path, piece):
    expected = tensors()
    save_file(expected, tmp_path / "w.safetensors", metadata={"format": "pt"})
    same(torch.remote.load_file(tmp_path / "w.safetensors"), expected)
    same(torch.remote.load_file(str(tmp_path / "w.safetensors"), device="remote:0", progress=False), expected)
    here = torch.remote.load_file(tmp_path / "w.safetensors", device="cpu")
    for name in expected:
        assert here[name].device.type == "cpu"
        (tmp_path / "w.safetensors").touch()
        here[name].zero_()  # it is a copy
    same(torch.remote.load_file(tmp_path / "w.safetensors", device=0), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_change_on_the_way(remote, tmp_path, piece, dtype):
    expected = tensors()
    save_file(expected, tmp_path / "w.safetensors")
    expected = {k: t.to(dtype) if t.dtype.is_floating_point else t for k, t in expected.items()}
    same(torch.remote.load_file(tmp_path / "w.safetensors", dtype=dtype), expected)


def shards(folder):
    expected = {name: t for name, t in tensors().items() if name != "empty"}
    names = list(expected)
    files = {"model-00001-of-00002.safetensors": names[:4], "model-00002-of-00002.safetensors": names[4:]}
    for file, its in files.items():
        save_file({name: expected[name] for name in its}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, its in files.items() for name in its}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return expected, index


def test_shards(remote, tmp_path):
    expected, index = shards(tmp_path)
    same(torch.remote.load_file(tmp_path / "model.safetensors.index.json"), expected)
    same(torch.remote.load_file(tmp_path), expected)
    del index["weight_map"]["matrix"]  # only what the index names
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "matrix" not in torch.remote.load_file(tmp_path)
    index["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(KeyError, match="'ghost', which it has not"):
        torch.remote.load_file(tmp_path)
    for wrong in ("../other.safetensors", "/etc/passwd"):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": wrong}}))
        with pytest.raises(ValueError, match="is outside of its folder"):
            torch.remote.load_file(tmp_path)


def test_folders(remote, tmp_path):
    with pytest.raises(FileNotFoundError, match="has no safetensors files"):
        torch.remote.load_file(tmp_path)
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    assert torch.remote.load_file(tmp_path)["a"].tolist() == [1, 1]
    save_file({"a": torch.ones(2)}, tmp_path / "two.safetensors")
    with pytest.raises(FileNotFoundError, match="has 2 safetensors files without an index; name one"):
        torch.remote.load_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        torch.remote.load_file(tmp_path / "three.safetensors")


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
        (raw({"a": {**F4, "dtype": "F3"}}, b"0000"), "'a' has the dtype 'F3', which torch has not"),
        (raw({"a": {**F4, "shape": [-1]}}, b"0000"), "its header is not understood"),
        (raw({"a": {**F4, "shape": [True]}}, b"0000"), "its header is not understood"),
        (raw({"a": {**F4, "shape": [2]}}, b"0000"), "another number of bytes than its shape says"),
        (raw({"a": {**F4, "shape": [1 << 62, 4]}}, b"0000"), "another number of bytes than its shape says"),
        (raw({"a": F4, "b": F4}, b"0000"), "does not begin where the tensor before it ends"),
        (raw({"a": {**F4, "data_offsets": [4, 8]}}, b"00000000"), "does not begin where"),
        (raw({"a": F4}, b"000"), "and its header speaks of"),
        (raw({"a": F4}, b"00000"), "and its header speaks of"),
    ],
)
def test_damaged_files(remote, tmp_path, content, message):
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        torch.remote.load_file(tmp_path / "w.safetensors")


def test_what_is_no_safetensors_file(remote, tmp_path):
    torch.save({"a": torch.ones(300)}, tmp_path / "w.bin")
    with pytest.raises(ValueError, match=r"torch\.load\(path, map_location='remote', mmap=True\)"):
        torch.remote.load_file(tmp_path / "w.bin")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="is no index of safetensors files"):
        torch.remote.load_file(tmp_path / "config.json")
    with pytest.raises(ValueError, match=r"dtype=torch\.int8 is no floating point type"):
        torch.remote.load_file(tmp_path / "w.bin", dtype=torch.int8)


def test_data_that_is_not_aligned(remote, tmp_path, piece):
    values = torch.randn(50)
    about = {"a": {"dtype": "F32", "shape": [50], "data_offsets": [0, 200]}}
    for spaces in range(4):
        text = json.dumps(about).encode() + b" " * spaces
        (tmp_path / "w.safetensors").write_bytes(raw(text, values.numpy().tobytes(), pad=False))
        assert torch.equal(torch.remote.load_file(tmp_path / "w.safetensors")["a"].cpu(), values)


def test_a_model_takes_them(remote, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    with torch.device("meta"):
        there = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    there.load_state_dict(torch.remote.load_file(tmp_path / "m.safetensors"), assign=True)
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
    """Of this process and nobody else, in bytes: neither the file's pages nor those that a worker shares."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


def test_this_process_holds_no_second_copy(remote, tmp_path, monkeypatch):
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
        loaded = torch.remote.load_file(tmp_path / "w.safetensors")
        torch.remote.synchronize()
        time.sleep(0.01)
    finally:
        ended.set()
        watcher.join()
    assert most - before < 48 << 20
    assert [loaded[f"l{i}"].sum().item() for i in range(8)] == [float(i * (4 << 20)) for i in range(8)]
