"""A random program as data: steps of Python source, how they run on a device, and what is compared afterwards."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from roundings import RUNS, Roundings, explains


@dataclass(frozen=True)
class Step:
    """One statement. `defines` are the variables it assigns, `uses` those it reads or writes."""

    code: str
    uses: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    inexact: bool = False  # an op may round differently, because it may sum in another order
    mutates: bool = False


@dataclass
class Program:
    """A program runs once per variant, one after the other: the same steps with different leaves, scalars and sizes."""

    seed: int
    steps: list[Step] = field(default_factory=list)
    variants: tuple[int, ...] = (0,)

    def listing(self) -> str:
        return "\n".join(step.code for step in self.steps)


@dataclass(frozen=True)
class TensorState:
    """Everything about a tensor that a program can observe."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # 0 for dims of size 1 and empty tensors, where it has no effect
    offset: int  # 0 for empty tensors, like storage_bytes
    storage_bytes: int
    version: int  # relative to the version when the program got the tensor
    is_view: bool
    requires_grad: bool
    on_device: bool  # on the expected device
    exact: bool  # whether its values on CPU are exact
    values: torch.Tensor

    @staticmethod
    def of(t: torch.Tensor, first_version: int, home: torch.device, exact: bool, crossed: bool) -> TensorState:
        return TensorState(
            t.dtype,
            tuple(t.shape),
            tuple(stride if size > 1 and t.numel() else 0 for size, stride in zip(t.shape, t.stride(), strict=True)),
            t.storage_offset() if t.numel() else 0,
            t.untyped_storage().nbytes() if t.numel() else 0,
            t._version - first_version,
            t._base is not None and not crossed,
            t.requires_grad,
            t.device.type == home.type,
            exact,
            t.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format),
        )


# Generated kernels round a chain of ops on half types only at its end, so a step that reads a half type may round
# differently.
FUSED = os.environ.get("TORCH_REMOTE_FUSION", "1") != "0"
HALVES = (torch.float16, torch.bfloat16)
# Set once, by runners of programs on devices that round complex numbers differently from CPU.
rounds_complex = False

# The attributes that are compared in addition to the values.
COMPARED_ATTRIBUTES = (
    "dtype",
    "shape",
    "stride",
    "offset",
    "storage_bytes",
    "version",
    "is_view",
    "requires_grad",
    "on_device",
)


def shares_elements(t: torch.Tensor) -> bool:
    """Whether two elements have the same address."""
    if t.layout != torch.strided or torch._debug_has_internal_overlap(t) == 0:
        return False
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(t.shape, t.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return places.unique().numel() < t.numel()


def is_leaf(t: torch.Tensor) -> bool | None:
    """Whether it is a leaf. None: torch cannot say, for a view whose base was written since."""
    try:
        return t.is_leaf
    except RuntimeError:
        return None


@dataclass(frozen=True)
class Raised:
    """A step raised an exception. The message is not compared: it names devices, and either of two errors may be found
    first."""

    type: str
    message: str = field(compare=False)

    @staticmethod
    def by(error: Exception) -> Raised:
        # Invalid dims and indices are IndexErrors; all other errors about shapes and dtypes are RuntimeErrors.
        name = "RuntimeError" if isinstance(error, (IndexError, RuntimeError)) else type(error).__name__
        return Raised(name, f"{type(error).__name__}: {error}")


LARGE = 4096  # a leaf has this many random values, which then repeat

# A step shows one of these: None, an exception, a value that the program read, or states of tensors.
Observation = tuple[str, Any]


def leaf(
    seed: int, shape: tuple[int, ...], dtype: torch.dtype, permutation: tuple[int, ...] | None = None
) -> torch.Tensor:
    """A CPU tensor with reproducible values. Most floats are multiples of 1/4, so that small sums of them are exact."""
    rng = random.Random(seed)
    total = 1
    for size in shape:
        total *= size
    count = min(total, LARGE)
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
    tensor = torch.tensor(values, dtype=dtype)
    if total > count:
        tensor = tensor.repeat(total // count + 1)[:total]
    tensor = tensor.reshape(shape)
    if permutation is not None:
        inverse = [permutation.index(i) for i in range(len(permutation))]
        tensor = tensor.permute(permutation).contiguous().permute(inverse)
    return tensor.clone()  # not a view, and with the same strides


def to_int(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A conversion to an integer type that is defined for every value."""
    if t.dtype.is_complex:
        t = t.real
    if t.dtype.is_floating_point:
        t = t.nan_to_num(0.0, 0.0, 0.0).clamp(0 if dtype == torch.uint8 else -100, 100)
    return t.to(dtype)


def index(t: torch.Tensor, limit: int) -> torch.Tensor:
    """An int64 tensor of valid indices, derived from any tensor's values."""
    return to_int(t, torch.int64).remainder(max(limit, 1))


def resize_and_fill(t: torch.Tensor, shape: tuple[int, ...], value: float) -> torch.Tensor:
    """Fills the tensor, because resize_ leaves new elements undefined."""
    result = t.resize_(shape)
    result.fill_(value)
    return result


# How random numbers are drawn, and a check of their range.
DRAWS: dict[str, tuple[Callable[[tuple[int, ...], torch.device], torch.Tensor], Callable[[torch.Tensor], bool]]] = {
    "rand": (lambda s, d: torch.rand(s, device=d), lambda t: bool(((t >= 0) & (t < 1)).all())),
    "rand_double": (
        lambda s, d: torch.rand(s, device=d, dtype=torch.float64),
        lambda t: bool(((t >= 0) & (t < 1)).all()),
    ),
    "randn": (lambda s, d: torch.randn(s, device=d), lambda t: bool(t.isfinite().all())),
    "randn_half": (lambda s, d: torch.randn(s, device=d, dtype=torch.float16), lambda t: bool(t.isfinite().all())),
    "randn_complex": (
        lambda s, d: torch.randn(s, device=d, dtype=torch.complex64),
        lambda t: bool(torch.view_as_real(t).isfinite().all()),
    ),
    "randint": (lambda s, d: torch.randint(-3, 7, s, device=d), lambda t: bool(((t >= -3) & (t < 7)).all())),
    "randint_byte": (
        lambda s, d: torch.randint(0, 9, s, device=d, dtype=torch.uint8),
        lambda t: bool((t < 9).all()),
    ),
    "randperm": (
        lambda s, d: torch.randperm(sum(s) + 2, device=d),
        lambda t: t.sort()[0].tolist() == list(range(t.numel())),
    ),
    "bernoulli": (
        lambda s, d: torch.full(s, 0.5, device=d).bernoulli(),
        lambda t: bool(((t == 0) | (t == 1)).all()),
    ),
    "bernoulli_": (
        lambda s, d: torch.empty(s, device=d, dtype=torch.bool).bernoulli_(0.3),
        lambda t: t.dtype == torch.bool,
    ),
    "uniform_": (
        lambda s, d: torch.empty(s, device=d).uniform_(-2, 3),
        lambda t: bool(((t >= -2) & (t <= 3)).all()),
    ),
    "normal_": (lambda s, d: torch.empty(s, device=d).normal_(1, 2), lambda t: bool(t.isfinite().all())),
    "exponential_": (lambda s, d: torch.empty(s, device=d).exponential_(), lambda t: bool((t >= 0).all())),
    "geometric_": (lambda s, d: torch.empty(s, device=d).geometric_(0.5), lambda t: bool((t >= 1).all())),
    "random_": (
        lambda s, d: torch.empty(s, device=d, dtype=torch.int32).random_(5),
        lambda t: bool(((t >= 0) & (t < 5)).all()),
    ),
    "dropout": (
        lambda s, d: F.dropout(torch.ones(s, device=d), 0.5),
        lambda t: bool(((t == 0) | (t == 2)).all()),
    ),
    "multinomial": (
        lambda s, d: torch.multinomial(torch.ones(5, device=d), 3 + len(s), replacement=True),
        lambda t: bool(((t >= 0) & (t < 5)).all()),
    ),
    "strided": (
        lambda s, d: torch.zeros((3, *s), device=d).transpose(0, -1).uniform_(1, 2),
        lambda t: bool(((t >= 1) & (t <= 2)).all()),
    ),
}

OPTIMIZERS: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.5, momentum=0.5, weight_decay=0.25, foreach=False),
    "sgd_foreach": lambda ps: torch.optim.SGD(ps, lr=0.5, momentum=0.5, nesterov=True, foreach=True),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.1, foreach=False),
    "adam_foreach": lambda ps: torch.optim.Adam(ps, lr=0.1, amsgrad=True, foreach=True),
    "adamw_foreach": lambda ps: torch.optim.AdamW(ps, lr=0.1, foreach=True),
    "adamw_fused": lambda ps: torch.optim.AdamW(ps, lr=0.1, fused=True),
    "rmsprop_foreach": lambda ps: torch.optim.RMSprop(ps, lr=0.1, centered=True, foreach=True),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.1, foreach=False, fused=False),
    "adadelta_foreach": lambda ps: torch.optim.Adadelta(ps, foreach=True),
}


class Session:
    """Runs steps on a device, and keeps their variables and observations."""

    def __init__(self, device: str, variant: int = 0, roundings: Roundings | None = None) -> None:
        self.device = torch.device(device)
        self.variant = variant
        self.roundings = roundings
        # The second device of programs for two.
        self.other = torch.device(self.device.type, 1) if self.device.type != "cpu" else self.device
        self.observations: list[Observation] = []
        # Storages whose values may depend on the order of a sum.
        self.inexact: set[int] = set()
        self.step_is_inexact = False
        # Gradients that came from another device if the program has one. They are copies, and on CPU perhaps views.
        self.crosses = False
        self.crossed: dict[int, torch.Tensor] = {}
        self.draws: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        # Versions at the time of return: how often an op wrote its own result before that is an implementation detail.
        self.first_versions: dict[int, tuple[torch.Tensor, int]] = {}
        self.variables: dict[str, Any] = {
            "torch": torch,
            "F": F,
            "device": self.device,
            "home": self.device,
            "other": self.other,
            "cpu": torch.device("cpu"),
            "leaf": self._leaf,
            "sizes": self._sizes,
            "s": self._scalar,
            "to_int": to_int,
            "index": index,
            "resize_and_fill": resize_and_fill,
            "drawn": self._drawn,
            "optimized": self._optimized,
            "read": self._read,
            "check": self._check,
            "check_draws": self._check_draws,
            "same_storage": self._same_storage,
            "synchronize": self.synchronize,
        }

    # -- what depends on the variant -----------------------------------------------------------------------------------

    def _sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes 0 and 1 stay, and equal sizes stay equal."""
        more = max(self.variant - 1, 0)
        return tuple(size + more if size > 1 else size for size in shape)

    def _scalar(self, value: float) -> float:
        return value * (self.variant + 1)

    def _leaf(self, seed: int, shape: tuple[int, ...], *options: Any) -> torch.Tensor:
        return leaf(seed + self.variant * 10**6, self._sizes(shape), *options)

    # ------------------------------------------------------------------------------------------------------------------

    def _drawn(self, seed: int, shape: tuple[int, ...], kind: str, device: torch.device) -> torch.Tensor:
        """A random tensor, drawn twice from one seed. Each device has its own generator, so the numbers are replaced by
        non-random ones before they are returned."""
        draw = DRAWS[kind][0]
        torch.manual_seed(seed)
        first = draw(self._sizes(shape), device)
        torch.manual_seed(seed)
        self.draws.append((kind, first.clone(), draw(self._sizes(shape), device)))
        return first.copy_(self._leaf(seed, (1,), first.dtype))

    def _check_draws(self) -> None:
        shown = []
        for kind, first, again in self.draws:
            first, again = first.cpu(), again.cpu()
            shown.append((kind, tuple(first.shape), first.dtype, torch.equal(first, again), DRAWS[kind][1](first)))
        self.draws.clear()
        self.observations.append(("draws", shown))

    def _optimized(self, name: str, seed: int, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Copies of the tensors after two steps of an optimizer."""
        with torch.enable_grad():
            parameters = [t.detach().clone().requires_grad_() for t in tensors]
        optimizer = OPTIMIZERS[name](parameters)
        for step in range(2):
            for i, p in enumerate(parameters):
                grad = leaf(seed + 2 * i + step + self.variant, tuple(p.shape), p.dtype).to(p.device)
                # CPU's fused optimizers traverse memory in order, regardless of strides.
                p.grad = torch.empty_like(p).copy_(grad)
            optimizer.step()
        return [p.detach() for p in parameters]

    def synchronize(self) -> None:
        if self.device.type != "cpu":
            for device in {self.device, self.other}:
                if (device.index or 0) < torch.remote.device_count():
                    torch.remote.synchronize(device)

    def _read(self, value: Any) -> None:
        shown = value.clone() if isinstance(value, torch.Tensor) else value
        self.observations.append(("read", (shown, not self.step_is_inexact)))

    def _check(self, *tensors: torch.Tensor) -> None:
        states = [
            TensorState.of(
                t,
                self.first_versions.get(id(t), (t, t._version))[1],
                self.device,
                self.is_exact(t),
                id(t) in self.crossed,
            )
            for t in tensors
        ]
        self.observations.append(("check", states))

    def is_exact(self, t: torch.Tensor) -> bool:
        return t.untyped_storage()._cdata not in self.inexact

    def _spread(self, step: Step, used: list[torch.Tensor]) -> None:
        """Marks everything that a step computes from inexact values as inexact."""
        made = [t for name in step.defines if isinstance(t := self.variables.get(name), torch.Tensor)]
        if not self.step_is_inexact:
            self.inexact.difference_update(t.untyped_storage()._cdata for t in made)
            return
        if step.mutates:
            made += used
        if "backward(" in step.code:
            tensors = [t for t in self.variables.values() if isinstance(t, torch.Tensor)]
            made += [t.grad for t in tensors if is_leaf(t) and t.grad is not None]
        self.inexact.update(t.untyped_storage()._cdata for t in made)

    def rounds(self, step: Step, used: list[torch.Tensor]) -> bool:
        """Whether the step itself may round differently on a device."""
        return (
            step.inexact
            or (FUSED and any(t.dtype in HALVES for t in used))
            or (rounds_complex and any(t.is_complex() for t in used))
        )

    def _same_storage(self, *tensors: torch.Tensor) -> None:
        """Observes which of the tensors share storage, and which are the same object."""
        storages: dict[int, int] = {}
        groups = [storages.setdefault(t.untyped_storage()._cdata, len(storages)) for t in tensors]
        objects: dict[int, int] = {}
        self.observations.append(("aliasing", (groups, [objects.setdefault(id(t), len(objects)) for t in tensors])))

    def run(self, step: Step, wait: bool = False) -> Exception | None:
        """Runs one step. A Python exception becomes an observation and is returned. `wait`: also waits for errors of
        the worker."""
        used = [t for name in step.uses if isinstance(t := self.variables.get(name), torch.Tensor)]
        rounds = self.rounds(step, used)
        self.step_is_inexact = rounds or not all(map(self.is_exact, used))
        if self.roundings is not None:
            self.roundings.on = rounds
        versions = {id(t): (t, t._version) for t in self.variables.values() if isinstance(t, torch.Tensor)}
        is_late = False
        try:
            with warnings.catch_warnings(), self.roundings or contextlib.nullcontext():
                warnings.simplefilter("ignore")
                exec(compile(step.code, "<program>", "exec"), self.variables)
            if wait:
                is_late = True
                self.synchronize()
                is_late = False
            self.crosses |= "to('cpu')" in step.code or ".cpu()" in step.code
            for name in step.defines:
                value = self.variables.get(name)
                if isinstance(value, torch.Tensor) and id(value) not in self.first_versions:
                    self.first_versions[id(value)] = (value, value._version)
                if isinstance(value, torch.Tensor) and self.crosses and "autograd.grad(" in step.code:
                    self.crossed[id(value)] = value
            self._spread(step, used)
        except Exception as error:
            if "backward(" in step.code:  # some gradients may have been computed
                self._spread(step, used)
            if is_late:  # contents are unchanged, but an increased version stays
                for key, (t, before) in versions.items():
                    first = self.first_versions.get(key, (t, before))[1]
                    self.first_versions[key] = (t, first + t._version - before)
            for name in step.defines:
                self.variables.pop(name, None)
            self.observations.append(("raised", Raised.by(error)))
            return error
        return None


def run_program(
    program: Program,
    device: str,
    raising: frozenset[int] = frozenset(),
    variant: int = 0,
    roundings: Roundings | None = None,
) -> list[list[Observation]]:
    """The observations of each step. A step whose variables are missing, because their step raised, shows nothing.

    After the steps in `raising` we wait for the device, because it may raise later what the CPU raises at once. Errors
    after the last step are in an additional list.
    """
    session = Session(device, variant, roundings)
    with contextlib.suppress(Exception):  # errors that the previous program left
        session.synchronize()
    result = []
    for i, step in enumerate(program.steps):
        session.observations = []
        if all(name in session.variables for name in step.uses):
            session.run(step, wait=i in raising)
        result.append(session.observations)
    try:
        session.synchronize()
        result.append([])
    except Exception as error:
        result.append([("raised", Raised.by(error))])
    return result


def raised(shown: list[list[Observation]]) -> frozenset[int]:
    return frozenset(i for i, events in enumerate(shown) if any(kind == "raised" for kind, _ in events))


def with_variants(program: Program, variants: tuple[int, ...]) -> Program:
    """Keeps the steps that raise in all variants or in none, so that each variant is the same trace."""
    for _ in range(6):
        first, *others = [raised(run_program(program, "cpu", variant=v)) for v in sorted(set(variants))]
        odd = {i for other in others for i in first ^ other}
        if not odd:
            return Program(program.seed, program.steps, variants)
        steps = [step for i, step in enumerate(program.steps) if i not in odd]
        program = without_orphans(Program(program.seed, steps))
    return Program(program.seed, program.steps, variants[:1])


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
        tolerance = scaled = TOLERANCES[expected.dtype]
        if FUSED:  # a float64 may have been float32 in between, and differences may have been divided
            tolerance = max(tolerance, TOLERANCES[torch.float32])
            finite = e[e.isfinite()].double().abs()
            scaled = tolerance * max(finite.max().item() if finite.numel() else 1.0, 1.0)
        return inexact and torch.allclose(e.double(), g.double(), rtol=tolerance, atol=scaled)
    return False


def difference(expected: Observation, got: Observation) -> str | None:
    """Describes the difference between the observations of one event; None if there is none."""
    kind, want = expected
    if got[0] != kind:
        return f"{kind} ({want}) became {got[0]} ({got[1]})"
    have = got[1]
    if kind == "check":
        for i, (a, b) in enumerate(zip(want, have, strict=True)):
            for name in COMPARED_ATTRIBUTES:
                if getattr(a, name) != getattr(b, name):
                    return f"tensor {i}: {name} is {getattr(b, name)}, expected {getattr(a, name)}"
            if not same_values(a.values, b.values, not a.exact):
                return f"tensor {i}: values are\n{b.values}\nexpected\n{a.values}"
        return None
    if kind == "read":
        (want, exact), (have, *_) = want, have
        if isinstance(want, str):
            return None if want == have else f"{kind}: {have}, expected {want}"
        if type(want) is not type(have):
            return f"read {have!r} of {type(have)}, expected {want!r} of {type(want)}"
        same = same_values(torch.as_tensor(want), torch.as_tensor(have), not exact)
        return None if same else f"read\n{have!r}\nexpected\n{want!r}"
    return None if want == have else f"{kind}: {have}, expected {want}"


def values_of(shown: Observation) -> list[torch.Tensor]:
    """The values of an observation that rounding may change."""
    kind, what = shown
    if kind == "check":
        return [state.values for state in what]
    if kind == "read" and not isinstance(what[0], str):
        return [torch.as_tensor(what[0])]
    return []


def observed_metadata(shown: Observation) -> Any:
    """The rest of an observation, which rounding never changes. (The shape of a value that a program reads may depend
    on values.)"""
    kind, what = shown
    if kind == "check":
        return kind, [tuple(getattr(state, name) for name in COMPARED_ATTRIBUTES) for state in what]
    return (kind, None) if values_of(shown) else (kind, what)


class Explanation:
    """Decides whether rounding errors explain what a device shows, by running the program on CPU with such errors."""

    def __init__(self, program: Program, variant: int) -> None:
        self.program, self.variant = program, variant
        self.runs: list[list[list[Observation]]] = []

    def explains(self, step: int, event: int, expected: list[Observation], got: list[Observation]) -> bool:
        """Whether rounding explains the difference in this event of the step."""
        if not self.runs:
            self.runs = [
                run_program(self.program, "cpu", variant=self.variant, roundings=Roundings(seed))
                for seed in range(RUNS)
            ]
        runs = [run[step] for run in self.runs]
        if len(expected) != len(got) or any(
            observed_metadata(a) != observed_metadata(b) for a, b in zip(expected, got, strict=True)
        ):
            # A step's exception may depend on rounded values: whether all are alike, how many are nonzero.
            shown = [observed_metadata(e) for e in got]
            return any([observed_metadata(e) for e in run] == shown for run in runs)
        others = [values_of(run[event]) for run in runs if len(run) == len(expected)]
        return all(
            explains(e, g, [values[i] for values in others if len(values) > i], TOLERANCES.get(e.dtype, 0.0))
            for i, (e, g) in enumerate(zip(values_of(expected[event]), values_of(got[event]), strict=True))
        )


@dataclass(frozen=True)
class Failure:
    program: Program
    step: int
    text: str
    variant: int = 0

    def report(self) -> str:
        lines = [f"seed {self.program.seed}, variant {self.variant}, step {self.step}: {self.text}"]
        lines += [("-> " if i == self.step else "   ") + step.code for i, step in enumerate(self.program.steps)]
        return "\n".join(lines)


# The number of programs whose differences rounding explained. A test limits the rate.
explained_programs: collections.Counter[int] = collections.Counter()


def differences(expected: list[Observation], got: list[Observation]) -> Iterator[tuple[int, str]]:
    """The events of one step that differ, with a description."""
    if len(expected) != len(got):
        yield 0, f"showed {got or 'nothing'}, expected {expected or 'nothing'}"
        return
    for event, (want, have) in enumerate(zip(expected, got, strict=True)):
        if (text := difference(want, have)) is not None:
            yield event, text


def is_copied_first(step: Step, got: list[Observation]) -> bool:
    """Whether the step raised because `tolist()` copies a tensor that is not on CPU, and that copy is an op. Autograd
    refuses ops on a view made in no_grad mode whose base was then written with gradients. On CPU, `tolist()` only reads
    memory."""
    refuses = "A view was created in no_grad mode"
    return ".tolist()" in step.code and any(kind == "raised" and refuses in what.message for kind, what in got)


def compare(program: Program, device: str) -> Failure | None:
    """Runs the variants of the program on CPU and on `device`. Returns the first unexplained difference, or None."""
    for variant in program.variants:
        expected = run_program(program, "cpu", variant=variant)
        got = run_program(program, device, raised(expected), variant)
        explanation = Explanation(program, variant)
        for i, (a, b) in enumerate(zip(expected, got, strict=True)):
            for event, text in differences(a, b):
                copied = i < len(program.steps) and is_copied_first(program.steps[i], b)
                if not copied and not explanation.explains(i, event, a, b):
                    return Failure(program, i, text, variant)
                explained_programs[program.seed] += 1
    return None


def minimize(failure: Failure, device: str, budget: int = 400) -> Failure:
    """Drops steps while some difference remains (delta debugging, from large blocks to single steps)."""
    best = Failure(truncated(failure.program, failure.step), failure.step, failure.text, failure.variant)
    block = max(len(best.program.steps) // 2, 1)
    while True:
        begin = len(best.program.steps) - block
        shrunk = False
        while begin > -block and budget > 0:
            first = max(begin, 0)
            steps = best.program.steps[:first] + best.program.steps[first + block :]
            budget -= 1
            smaller = compare(without_orphans(Program(best.program.seed, steps, best.program.variants)), device)
            if smaller is not None:
                best = smaller
                shrunk = True
            begin -= block
        if budget <= 0 or (block == 1 and not shrunk):
            return best
        block = max(block // 2, 1)


def truncated(program: Program, last: int) -> Program:
    return Program(program.seed, program.steps[: last + 1], program.variants)


def without_orphans(program: Program) -> Program:
    """Drops steps that use undefined variables."""
    known: set[str] = set()
    steps = []
    for step in program.steps:
        if all(name in known for name in step.uses):
            steps.append(step)
            known.update(step.defines)
    return Program(program.seed, steps, program.variants)
