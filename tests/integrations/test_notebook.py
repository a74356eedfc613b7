"""Notebooks: what their cells print, with nbclient and IPython's kernel."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jedi
import nbclient
import nbformat
import pytest
import torch
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import torch_remote


class Output(NamedTuple):
    text: str  # what the cell printed, and the text of its last expression
    error: str  # the message of its exception, after the class; empty: it raised none


Notebook = Callable[..., list[Output]]


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    """Runs cells in a kernel, in a folder of their own. Returns the output of each."""

    def run(*cells: str) -> list[Output]:
        sources = [textwrap.dedent(cell).strip() for cell in cells]
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        folders = {name: str(tmp_path / name) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
        client = nbclient.NotebookClient(book, allow_errors=True, timeout=120, kernel_name="python3")
        path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
        client.execute(cwd=str(tmp_path), env={**os.environ, **folders, "PYTHONPATH": path})
        return [output_of(cell) for cell in book.cells]

    return run


def output_of(cell: nbformat.NotebookNode) -> Output:
    text, error = "", ""
    for output in cell.outputs:
        match output.output_type:
            case "stream":
                text += output.text
            case "error":
                error = f"{output.ename}: {output.evalue}"
            case "execute_result":
                text += output.data["text/plain"]
    return Output(text, error)


def test_the_package_may_be_imported_before_ipython(script, remote):
    """IPython imports its compiler while it imports its shell, so the bridge then runs without a shell."""
    result = script(
        """
        import torch_remote
        from IPython.core import compilerop, interactiveshell
        assert hasattr(compilerop.CachingCompiler.cache, "__wrapped__")
        assert hasattr(interactiveshell.InteractiveShell.showtraceback, "__wrapped__")
        """,
        fresh=True,
    )
    assert "was not changed" not in result.stderr


def test_late_errors_name_cells(notebook, remote):
    *_, late, waited = notebook(
        "def pick(t, i):\n    return t[i]",  # before the import
        "import torch, torch_remote",
        "x = torch.arange(4.0, device='remote')\ni = torch.tensor([9], device='remote')",
        "y = x + 1\nz = pick(y, i)",
        "print(z)",
        """
        def norm(x):
            return x.norm().item()

        explanation = torch.remote.explain(norm, x, calls=1)
        print(explanation.syncs[0].line)
        """,
    )
    assert late.error == (
        "IndexError: index 9 is out of bounds for dimension 0 with size 4 [aten::index.Tensor(f32[4], [i64[1]])]\n"
        "  called from Cell In[4], line 2\n"
        "  recorded at Cell In[1], line 2, in pick"
    )
    assert waited.text == "Cell In[6], line 2, in norm\n"


def test_the_program_that_runs_cells_is_no_caller(script, remote):
    result = script(
        """
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    for cell in (
        "import torch, torch_remote",
        "z = torch.arange(4.0, device='remote')[torch.tensor([9], device='remote')]",
        "try:\\n    z.sum().item()\\nexcept IndexError as error:\\n    print(error)",
    ):
        shell.run_cell(cell, store_history=True)
    """
    )
    assert result.stdout.splitlines()[1:] == ["  recorded at Cell In[2], line 1"], result.stdout


INTERRUPT = """
    import os, signal, threading, time, torch, torch_remote
    from torch_remote import _C

    def interrupt_after(seconds):
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()

    def work(weight):
        big = torch.randn(1400, 1400, device="remote")
        for _ in range(200):
            big = big @ big
            big = big / big.abs().max()
            weight.add_(big)
        return big

    x = torch.ones(8, device="remote")
    weight = torch.ones(1400, 1400, device="remote")
    x.sum().item()
"""


STOP = "os.kill(_C.worker_info(0)['process'], signal.SIGSTOP)"  # the worker; after INTERRUPT
CONTINUE = "os.kill(_C.worker_info(0)['process'], signal.SIGCONT)"


def test_the_work_of_an_interrupted_cell_is_dropped(notebook, remote):
    _, interrupted, unrelated, dropped = notebook(
        INTERRUPT,
        "interrupt_after(1)\nresult = work(weight)\nresult.sum().item()",
        """
        begin = time.perf_counter()
        print((x + 1).sum().item(), weight.isfinite().all().item(), time.perf_counter() - begin < 3)
        """,
        "result.sum().item()",
    )
    assert interrupted.error == (
        "KeyboardInterrupt: remote: the work that this cell had queued was dropped. Tensors that it would have "
        'changed in place keep their contents; reading another result of it raises "remote: cancelled by '
        'torch.remote.cancel() or by the interrupt of a notebook cell". All work of earlier cells is done'
    )
    assert unrelated.text == "16.0 True True\n"
    assert "by torch.remote.cancel() or by the interrupt of a notebook cell" in dropped.error


def test_the_work_of_earlier_cells_is_not_dropped(notebook, remote):
    _, _, interrupted, _, kept = notebook(
        INTERRUPT,
        f"{STOP}\ny = x + 1\n_C.flush(0)",
        "interrupt_after(0.5)\ny.sum().item()",
        CONTINUE,
        "y.sum().item()",
    )
    assert interrupted.error == (
        "KeyboardInterrupt: remote: the worker continues with the queued work, because some of it is from earlier "
        "cells; reads wait for it. torch.remote.cancel() drops all of it"
    )
    assert kept.text == "16.0"


def test_work_that_is_soon_done_is_not_dropped(notebook, remote):
    _, interrupted, result, caught = notebook(
        INTERRUPT,
        "interrupt_after(0.5)\ny = x + 1\ntime.sleep(60)",
        "y.sum().item()",
        f"""
        {STOP}
        interrupt_after(0.5)
        try:
            (y * 2).sum().item()
        except KeyboardInterrupt as error:  # a cell that catches the interrupt keeps its work
            print(error)
        {CONTINUE}
        """,
    )
    assert interrupted.error == "KeyboardInterrupt: "
    assert result.text == "16.0"
    assert caught.text.startswith("while waiting for the remote worker, which continues with the queued work")


def write(name: str, text: str) -> str:
    """Source of a cell that writes a module."""
    return f"import pathlib\nwritten = pathlib.Path({name + '.py'!r}).write_text({textwrap.dedent(text)!r})"


HELPER = """
    FACTOR = 1
    def scale(x):
        return x * 2
    class Shift:
        def __call__(self, x):
            return x + 1
"""
OTHER = """
    from helper import scale
    def twice(x):
        return scale(scale(x))
"""
FUNCTIONS = """
    import torch_remote, helper
    from helper import scale
    @torch_remote.function
    def by_name(x):
        return scale(x)
    @torch_remote.function
    def by_import(x):
        import other
        return other.twice(x) * helper.FACTOR
    @torch_remote.function
    def by_class(x):
        return helper.Shift()(x)
    @torch_remote.function
    def itself(x):
        return x + 100
"""
VALUES = """
    functions = by_name, by_import, by_class, itself, module.itself, wrapped, here
    print([function(x).item() for function in functions])
"""


def test_edited_modules_of_functions_are_reloaded(notebook, remote):
    outputs = notebook(
        "import torch, torch_remote\n%load_ext autoreload\n%autoreload 2",
        write("helper", HELPER),
        write("other", OTHER),
        write("functions", FUNCTIONS),
        """
        import functions as module, helper
        from functions import by_class, by_import, by_name, itself
        wrapped = torch_remote.function(helper.scale)
        @torch_remote.function
        def here(x):
            return helper.scale(x)
        x = torch.ones((), device="remote")
        """,
        VALUES,
        # The same sizes, and perhaps within the same second. (autoreload compares times, which may be coarse.)
        "import time; time.sleep(0.05)\n" + write("helper", HELPER.replace("* 2", "* 3").replace("= 1", "= 5")),
        VALUES,
        "time.sleep(0.05)\n" + write("functions", FUNCTIONS.replace("100", "200")),
        VALUES,
        "time.sleep(0.05)\n" + write("helper", HELPER.replace("x * 2", "x.no_such_method()")),
        "here(x)",
        "time.sleep(0.05)\n" + write("helper", HELPER),
        VALUES,
    )
    assert [output.text for output in outputs if output.text] == [
        "[2.0, 4.0, 2.0, 101.0, 101.0, 2.0, 2.0]\n",
        "[3.0, 45.0, 2.0, 101.0, 101.0, 3.0, 3.0]\n",
        "[3.0, 45.0, 2.0, 201.0, 201.0, 3.0, 3.0]\n",
        "[2.0, 4.0, 2.0, 201.0, 201.0, 2.0, 2.0]\n",
    ]
    (failure,) = [output.error for output in outputs if output.error]
    assert failure == "AttributeError: 'Tensor' object has no attribute 'no_such_method'"


def test_vs_codes_view_of_variables_does_not_wait(notebook, remote):
    """VS Code runs functions with such names in the kernel, between the user's cells."""
    _, _, away, _, there = notebook(
        INTERRUPT,
        "def _VSCODE_getVariable(variable):\n    return str(variable)",
        f"{STOP}\nprint(_VSCODE_getVariable(x))",
        f"{CONTINUE}\ntorch.remote.synchronize()",
        "print(_VSCODE_getVariable(x))\nx",
    )
    assert away.text.startswith("tensor(<not read: the worker is busy or away; print() waits for it>, size=(8,),")
    values = "tensor([1., 1., 1., 1., 1., 1., 1., 1.], device='remote:0')"
    assert there.text == f"{values}\n{values}"


@pytest.mark.parametrize("use_jedi", [False, True])
def test_completion_offers_no_imported_names(remote, use_jedi, monkeypatch, tmp_path):
    # Jedi stores what it parsed. Where it cannot, as in a sandbox, it raises, and IPython hides that.
    monkeypatch.setattr(jedi.settings, "cache_directory", str(tmp_path))
    shell = InteractiveShell()
    shell.user_ns.update(torch=torch, torch_remote=torch_remote)
    shell.Completer.use_jedi = use_jedi
    names = ["amp", "memory", "nvtx", "random", "streams"]
    modules = {f"torch.remote.{name}": getattr(torch.remote, name) for name in names}
    for name, module in {**modules, "torch.remote": torch.remote, "torch_remote": torch_remote}.items():
        text = f"{name}."
        with provisionalcompleter():
            found = {completion.text.lstrip(".") for completion in shell.Completer.completions(text, len(text))}
        assert found and found <= set(module.__all__), (name, sorted(found - set(module.__all__)))
