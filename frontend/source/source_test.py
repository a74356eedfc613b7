"""Compares the frames that source.h finds with those of sys._getframe(), in every way that CPython calls Python code.

The module needs no torch and no pytest, because it also runs with Pythons that have neither:

bazel run //tests/package:other_pythons -- python3.12 python3.13 python3.14
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib.util
import itertools
import os
import re
import sys
import sysconfig
import tempfile
import threading
import types
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WARM = 400  # calls after which CPython has specialized its instructions


def load_probe() -> Any:
    file = os.environ.get("TORCH_REMOTE_PROBE") or str(Path(__file__).parent / "probe.so")
    spec = importlib.util.spec_from_file_location("probe", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


probe = load_probe()
STANDARD = sysconfig.get_path("stdlib") + "/"
PACKAGES = "/site-packages/"
SOURCE_LINE = re.compile(r"^ *(?:called from |recorded at )?(.*):(-?\d+) in (.*)$")


def frames_of(frame: types.FrameType | None) -> list[types.FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


class Here:
    """Compares the frames of a call with those of Python. The tests call it in many ways."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: Any) -> int:
        self.compare()
        return 0

    def compare(self) -> None:
        frame = sys._getframe()
        found, line, stack, number = *probe.read(), frame.f_lineno
        innermost, *callers = found
        assert innermost[0] is frame.f_code and innermost[2] == number, innermost
        assert line == f"{__file__}:{number} in Here.compare", line
        expected = [(frame.f_code, frame.f_lasti, frame.f_lineno) for frame in frames_of(frame.f_back)]
        assert callers == expected, f"\n{callers}\n{expected}"
        self.compare_stack(stack, callers)
        self.calls += 1

    def compare_stack(self, stack: str, callers: list[tuple[types.CodeType, int, int]]) -> None:
        """Compares the callers up to the first one of a library, such as unittest. describe_stack() has 24 of them."""
        files = (code.co_filename for code, _, _ in callers)
        users = list(itertools.takewhile(lambda file: not file.startswith(STANDARD) and PACKAGES not in file, files))
        expected = [(c.co_filename, str(number), c.co_qualname) for c, _, number in callers[: len(users)][:24]]
        lines = [match.groups() for match in map(SOURCE_LINE.match, reversed(stack.splitlines())) if match]
        assert lines[1 : len(expected) + 1] == expected, f"\n{expected}\n{stack}"


class Called:
    """Python code that CPython's own C code, or one of its specialized instructions, calls."""

    def __init__(self, here: Here) -> None:
        self.here = here
        here()

    def __call__(self) -> None:
        self.here()

    def __getattr__(self, name: str) -> int:
        return self.here()

    def __getitem__(self, key: object) -> int:
        return self.here()

    def __setitem__(self, key: object, value: object) -> None:
        self.here()

    def __add__(self, other: object) -> int:
        return self.here()

    def __lt__(self, other: object) -> bool:
        return self.here() == 1

    def __hash__(self) -> int:
        return self.here()

    def __len__(self) -> int:
        return self.here()

    def __contains__(self, key: object) -> bool:
        return self.here() == 0

    def __enter__(self) -> None:
        self.here()

    def __exit__(self, *_: object) -> None:
        self.here()

    @property
    def value(self) -> int:
        return self.here()

    @classmethod
    def make(cls, here: Here) -> Called:
        return cls(here)

    @staticmethod
    def static(here: Here) -> int:
        return here()


class Finalized:
    def __init__(self, here: Here) -> None:
        self.here = here

    def __del__(self) -> None:
        self.here()


class Intercepting:
    def __getattribute__(self, name: str) -> Here:
        here = object.__getattribute__(self, "__dict__")["here"]
        here()
        return here


def numbers(here: Here, count: int) -> Iterator[int]:
    here()
    for i in range(count):
        yield here() + i


def delegating(here: Here, count: int) -> Iterator[int]:
    yield from numbers(here, count)


class SourceTest(unittest.TestCase):
    def setUp(self) -> None:
        self.here = Here()

    def expect(self, calls: int) -> None:
        self.assertEqual(self.here.calls, calls)

    def test_functions(self) -> None:
        here = self.here

        def inner(value: int = 0, *rest: int, **named: int) -> int:
            return here()

        def outer() -> int:
            return inner() + inner(
                1,
                2,
            )

        outer()
        (lambda: inner(1, key=2))()
        inner(*[1, 2], key=3)
        functools.partial(inner, 1)()
        self.expect(5)

    def test_calls_from_c(self) -> None:
        here = self.here
        list(map(here, range(3)))
        sorted([3, 1, 2], key=lambda value: here() + value)
        max([1, 2], key=here)
        [here() for _ in range(2)]
        {here() for _ in range(2)}
        list(filter(here, (here() for _ in range(2))))
        functools.reduce(lambda a, b: here(), [1, 2, 3])
        re.sub("a", lambda match: str(here()), "aa")
        sorted([Called(here), Called(here)])
        self.expect(3 + 3 + 2 + 2 + 2 + 4 + 2 + 2 + 2 + 1)

    def test_special_methods_and_specialized_instructions(self) -> None:
        here = self.here
        for _ in range(WARM):
            called = Called(here)
        self.expect(WARM)
        for body in (
            lambda: called(),
            lambda: called.missing,
            lambda: called[0],
            lambda: called.__setitem__(0, 1),
            lambda: called + 1,
            lambda: called < 1,
            lambda: hash(called),
            lambda: len(called),
            lambda: 0 in called,
            lambda: called.value,
            lambda: Called.static(here),
            lambda: Called.make(here),
        ):
            before = here.calls
            for _ in range(WARM):
                body()
            self.expect(before + WARM)
        for i in range(WARM):
            called[i] = i
            with called:
                here()
        intercepting = Intercepting()
        object.__getattribute__(intercepting, "__dict__")["here"] = here
        before = here.calls
        for _ in range(WARM):
            intercepting.anything()
        self.expect(before + 2 * WARM)

    def test_classes(self) -> None:
        here = self.here

        class Meta(type):
            def __new__(mcs, *args: Any) -> Any:
                here()
                return super().__new__(mcs, *args)

            def __call__(cls, *args: Any) -> Any:
                here()
                return super().__call__(*args)

        class Descriptor:
            def __set_name__(self, owner: type, name: str) -> None:
                here()

        class Made(metaclass=Meta):
            here()
            descriptor = Descriptor()

            def __init__(self) -> None:
                here()

            def __init_subclass__(cls) -> None:
                here()

        Made()

        class Derived(Made):
            here()

        self.expect(5 + 3)

    def test_generators(self) -> None:
        here = self.here
        for _ in range(3):
            self.assertEqual(list(numbers(here, 2)), [0, 1])
            self.assertEqual(sum(delegating(here, WARM)), WARM * (WARM - 1) // 2)
        started = delegating(here, 4)
        next(started)
        sorted([1, 2], key=lambda _: next(started))  # resumed by another caller
        self.expect(3 * (3 + WARM + 1) + 2 + 2)

    def test_coroutines(self) -> None:
        here = self.here

        async def leaf(pause: bool) -> None:
            here()
            if pause:
                await asyncio.sleep(0)
            here()

        async def items() -> Any:
            for _ in range(3):
                await leaf(pause=True)
                yield here()

        @contextlib.asynccontextmanager
        async def resource() -> Any:
            here()
            yield
            here()

        async def main() -> None:
            await leaf(pause=False)
            async with resource():
                [item async for item in items()]
            await asyncio.gather(*(leaf(pause=True) for _ in range(5)))

        asyncio.run(main())
        self.expect(2 + 2 + 9 + 10)

    def test_code_that_is_executed(self) -> None:
        here = self.here
        exec("here()\n\ndef of_text():\n    return here()\nof_text()", {"here": here})
        eval("[here() for _ in range(2)]", {"here": here})
        code = compile("here(\n)\nlist(map(here, range(2)))", "<cell>", "exec")
        exec(code, {"here": here})
        exec(code.replace(co_filename="other"), {"here": here})
        self.expect(2 + 2 + 3 + 3)

    def test_recursion(self) -> None:
        here = self.here

        def down(depth: int) -> None:
            if depth % 50 == 0:
                here()
            if depth > 0:
                down(depth - 1)
            if depth % 50 == 0:
                here()

        def through_c(depth: int) -> list[int]:
            here()
            return list(map(through_c_and_back, [depth - 1])) if depth > 0 else []

        def through_c_and_back(depth: int) -> int:
            return len(through_c(depth))

        down(400)
        down(100)
        down(600)
        self.expect(2 * (9 + 3 + 13))
        through_c(40)
        self.expect(2 * (9 + 3 + 13) + 41)

    def test_threads(self) -> None:
        heres = [Here() for _ in range(4)]

        def work(here: Here, depth: int) -> None:
            for i in range(40):
                list(map(here, range(2))) if depth == 0 or i % 2 else work_deeper(here, depth)

        def work_deeper(here: Here, depth: int) -> None:
            sorted([1], key=lambda _: here()) if depth == 1 else work_deeper(here, depth - 1)

        threads = [threading.Thread(target=work, args=(here, depth)) for depth, here in enumerate(heres)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
        self.assertEqual([here.calls for here in heres], [80, 60, 60, 60])

    def test_finalizers_exceptions_and_tracing(self) -> None:
        here = self.here
        Finalized(here)
        finalized: Any = Finalized(here)
        finalized.itself = finalized
        del finalized
        gc.collect()
        self.expect(2)
        try:
            raise ValueError
        except ValueError:
            here()
        finally:
            here()
        self.expect(4)
        seen = sys.gettrace()
        sys.settrace(lambda frame, event, argument: lambda *_: None)
        try:
            here()
            list(map(here, range(2)))
        finally:
            sys.settrace(seen)
        self.expect(7)

    def test_callers_differ(self) -> None:
        """A cached chain must not be used for other callers."""
        here = self.here

        def a() -> int:
            return c()

        def b() -> int:
            return c() + c()

        def c() -> int:
            return d()

        def d() -> int:
            return here()

        def e() -> int:
            return b()

        for function in (a, b, e, d, e, c, a, a, e):
            function()
        self.expect(1 + 2 + 2 + 1 + 2 + 1 + 1 + 1 + 2)

    def library(self, text: str) -> Callable[..., Any]:
        """A function `call` of a file that is registered as a library."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = Path(folder.name) / "library.py"
        file.write_text(text)
        probe.add_library(folder.name + "/")
        scope: dict[str, Any] = {"probe": probe}
        exec(compile(text, str(file), "exec"), scope)
        return scope["call"]

    def test_library_that_c_calls(self) -> None:
        """The user's line is that of the caller, also if C code is between it and the library."""
        call = self.library("def call(*_):\n    return probe.read()\n")
        (_, line, stack), = map(call, [0])  # fmt: skip
        number = sys._getframe().f_lineno - 1
        self.assertEqual(line, f"{__file__}:{number} in SourceTest.test_library_that_c_calls")
        self.assertTrue(stack.endswith(f"\n  recorded at {line}"), stack)

    def test_library_between(self) -> None:
        """Frames of libraries are counted. Frames that CPython adds are not."""
        call = self.library("def call(function):\n    (result,) = map(function, [0])\n    return result\n")

        class Result:
            def __init__(self) -> None:
                self.text = call(lambda _: probe.read())

        for _ in range(WARM):
            _, line, stack = Result().text
        name = f"SourceTest.{self.test_library_between.__name__}"
        first = sys._getframe().f_lineno - 5
        self.assertEqual(line, f"{__file__}:{first} in {name}.<locals>.Result.__init__.<locals>.<lambda>")
        tail = stack.splitlines()[-4:]
        self.assertRegex(tail[0], rf"{re.escape(__file__)}:{first + 3} in {re.escape(name)}$")
        self.assertRegex(tail[1], rf"{re.escape(__file__)}:{first} in {re.escape(name)}.<locals>.Result.__init__$")
        self.assertEqual(tail[2], "    ... 1 frame of torch")
        self.assertEqual(tail[3], f"  recorded at {line}")


if __name__ == "__main__":
    unittest.main()
