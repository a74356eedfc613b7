"""A random program as data: steps of Python source, how they run on a device, and what is compared afterwards."""

from __future__ import annotations

import contextlib
import random
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Step:
    """One statement. `defines` are the variables it assigns, `uses` those it reads or writes."""

    code: str
    uses: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()


@dataclass
class Program:
    seed: int
    steps: list[Step] = field(default_factory=list)
    inexact: bool = False  # some op may sum in another order: floats are compared with a tolerance

    def listing(self) -> str:
        return "\n".join(step.code for step in self.steps)


@dataclass(frozen=True)
class TensorState:
    """Everything about a tensor that a program can see."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # 0 where no element is reached by it: dims of 1, empty tensors
    offset: int  # 0 for empty tensors, as storage_bytes
    storage_bytes: int
    version: int  # beyond the one that the tensor had when the program got it
    is_view: bool
    requires_grad: bool
    values: torch.Tensor

    @staticmethod
    def of(t: torch.Tensor, first_version: int) -> TensorState:
        return TensorState(
            t.dtype,
            tuple(t.shape),
            tuple(stride if size > 1 and t.numel() else 0 for size, stride in zip(t.shape, t.stride(), strict=True)),
            t.storage_offset() if t.numel() else 0,
            t.untyped_storage().nbytes() if t.numel() else 0,
            t._version - first_version,
            t._base is not None,
            t.requires_grad,
            t.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format),
        )


@dataclass(frozen=True)
class Raised:
    """A step raised. The message does not count: it names devices, and of two errors either may be found first."""

    type: str
    message: str = field(compare=False)

    @staticmethod
    def by(error: Exception) -> Raised:
        # Wrong dims and indices are IndexErrors, everything else about shapes and dtypes a RuntimeError.
        name = "RuntimeError" if isinstance(error, (IndexError, RuntimeError)) else type(error).__name__
        return Raised(name, f"{type(error).__name__}: {error}")


# What a step shows: None, an exception, a value that the program read, or states of tensors.
Observation = tuple[str, Any]


def leaf(
    seed: int, shape: tuple[int, ...], dtype: torch.dtype, permutation: tuple[int, ...] | None = None
) -> torch.Tensor:
    """A CPU tensor with reproducible values. Most floats are multiples of 1/4, so that small sums of them are exact."""
    rng = random.Random(seed)
    count = 1
    for size in shape:
        count *= size
    if dtype == torch.bool:
        values: list[Any] = [rng.random() < 0.5 for _ in range(count)]
    elif dtype.is_complex:
        values = [complex(rng.randint(-8, 8) / 4, rng.randint(-8, 8) / 4) for _ in range(count)]
    elif dtype.is_floating_point:
        values = [rng.randint(-16, 16) / 4 for _ in range(count)]
        if count and rng.random() < 0.1:
            values[rng.randrange(count)] = rng.choice([float("nan"), float("inf"), float("-inf"), -0.0, 1e4, 1e-4])
    else:
        low = 0 if dtype == torch.uint8 else -9
        values = [rng.randint(low, 9) for _ in range(count)]
    tensor = torch.tensor(values, dtype=dtype).reshape(shape)
    if permutation is not None:
        inverse = [permutation.index(i) for i in range(len(permutation))]
        tensor = tensor.permute(permutation).contiguous().permute(inverse)
    return tensor.clone()  # no view, strides kept


def to_int(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A conversion to an integer type that is defined for every value."""
    if t.dtype.is_complex:
        t = t.real
    if t.dtype.is_floating_point:
        t = t.nan_to_num(0.0, 0.0, 0.0).clamp(0 if dtype == torch.uint8 else -100, 100)
    return t.to(dtype)


def index(t: torch.Tensor, limit: int) -> torch.Tensor:
    """An int64 tensor of valid indices, made from any tensor's values."""
    return to_int(t, torch.int64).remainder(max(limit, 1))


def resize_and_fill(t: torch.Tensor, shape: tuple[int, ...], value: float) -> torch.Tensor:
    """resize_ leaves what it adds undefined, so it is written."""
    result = t.resize_(shape)
    result.fill_(value)
    return result


class Session:
    """Runs steps on a device and keeps their variables and what they showed."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.observations: list[Observation] = []
        # How often an op wrote its own result before returning it is its own affair.
        self.first_versions: dict[int, tuple[torch.Tensor, int]] = {}
        self.variables: dict[str, Any] = {
            "torch": torch,
            "F": F,
            "device": self.device,
            "cpu": torch.device("cpu"),
            "leaf": leaf,
            "to_int": to_int,
            "index": index,
            "resize_and_fill": resize_and_fill,
            "read": self._read,
            "check": self._check,
            "same_storage": self._same_storage,
            "synchronize": self.synchronize,
        }

    def synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.remote.synchronize()

    def _read(self, value: Any) -> None:
        self.observations.append(("read", value.clone() if isinstance(value, torch.Tensor) else value))

    def _check(self, *tensors: torch.Tensor) -> None:
        states = [TensorState.of(t, self.first_versions.get(id(t), (t, t._version))[1]) for t in tensors]
        self.observations.append(("check", states))

    def _same_storage(self, *tensors: torch.Tensor) -> None:
        """Observes which of the tensors share storage, and which are the same object."""
        storages: dict[int, int] = {}
        groups = [storages.setdefault(t.untyped_storage()._cdata, len(storages)) for t in tensors]
        objects: dict[int, int] = {}
        self.observations.append(("aliasing", (groups, [objects.setdefault(id(t), len(objects)) for t in tensors])))

    def run(self, step: Step, wait: bool = False) -> Exception | None:
        """Runs one step; a Python exception of it is an observation, and returned. `wait` for those of the worker."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(step.code, "<program>", "exec"), self.variables)
            if wait:
                self.synchronize()
            for name in step.defines:
                value = self.variables.get(name)
                if isinstance(value, torch.Tensor) and id(value) not in self.first_versions:
                    self.first_versions[id(value)] = (value, value._version)
        except Exception as error:
            for name in step.defines:
                self.variables.pop(name, None)
            self.observations.append(("raised", Raised.by(error)))
            return error
        return None


def run_program(program: Program, device: str, raising: frozenset[int] = frozenset()) -> list[list[Observation]]:
    """The observations of each step. A step whose variables are missing (their step raised) shows nothing.

    After the steps in `raising` the device is waited for: it may raise late what the CPU raised at once.
    """
    session = Session(device)
    with contextlib.suppress(Exception):  # what an earlier program left behind
        session.synchronize()
    result = []
    for i, step in enumerate(program.steps):
        session.observations = []
        if all(name in session.variables for name in step.uses):
            session.run(step, wait=i in raising)
        result.append(session.observations)
    return result


TOLERANCES = {
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.float32: 2e-5,
    torch.float64: 1e-10,
    torch.complex64: 2e-5,
    torch.complex128: 1e-10,
}


def same_values(expected: torch.Tensor, got: torch.Tensor, inexact: bool) -> bool:
    if expected.dtype != got.dtype or expected.shape != got.shape:
        return False
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return torch.equal(expected, got)
    if expected.dtype.is_complex:
        return same_values(torch.view_as_real(expected), torch.view_as_real(got), inexact)
    nan = expected.isnan()
    if torch.equal(nan, got.isnan()):
        e, g = expected[~nan], got[~nan]
        if torch.equal(e, g) and (inexact or torch.equal(e.signbit(), g.signbit())):
            return True
        tolerance = TOLERANCES[expected.dtype]
        return inexact and torch.allclose(e.double(), g.double(), rtol=tolerance, atol=tolerance)
    return False


def difference(expected: Observation, got: Observation, inexact: bool) -> str | None:
    """What differs between the observations of one event, in words; None if nothing does."""
    kind, want = expected
    if got[0] != kind:
        return f"{kind} ({want}) became {got[0]} ({got[1]})"
    have = got[1]
    if kind == "check":
        for i, (a, b) in enumerate(zip(want, have, strict=True)):
            for name in ("dtype", "shape", "stride", "offset", "storage_bytes", "version", "is_view", "requires_grad"):
                if getattr(a, name) != getattr(b, name):
                    return f"tensor {i}: {name} is {getattr(b, name)}, expected {getattr(a, name)}"
            if not same_values(a.values, b.values, inexact):
                return f"tensor {i}: values are\n{b.values}\nexpected\n{a.values}"
        return None
    if kind == "read" and isinstance(want, torch.Tensor):
        return None if same_values(want, have, inexact) else f"read\n{have}\nexpected\n{want}"
    if kind == "read" and not isinstance(want, str):
        if type(want) is not type(have):
            return f"read {have!r} of {type(have)}, expected {want!r} of {type(want)}"
        same = same_values(torch.tensor(want), torch.tensor(have), inexact)
        return None if same else f"read {have!r}, expected {want!r}"
    return None if want == have else f"{kind}: {have}, expected {want}"


@dataclass(frozen=True)
class Failure:
    program: Program
    step: int
    text: str

    def report(self) -> str:
        lines = [f"seed {self.program.seed}, step {self.step}: {self.text}"]
        lines += [("-> " if i == self.step else "   ") + step.code for i, step in enumerate(self.program.steps)]
        return "\n".join(lines)


def compare(program: Program, device: str) -> Failure | None:
    """Runs the program on CPU and on `device`; the first difference, or None."""
    expected = run_program(program, "cpu")
    raising = frozenset(i for i, events in enumerate(expected) if any(kind == "raised" for kind, _ in events))
    got = run_program(program, device, raising)
    for i, (a, b) in enumerate(zip(expected, got, strict=True)):
        if len(a) != len(b):
            return Failure(program, i, f"showed {b or 'nothing'}, expected {a or 'nothing'}")
        for want, have in zip(a, b, strict=True):
            text = difference(want, have, program.inexact)
            if text is not None:
                return Failure(program, i, text)
    return None


def minimise(failure: Failure, device: str, budget: int = 400) -> Failure:
    """Drops steps as long as some difference stays (delta debugging, from big blocks to single steps)."""
    best = Failure(truncated(failure.program, failure.step), failure.step, failure.text)
    block = max(len(best.program.steps) // 2, 1)
    while True:
        begin = len(best.program.steps) - block
        shrunk = False
        while begin > -block and budget > 0:
            first = max(begin, 0)
            steps = best.program.steps[:first] + best.program.steps[first + block :]
            budget -= 1
            smaller = compare(without_orphans(Program(best.program.seed, steps, best.program.inexact)), device)
            if smaller is not None:
                best = smaller
                shrunk = True
            begin -= block
        if budget <= 0 or (block == 1 and not shrunk):
            return best
        block = max(block // 2, 1)


def truncated(program: Program, last: int) -> Program:
    return Program(program.seed, program.steps[: last + 1], program.inexact)


def without_orphans(program: Program) -> Program:
    """Leaves out steps whose variables nobody defines."""
    known: set[str] = set()
    steps = []
    for step in program.steps:
        if all(name in known for name in step.uses):
            steps.append(step)
            known.update(step.defines)
    return Program(program.seed, steps, program.inexact)
