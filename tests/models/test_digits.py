"""The digits example: training on the device reaches CPU's accuracy, with the same losses."""

import json
import re

import torch
import train_digits


def run(monkeypatch, capsys, tmp_path, device):
    losses = tmp_path / f"{device.type}.json"
    monkeypatch.setattr("sys.argv", ["train_digits", "--device", str(device), "--losses", str(losses)])
    train_digits.main()
    output = capsys.readouterr().out
    return json.loads(losses.read_text()), float(re.findall(r"accuracy ([\d.]+)%", output)[-1])


def test_digits(monkeypatch, capsys, tmp_path, device):
    expected, _ = run(monkeypatch, capsys, tmp_path, torch.device("cpu"))
    losses, accuracy = run(monkeypatch, capsys, tmp_path, device)
    assert accuracy >= 97
    assert len(losses) == len(expected) == 50
    for step, (got, want) in enumerate(zip(losses, expected, strict=True)):
        assert abs(got - want) <= 1e-4 * abs(want), f"step {step}: loss {got}, on CPU {want}"
