"""When bridges run, and how to disable them. The tests use an artificial library and bridge."""

import importlib
import itertools
import logging
import sys
import types
from pathlib import Path

import pytest
import torch

import torch_remote.integrations as integrations
from torch_remote.integrations.upstream import existing, is_remote, replace

_names = (f"made_for_bridges_{i}" for i in itertools.count())


@pytest.fixture
def library(monkeypatch, tmp_path):
    """Creates a package with a module `part`, and a bridge that sets its `device` to "remote". Returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(integrations, "_waiting", {})

    def bridge(module):
        existing(module, "device")
        replace(module, "device", "remote")

    def make(part="device = object()", package=""):
        name = next(_names)
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(package)
        (tmp_path / name / "part.py").write_text(part.format(name=name))
        fake = types.ModuleType(f"torch_remote.integrations.{name}")
        fake.bridge = bridge
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
        monkeypatch.setattr(integrations, "BRIDGES", {name: (f"{name}.part",)})
        importlib.invalidate_caches()
        return name

    return make


def test_a_bridge_runs_when_its_library_is_imported(library):
    name = library()
    integrations.install()
    assert name not in sys.modules
    package = importlib.import_module(f"{name}.part")
    assert package.device == "remote" and not integrations._waiting
    assert type(package.__spec__) is importlib.machinery.ModuleSpec  # the import machinery leaves no trace


def test_a_bridge_reaches_what_was_imported_before_under_any_name(library):
    name = library(package="from .part import device as mine")
    package = importlib.import_module(name)
    integrations.install()
    assert package.part.device == package.mine == "remote"


def test_a_bridge_waits_for_a_library_that_is_being_imported(library):
    """A library that is the first to import torch may load this package before the library has defined anything."""
    install = "import torch_remote.integrations\ntorch_remote.integrations.install()\n"
    name = library(part=install + "device = object()")
    assert importlib.import_module(f"{name}.part").device == "remote"


def test_a_library_that_fails_to_import_is_not_bridged(library, caplog):
    name = library(part="raise ImportError('its own reason')")
    integrations.install()
    with pytest.raises(ImportError, match="its own reason"):
        importlib.import_module(f"{name}.part")
    assert not caplog.records


def test_an_unknown_upstream_is_left_as_it_is_with_a_warning(library, caplog):
    name = library(part="other = 1")
    integrations.install()
    with caplog.at_level(logging.WARNING):
        assert importlib.import_module(f"{name}.part").other == 1
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith(
        f"remote: {name}.part differs from the versions that the integration {name!r} supports, and was not changed"
    )
    assert f"UnknownUpstream: {name}.part has no device" in message
    assert message.endswith(f"TORCH_REMOTE_INTEGRATIONS=-{name} leaves that integration out")


@pytest.mark.parametrize(
    ("value", "without"),
    [("", []), ("1", []), ("-lightning", ["lightning"]), ("-lightning, -dlpack", ["lightning", "dlpack"])],
)
def test_bridges_are_left_out_by_one_variable(monkeypatch, value, without):
    monkeypatch.setenv("TORCH_REMOTE_INTEGRATIONS", value)
    assert set(integrations._chosen()) == set(integrations.BRIDGES) - set(without)


@pytest.mark.parametrize("value", ["no", "lightning", "-ligthning"])
def test_a_malformed_variable_names_what_there_is(monkeypatch, value):
    monkeypatch.setenv("TORCH_REMOTE_INTEGRATIONS", value)
    match = f"remote: TORCH_REMOTE_INTEGRATIONS={value!r} is not .* accelerate, debuggers, dlpack"
    with pytest.raises(ValueError, match=match):
        integrations.install()


def test_without_bridges_everything_is_upstreams(script, remote):
    script(
        """
    import sys, torch
    meta_path, share = list(sys.meta_path), torch.Tensor.__dlpack__
    import torch_remote
    assert torch.Tensor.__dlpack__ is share and sys.meta_path == meta_path
    from stable_baselines3.common.utils import get_device
    assert get_device() == torch.device("cpu")
    """,
        TORCH_REMOTE_INTEGRATIONS="0",
    )


def test_libraries_imported_first_are_bridged(script, remote):
    script(
        """
    import sys
    from accelerate import Accelerator
    from safetensors import safe_open
    from transformers.training_args import is_torch_bf16_gpu_available
    assert "torch_remote" not in sys.modules
    import torch_remote, torch
    from accelerate.utils import get_max_memory, DynamoBackend
    from transformers.training_args import is_torch_bf16_gpu_available as bf16
    assert Accelerator(mixed_precision="fp16").device == torch.device("remote", 0)
    assert list(get_max_memory())[0] == 0 and DynamoBackend.REMOTE and bf16()
    import safetensors
    assert safe_open is safetensors.safe_open and bf16 is is_torch_bf16_gpu_available  # the script's own names, too
    """
    )


def test_autoload_while_a_library_is_the_first_to_import_torch(script, remote):
    script(
        """
    from accelerate import Accelerator
    import sys
    assert "torch_remote" in sys.modules
    accelerator = Accelerator(mixed_precision="fp16")
    assert accelerator.device.type == "remote" and accelerator.scaler.is_enabled()
    """,
        TORCH_REMOTE_AUTOLOAD="1",
    )


def test_autoload_refuses_other_values_where_the_device_is_used(script, remote):
    result = script(
        """
    import torch
    assert not hasattr(torch, "remote")
    import torch_remote
    torch.ones(1, device="remote").item()
    """,
        status=1,
        TORCH_REMOTE_AUTOLOAD="yes",
    )
    assert "remote: TORCH_REMOTE_AUTOLOAD='yes' is not a setting; use '0' (the default) or '1'" in result.stderr


def test_devices_as_libraries_give_them():
    assert all(is_remote(d) for d in ("remote", "remote:1", torch.device("remote"), torch.device("remote", 0)))
    assert not any(is_remote(d) for d in ("cpu", "remotely", 0, None, torch.device("cpu"), torch.device("cuda", 0)))


def test_every_bridge_is_listed_and_documented():
    files = {path.stem for path in Path(integrations.__file__).parent.glob("*.py")} - {"__init__", "upstream"}
    assert files == set(integrations.BRIDGES)
    text = Path("docs/integrations.md").read_text().lower()
    titles = {"flex_attention": "`flex_attention`", "inductor": "`torch.compile`"}
    assert [name for name in integrations.BRIDGES if f"| {titles.get(name, name.replace('_', '-'))}" not in text] == []
