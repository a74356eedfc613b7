"""The tiny_gpt example at its smallest size: losses equal CPU's, and a resumed run equals an uninterrupted one."""

import json

import pytest
import tiny_gpt
import torch

STEPS = 8


def run(monkeypatch, tmp_path, device, *arguments):
    losses = tmp_path / "losses.json"
    given = ["--device", str(device), "--preset", "small", "--quiet", "--steps", str(STEPS), "--losses", str(losses)]
    monkeypatch.setattr("sys.argv", ["tiny_gpt", *given, *arguments])
    tiny_gpt.main()
    return json.loads(losses.read_text())


@pytest.mark.parametrize("precision, tolerance", [("float32", 1e-4), ("bfloat16", 2e-2)])
def test_losses_equal_cpu(device, monkeypatch, tmp_path, precision, tolerance):
    arguments = ("--precision", precision, "--sample", "0")
    expected = run(monkeypatch, tmp_path, "cpu", *arguments)
    losses = run(monkeypatch, tmp_path, device, *arguments)
    assert len(losses) == STEPS
    torch.testing.assert_close(losses, expected, rtol=tolerance, atol=tolerance)
    assert losses[-1] < losses[0] - 0.2


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_an_interrupted_run_goes_on_as_if_it_was_not(device, monkeypatch, tmp_path, capsys):
    whole = run(monkeypatch, tmp_path, device)
    text = capsys.readouterr().out.splitlines()
    saving = ("--checkpoint", str(tmp_path / "gpt.pt"), "--save", "2")
    before = run(monkeypatch, tmp_path, device, *saving, "--stop", "3", "--sample", "0")
    capsys.readouterr()
    after = run(monkeypatch, tmp_path, device, *saving, "--resume")
    assert len(before) == 3 and before + after == whole
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "goes on after step 3"
    assert said[4:-1] == text[3:-1], "what it writes is something else"  # the last line has a speed


def test_a_checkpoint_of_another_model_is_refused(device, monkeypatch, tmp_path):
    file = tmp_path / "gpt.pt"
    tiny_gpt.Training(tiny_gpt.PRESETS["small"], torch.device("cpu"), 0).save(file)
    assert not list(tmp_path.glob("*.part"))
    other = tiny_gpt.replace(tiny_gpt.PRESETS["small"], width=48)
    with pytest.raises(SystemExit, match="other sizes"):
        tiny_gpt.Training(other, torch.device("cpu"), 0).load(file)


def test_accumulated_gradients_are_those_of_the_whole_batch(device):
    preset = tiny_gpt.PRESETS["small"]
    text = tiny_gpt.docstrings(preset.modules)
    batches = [tiny_gpt.batch_of(text, preset, number, seed=0) for number in range(2)]
    model = tiny_gpt.Training(preset, device, 0).model
    for batch in batches:
        (tiny_gpt.loss_of(model, batch, device, "float32") / 2).backward()
    parts = [p.grad.cpu() for p in model.parameters()]
    model.zero_grad()
    whole = tuple(torch.cat(both) for both in zip(*batches, strict=True))
    tiny_gpt.loss_of(model, whole, device, "float32").backward()
    torch.testing.assert_close([p.grad.cpu() for p in model.parameters()], parts, rtol=1e-3, atol=1e-5)


def test_the_cache_changes_no_score(device):
    preset = tiny_gpt.PRESETS["small"]
    model = tiny_gpt.Training(preset, device, 0).model.eval()
    tokens = torch.randint(256, (1, 9), device=device)
    with torch.no_grad():
        expected, _ = model(tokens)
        scores, cache = model(tokens[:, :4])
        rows = [scores]
        for i in range(4, 9):
            scores, cache = model(tokens[:, i : i + 1], cache)
            rows.append(scores)
    torch.testing.assert_close(torch.cat(rows, 1).cpu(), expected.cpu(), rtol=1e-4, atol=1e-5)


def test_the_full_size():
    model = tiny_gpt.TinyGPT(tiny_gpt.PRESETS["full"])
    assert 4.5e6 < sum(p.numel() for p in model.parameters()) < 5.5e6
