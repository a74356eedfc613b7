"""Generates random programs. The seed determines everything; no clock or other random generator is used.

A program is generated while it runs on CPU, so that the generator knows the shapes of its variables. Most steps are
valid. Some are wrong on purpose, and must raise the same errors on the device as on CPU.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable

import torch
from program import DRAWS, FUSED, OPTIMIZERS, Program, Session, Step, is_leaf, shares_elements
from torch._prims_common import is_non_overlapping_and_dense_or_false
from vocabulary import (
    ACTIVATIONS,
    BINARY,
    DTYPES,
    EXACT_REDUCTIONS,
    FLOATS,
    INEXACT_BINARY,
    INEXACT_UNARY,
    INPLACE_BINARY,
    INPLACE_UNARY,
    INTS,
    REDUCTIONS,
    RUN_TIME_ERRORS,
    SIZES,
    UNARY,
)


class Generator:
    """Generates one program."""

    def __init__(self, seed: int, devices: int = 1) -> None:
        self.rng = random.Random(seed)
        self.program = Program(seed)
        self.session = Session("cpu")
        # By device; `place` is the device for which steps are generated now.
        self.lives: list[list[str]] = [[] for _ in range(devices)]
        self.place = 0
        self.next_is_inexact = False
        self.names = 0
        self.autograd = self.rng.random() < 0.3
        self.stopped = False

    @property
    def live(self) -> list[str]:
        return self.lives[self.place]

    # -- running while generating --------------------------------------------------------------------------------------

    def tensor(self, name: str) -> torch.Tensor:
        return self.session.variables[name]

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def emit(self, code: str, uses: tuple[str, ...] = (), defines: tuple[str, ...] = (), mutates: bool = False) -> bool:
        """Runs a step here and adds it to the program, unless CPU refuses it for a reason that only a kernel knows."""
        if self.autograd and self.rng.random() < 0.15 and "backward" not in code and "check" not in code:
            code = f"with torch.no_grad(): {code}"
        if self.place == 1:
            code = re.sub(r"(?<![\w.])device(?![\w=])", "other", code)
        if self.too_large(code, uses):
            return False
        step = Step(code, tuple(dict.fromkeys(uses)), defines, self.next_is_inexact, mutates)
        self.next_is_inexact = False
        error = self.session.run(step)
        if error is not None and any(text in str(error) for text in RUN_TIME_ERRORS):
            self.stopped |= mutates  # it may have written a part of something
            return False
        self.program.steps.append(step)
        # resize_ leaves undefined contents; the CPU's multi-tensor ops stop halfway.
        self.stopped |= error is not None and ("resize_and_fill" in code or "_foreach" in code)
        if error is None:
            self.live.extend(d for d in defines if d not in self.live)
            for live in self.lives:
                live[:] = [v for v in live if isinstance(self.session.variables.get(v), torch.Tensor)]
        return error is None

    def is_leaf(self, name: str) -> bool | None:
        return is_leaf(self.tensor(name))

    def too_large(self, code: str, uses: tuple[str, ...]) -> bool:
        """Whether a step would produce far more elements from large tensors."""
        tensors = [t for v in uses if isinstance(t := self.session.variables.get(v), torch.Tensor)]
        if all(t.numel() <= 4096 for t in tensors):
            return False
        if re.search(r"outer|einsum|kron|diag\(|one_hot|unfold|bmm|tolist|repeat|expand|tile|index\(", code):
            return True
        with contextlib.suppress(RuntimeError):
            return torch.broadcast_shapes(*(t.shape for t in tensors)).numel() > 200_000
        return False

    def assign(self, expression: str, *uses: str) -> None:
        name = self.name()
        self.emit(f"{name} = {expression}", uses, (name,))

    def inexact(self) -> None:
        self.next_is_inexact = True

    # -- choosing ------------------------------------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def shape(self, most: int = 4) -> tuple[int, ...]:
        if self.chance(0.02):
            return (130, 130)  # 64 KiB and more travel through shared memory
        if self.chance(0.08):
            return (self.rng.choice((16, 17, 33, 64)),) * self.rng.choice((1, 2))
        return tuple(self.rng.choice(SIZES) if self.chance(0.9) else 1 for _ in range(self.rng.randint(0, most)))

    def pick(self, want: Callable[[torch.Tensor], bool] | None = None) -> str:
        """A live variable, one that satisfies `want` if there is one."""
        if want is not None:
            liked = [v for v in self.live if want(self.tensor(v))]
            if liked:
                return self.rng.choice(liked)
        return self.rng.choice(self.live)

    def floating(self) -> str:
        return self.pick(lambda t: t.dtype.is_floating_point)

    def ranked(self, least: int, most: int = 9) -> str:
        return self.pick(lambda t: least <= t.dim() <= most)

    def partner(self, of: str) -> str:
        """A variable that probably broadcasts with `of`."""
        shape = self.tensor(of).shape

        def fits(t: torch.Tensor) -> bool:
            return all(a == b or a == 1 or b == 1 for a, b in zip(t.shape[::-1], shape[::-1], strict=False))

        return self.pick(fits) if self.chance(0.95) else self.pick()

    def same_shape(self, of: str, dtype: bool = False) -> str:
        like = self.tensor(of)
        return self.pick(lambda t: t.shape == like.shape and (not dtype or t.dtype == like.dtype))

    def dim(self, name: str) -> int:
        rank = self.tensor(name).dim()
        if self.chance(0.03):
            return self.rng.choice((rank, -rank - 1, rank + 2))  # usually invalid
        return self.rng.randint(-rank, rank - 1) if rank else self.rng.choice((0, -1))

    def size(self, name: str, dim: int) -> int:
        t = self.tensor(name)
        return t.shape[dim] if -t.dim() <= dim < t.dim() else 1

    def scalar(self, like: torch.Tensor | None = None) -> str:
        kind = self.rng.random()
        if like is not None and not like.dtype.is_floating_point and kind < 0.7:
            kind = 0.0 if like.dtype != torch.bool else 0.9
        if kind < 0.35:
            return f"s({self.rng.choice((1, 2, 3, 5))})"
        if kind < 0.4:
            return str(self.rng.choice((0, -1, -2)))
        if kind < 0.88:
            return f"s({self.rng.choice((0.5, -0.25, 1.5, 2.0, -3.0, 0.75))})"
        if kind < 0.94:
            return self.rng.choice(("True", "False"))
        if kind < 0.98:
            return f"torch.tensor({self.rng.choice(('2', '0.5', '-1.25', 'True', '3'))})"  # a 0-dim CPU tensor
        return self.rng.choice(("1e10", "float('inf')", "float('nan')", "1j"))

    def dtype(self) -> str:
        return str(self.rng.choice(DTYPES))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def make_leaf(self) -> None:
        shape, dtype = self.shape(), self.rng.choice(DTYPES)
        seed = self.rng.randrange(10**6)
        permutation = ""
        if len(shape) > 1 and self.chance(0.2):
            permutation = f", {tuple(self.rng.sample(range(len(shape)), len(shape)))}"
        grad = self.autograd and dtype.is_floating_point and self.chance(0.7)
        suffix = ".requires_grad_()" if grad else ""
        self.assign(f"leaf({seed}, {shape}, {dtype}{permutation}).to(device){suffix}")

    def make_factory(self) -> None:
        v = self.pick()
        shape, dtype = self.shape(), self.dtype()
        number = self.rng.randint(1, 7)
        choices = [
            (f"torch.zeros(sizes({shape}), dtype={dtype}, device=device)", ()),
            (f"torch.ones(sizes({shape}), dtype={dtype}, device=device)", ()),
            (f"torch.full(sizes({shape}), {self.scalar()}, device=device)", ()),
            (f"torch.arange({number}, device=device, dtype={self.rng.choice(FLOATS + INTS)})", ()),
            (f"torch.arange(0, {number}, {self.rng.choice((1, 2, 0.5))}, device=device)", ()),
            (f"torch.eye({number}, device=device)", ()),
            (f"torch.linspace(0, {number}, {number}, device=device)", ()),
            (f"torch.tensor({self.rng.choice((1, 2.5, True))}, device=device)", ()),
            (f"torch.zeros_like({v})", (v,)),
            (f"torch.ones_like({v}, dtype={dtype})", (v,)),
            (f"torch.full_like({v}, {number})", (v,)),
            (f"{v}.new_zeros(sizes({shape}))", (v,)),
            (f"{v}.new_full(sizes({shape}), {number})", (v,)),
            (f"torch.empty_like({v}).fill_({number})", (v,)),
            (f"torch.empty_strided((2, 3), (1, 2), device=device).fill_({number})", ()),
            (f"torch.empty((2, 3, 2, 2), memory_format=torch.channels_last, device=device).fill_({number})", ()),
            (f"torch.tril_indices({number}, 3, device=device)", ()),
        ]
        code, uses = self.rng.choice(choices)
        self.assign(code, *uses)

    def view(self) -> None:
        v = self.pick()
        t = self.tensor(v)
        d = self.dim(v)
        size = self.size(v, d)
        begin = self.rng.randint(0, max(size, 1))
        end = self.rng.randint(begin, size + 1)
        kind = self.rng.randrange(24)
        rank = t.dim()
        match kind:
            case 0 | 1:
                step = self.rng.choice((1, 1, 2, 3))
                self.assign(f"torch.ops.aten.slice({v}, {d}, {begin}, {end}, {step})", v)
            case 2:
                self.assign(f"{v}.narrow({d}, {begin}, {max(min(end, size) - begin, 0)})", v)
            case 3:
                self.assign(f"{v}.select({d}, {self.rng.randint(-size, size - 1) if size else 0})", v)
            case 4:
                self.assign(f"{v}.transpose({d}, {self.dim(v)})", v)
            case 5:
                self.assign(f"{v}.permute({tuple(self.rng.sample(range(rank), rank))})", v)
            case 6:
                self.assign(f"{v}.unsqueeze({self.rng.randint(-rank - 1, rank)})", v)
            case 7:
                self.assign(f"{v}.squeeze({self.rng.choice((str(d), ''))})", v)
            case 8:
                lead = self.rng.choice(((), (2,), (1, 3)))
                sizes = [str(s) for s in lead] + [
                    self.rng.choice(("-1", f"{v}.shape[{i}]")) if s != 1 else str(self.rng.choice((1, 2, 3)))
                    for i, s in enumerate(t.shape)
                ]
                self.assign(f"{v}.expand([{', '.join(sizes)}])", v)
            case 9 | 10:
                shape = self.reshaped(v, tuple(t.shape))
                self.assign(f"{v}.{self.rng.choice(('view', 'reshape', 'reshape'))}({shape})", v)
            case 11:
                self.assign(f"{v}.flatten()", v)
            case 12:
                a, b = self.dim(v), self.dim(v)
                self.assign(f"{v}.diagonal({self.rng.randint(-1, 1)}, {a}, {b})", v)
            case 13:
                window = self.rng.randint(0, size + (self.chance(0.1)))
                self.assign(f"{v}.unfold({d}, {window}, {self.rng.randint(1, 2)})", v)
            case 14 | 15:
                names = [self.name() for _ in range(self.rng.randint(1, 3))]
                how = self.rng.choice(
                    (f"chunk({self.rng.randint(1, 3)}, {d})", f"split({self.rng.randint(1, 3)}, {d})", f"unbind({d})")
                )
                code = f"{', '.join(names)}, *_ = {v}.{how}"
                self.emit(code, (v,), tuple(names))
            case 16:
                shape, stride = self.strided(t)
                self.assign(f"{v}.as_strided({shape}, {stride}, {self.rng.choice((0, 0, 1, t.storage_offset()))})", v)
            case 17:
                self.assign(f"{v}.movedim({d}, {self.dim(v)})", v)
            case 18:
                self.assign(
                    f"{v}.{self.rng.choice(('detach()', 'data', 'T', 'mT', 'view_as(' + v + ')', 'alias_copy()'))}", v
                )
            case 19:
                other = self.pick(lambda o: o.element_size() == t.element_size())
                self.assign(f"{v}.view({self.tensor(other).dtype})", v)
            case 20:
                c = self.pick(lambda o: o.dtype.is_complex)
                self.assign(f"{c}.{self.rng.choice(('real', 'imag', 'conj()', 'mH'))}", c)
            case 21:
                items = [self.index_item(s) for s in t.shape[: self.rng.randint(1, max(rank, 1))]]
                # For a second ellipsis, torch's CPU code looks for sizes past the last one; on other devices it reports
                # this.
                i = ", ".join(":" if item == "..." in items[:n] else item for n, item in enumerate(items))
                self.assign(f"{v}[{i}]", v)
            case 22:
                self.assign(
                    f"torch.broadcast_to({v}, {self.rng.choice(((2,), (3, 1), (2, 1, 1)))[:1] + tuple(t.shape)})", v
                )
            case _:
                how = self.rng.choice(("swapaxes(0, -1)", "unflatten(0, (-1, 1))", "ravel()", "t()", "contiguous()"))
                self.assign(f"{v}.{how}", v)

    def index_item(self, size: int) -> str:
        kind = self.rng.random()
        if kind < 0.4:
            begin = self.rng.randint(0, size)
            return f"{begin}:{self.rng.randint(begin, size + 1)}"
        if kind < 0.6:
            return str(self.rng.randint(-size, size - 1)) if size else ":"
        return self.rng.choice((":", "None", "::2", "..." if self.chance(0.2) else ":"))

    def reshaped(self, v: str, shape: tuple[int, ...]) -> str:
        """A shape with the same number of elements, in terms of the variable's sizes, so that it is valid in every
        variant."""
        sizes = [f"{v}.shape[{i}]" for i in range(len(shape))] or ["1"]
        self.rng.shuffle(sizes)
        if len(sizes) > 1 and self.chance(0.5):
            sizes[:2] = [f"{sizes[0]} * {sizes[1]}"]
        if self.chance(0.3):
            sizes.insert(self.rng.randint(0, len(sizes)), "1")
        if self.chance(0.3) and 0 not in shape:
            sizes[self.rng.randrange(len(sizes))] = "-1"
        if self.chance(0.05):
            sizes[0] = "11"
        return "[" + ", ".join(sizes) + "]"

    def strided(self, t: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and strides that usually stay inside the storage; sometimes elements overlap."""
        room = t.untyped_storage().nbytes() // t.element_size()
        shape, stride = [], []
        for _ in range(self.rng.randint(0, 3)):
            step = self.rng.choice((1, 2, 3, 0 if self.chance(0.2) else 1))
            size = self.rng.randint(1, 3)
            if step * (size - 1) >= room and not self.chance(0.05):
                break
            room -= step * (size - 1)
            shape.append(size)
            stride.append(step)
        return tuple(shape), tuple(stride)

    def unary(self) -> None:
        if self.chance(0.25):
            v = self.floating()
            self.inexact()
            name = self.rng.choice(ACTIVATIONS)
            # Our kernels give infinity for infinity, CPU's vector code NaN; CPU's is also inaccurate below 0.
            if FUSED and name == "gelu":
                name = "mish"
            self.assign(f"F.{name}({v})", v)
            return
        v, op = self.pick(), self.rng.choice(UNARY)
        if op in INEXACT_UNARY:
            self.inexact()
        self.assign(f"torch.{op}({v})", v)

    def operand(self, of: str) -> tuple[str, tuple[str, ...]]:
        if self.chance(0.4):
            return self.scalar(self.tensor(of)), ()
        other = self.partner(of)
        return other, (other,)

    def safe_division(self, op: str, a: str, text: str, uses: tuple[str, ...]) -> str:
        """Avoids integer division by zero, which is a run-time error."""
        if op.rstrip("_") not in ("fmod", "remainder", "floor_divide"):
            return text
        if uses and not self.tensor(uses[0]).dtype.is_floating_point:
            return f"({text} | 1)" if not self.tensor(uses[0]).dtype.is_complex else text
        return "2" if text in ("0", "False") else text

    def signs(self, op: str, text: str, uses: tuple[str, ...]) -> str:
        """Removes NaNs: their sign is meaningless, and a NaN on CPU may be a number with less rounding."""
        if op.rstrip("_") != "copysign" or not uses or not self.tensor(uses[0]).dtype.is_floating_point:
            return text
        return f"{text}.nan_to_num()"

    def binary(self) -> None:
        a, op = self.pick(), self.rng.choice(BINARY)
        if op in INEXACT_BINARY:
            self.inexact()
        b, uses = self.operand(a)
        b = self.signs(op, self.safe_division(op, a, b, uses), uses)
        if op in ("add", "sub") and self.chance(0.2):
            self.assign(f"torch.{op}({a}, {b}, alpha={self.scalar(self.tensor(a))})", a, *uses)
        elif op == "div" and self.chance(0.3) and self.tensor(a).dtype.is_floating_point:
            mode = self.rng.choice(("trunc", "floor"))
            self.assign(
                f"torch.div({a}, {b}, rounding_mode='{mode}')" if uses or "tensor" in b else f"{a} / {b}", a, *uses
            )
        elif not uses and self.chance(0.4):
            symbol = self.rng.choice(("+", "-", "*", "/", "**", "<", "=="))
            if symbol == "**":
                self.inexact()
            self.assign(f"{b} {symbol} {a}" if symbol != "/" or self.tensor(a).is_floating_point() else f"{b} * {a}", a)
        else:
            self.assign(f"torch.{op}({a}, {b})", a, *uses)

    def inplace(self) -> None:
        """In-place ops on bases and views; they return the same tensor object."""
        v = self.pick()
        t = self.tensor(v)
        kind = self.rng.randrange(20)
        if kind < 7:
            op = self.rng.choice(INPLACE_BINARY)
            if op == "pow_":
                self.inexact()
            b, uses = self.operand(v)
            b = self.signs(op, self.safe_division(op, v, b, uses), uses)
            self.mutate(v, f"{v}.{op}({b})", *uses)
        elif kind < 9:
            op = self.rng.choice(INPLACE_UNARY)
            if op[:-1] in INEXACT_UNARY:
                self.inexact()
            self.mutate(v, f"{v}.{op}()")
        elif kind < 11:
            other = self.partner(v)
            source = other
            if not t.dtype.is_floating_point and not t.dtype.is_complex and t.dtype != torch.bool:
                source = f"to_int({other}, {t.dtype})"
            self.mutate(v, f"{v}.copy_({source})", other)
        elif kind == 11:
            self.mutate(v, f"{v}.fill_({self.scalar(t) if t.dtype.is_floating_point else self.rng.randint(0, 5)})")
        elif kind == 12:
            mask = self.partner(v)
            self.mutate(v, f"{v}.masked_fill_({mask} != 0, {self.rng.randint(0, 3)})", mask)
        elif kind == 13:
            low = self.rng.randint(0, 2)
            self.mutate(v, f"{v}.clamp_({low}, {low + 2})")
        elif kind == 14:
            a, b = self.partner(v), self.partner(v)
            op = self.rng.choice(("addcmul_", "addcdiv_"))
            self.mutate(v, f"{v}.{op}({a}, {b}, value={self.rng.choice((1, 0.5, 2))})", a, b)
        elif kind == 15:
            a = self.partner(v)
            self.inexact()
            self.mutate(v, f"{v}.lerp_({a}, {self.rng.choice(('0.25', '0.75'))})", a)
        elif kind == 16 and t.dim():
            items = ", ".join(self.index_item(s) for s in t.shape[: self.rng.randint(1, t.dim())])
            value = self.rng.randint(0, 9)
            self.emit(f"{v}[{items}] = {value}", (v,), (), mutates=True)
        elif kind == 17:
            self.mutate(
                v, f"{v}.{self.rng.choice(('t_()', 'transpose_(0, -1)', 'unsqueeze_(0)', 'squeeze_()', 'squeeze_(0)'))}"
            )
        elif kind == 18:
            self.index_inplace(v)
        else:
            calls = ("requires_grad_(False)", "cumsum_(0)", "tril_()", "fill_diagonal_(1)", "swapdims_(0, -1)")
            self.mutate(v, f"{v}.{self.rng.choice(calls)}")

    def mutate(self, v: str, call: str, *uses: str) -> None:
        if any(self.overlaps_unseen(v, other) for other in uses):
            return
        r = self.name()
        if self.emit(f"{r} = {call}", (v, *uses), (r,), mutates=True):
            self.emit(f"same_storage({v}, {r})", (v, r))
            if self.chance(0.7):
                self.live.remove(r)

    def overlaps_unseen(self, written: str, read: str) -> bool:
        """Whether torch would allow an op to read what it has written, because it checks overlaps only among dense
        tensors."""
        w, r = self.tensor(written), self.tensor(read)
        if read == written or w.untyped_storage().data_ptr() != r.untyped_storage().data_ptr():
            return False
        return not all(map(is_non_overlapping_and_dense_or_false, (w, r)))

    def index_inplace(self, v: str) -> None:
        t, d = self.tensor(v), self.dim(v)
        limit = self.size(v, d)
        source = self.same_shape(v, dtype=True)
        count = self.size(source, d)
        i = self.pick(lambda o: o.dim() == 1 and o.numel() == count)
        op = self.rng.choice(("index_add_", "index_copy_", "index_fill_", "scatter_", "scatter_add_", "put"))
        if limit == 0 or self.tensor(i).numel() == 0:
            return
        if op == "index_fill_":
            self.mutate(v, f"{v}.index_fill_({d}, index({i}, {limit}), {self.rng.randint(0, 3)})", i)
        elif op in ("scatter_", "scatter_add_"):
            self.mutate(v, f"{v}.{op}({d}, index({source}, {limit}), {source})", source)
        elif op == "put" and t.dim():
            accumulate = self.rng.choice(("True", "False"))
            limit = t.shape[0]
            if limit:
                self.mutate(
                    v, f"{v}.index_put_((index({i}, {limit}),), {v}.sum().to({t.dtype}), accumulate={accumulate})", i
                )
        elif op != "put":
            self.mutate(v, f"{v}.{op}({d}, index({i}, {limit}), {source})", i, source)

    def storage(self) -> None:
        """Changes of a tensor's metadata or storage that autograd does not see."""
        v = self.pick(lambda t: not t.requires_grad)
        t = self.tensor(v)
        other = self.pick(lambda o: o.dtype == t.dtype and not o.requires_grad)
        kind = self.rng.randrange(7)
        if kind == 0:
            self.emit(f"{v}.data = {other}", (v, other), (), mutates=True)
        elif kind == 1:
            self.emit(f"{v}.set_({other})", (v, other), (), mutates=True)
        elif kind == 2:
            shape = self.shape(2)
            self.emit(f"resize_and_fill({v}, {shape}, 1)", (v,), (), mutates=True)
        elif kind == 3:
            shape, stride = self.strided(t)
            self.emit(f"{v}.as_strided_({shape}, {stride})", (v,), (), mutates=True)
        elif kind == 4:
            # Growing would expose uninitialized memory, also in variants with other sizes.
            room = f"{other}.untyped_storage().nbytes() // {t.element_size()}"
            self.emit(f"{v}.set_({other}.untyped_storage(), 0, (min({room}, 2),), (1,))", (v, other), (), mutates=True)
        elif kind == 5:
            self.assign(f"torch.empty(0, dtype={t.dtype}, device=device).set_({v}.untyped_storage())", v)
        else:
            self.emit(f"{v} = copy = {v}.clone(); {v}.data = {v}.data * 1; del copy", (v,), (v,), mutates=True)

    def out(self) -> None:
        a = self.pick()
        b, uses = self.operand(a)
        out = self.same_shape(a, dtype=True) if self.chance(0.8) else self.pick()
        t = self.tensor(a)
        codes = [
            (f"torch.add({a}, {b}, out={out})", uses),
            (f"torch.mul({a}, {b}, out={out})", uses),
            (f"torch.neg({a}, out={out})", ()),
            (f"torch.clamp({a}, 0, 2, out={out})", ()),
            (f"torch.eq({a}, {b}, out={out})", uses),
        ]
        if self.tensor(out).untyped_storage()._cdata != t.untyped_storage()._cdata:  # the CPU kernels do not check this
            codes.append((f"torch.cat([{a}, {a}], 0, out={out})", ()))
            codes.append((f"torch.sum({a}, {self.dim(a)}, out={out})", ()))
            codes.append((f"torch.cumsum({a}, {self.dim(a)}, out={out})", ()))
        if t.dim() == 2 and len(codes) > 5:
            codes.append((f"torch.mm({a}, {a}.t(), out={out})", ()))
        code, used = self.rng.choice(codes)
        if self.depends_on_order(out, a, *used):
            return
        if re.search(r"sum|mm", code):
            self.inexact()
        self.mutate(out, code, a, *used)

    def depends_on_order(self, out: str, *operands: str) -> bool:
        """Whether `out` shares memory with an operand, and has elements at the same address or a different size.

        CPU checks overlaps before it resizes `out`, and not again. After that, the values that the kernel reads depend
        on the order in which it writes.
        """
        storage = self.tensor(out).untyped_storage()._cdata
        if all(self.tensor(v).untyped_storage()._cdata != storage for v in operands):
            return False
        if shares_elements(self.tensor(out)):
            return True
        with contextlib.suppress(RuntimeError):
            return torch.broadcast_shapes(*(self.tensor(v).shape for v in operands)) != self.tensor(out).shape
        return True

    def reduction(self) -> None:
        v, op = self.pick(), self.rng.choice(REDUCTIONS)
        if op not in EXACT_REDUCTIONS:
            self.inexact()
        d, keep = self.dim(v), self.rng.choice(("True", "False"))
        kind = self.rng.random()
        if op in ("max", "min") and kind < 0.6:
            a, b = self.name(), self.name()
            self.emit(f"{a}, {b} = torch.{op}({v}, {d}, {keep})", (v,), (a, b))
        elif kind < 0.3 or op in ("max", "min", "median"):
            self.assign(f"torch.{op}({v})" if op != "logsumexp" else f"torch.logsumexp({v}, {d})", v)
        elif kind < 0.8 or op in ("prod", "any", "all", "count_nonzero", "argmax", "argmin"):
            dims = f"{d}" if op != "norm" else f"2, {d}"
            extra = f", keepdim={keep}" if op != "count_nonzero" else ""
            self.assign(f"torch.{op}({v}, {dims}{extra})", v)
        else:
            dims = tuple({self.rng.randrange(max(self.tensor(v).dim(), 1)) for _ in range(2)})
            self.assign(f"{v}.{op}(dim={dims}, keepdim={keep})", v)

    def rowwise(self) -> None:
        self.inexact()
        v = self.floating() if self.chance(0.8) else self.pick()
        d = self.dim(v)
        size = self.size(v, -1)
        choice = self.rng.randrange(12)
        match choice:
            case 0 | 1:
                self.assign(f"torch.softmax({v}, {d})", v)
            case 2:
                self.assign(f"torch.log_softmax({v}, {d}, dtype=torch.float32)", v)
            case 3:
                self.assign(f"torch.{self.rng.choice(('cumsum', 'cumprod', 'logcumsumexp'))}({v}, {d})", v)
            case 4:
                self.assign(f"F.layer_norm({v}, {v}.shape[-1:])", v)
            case 5:
                a, b = self.name(), self.name()
                self.emit(f"{a}, {b} = torch.sort({v}, dim={d}, stable=True)", (v,), (a, b))
            case 6:
                a, b = self.name(), self.name()
                self.emit(f"{a}, {b} = torch.cummax({v}, {d})", (v,), (a, b))
            case 7:
                self.assign(f"F.normalize({v}, dim={d})", v)
            case 8:
                w = self.pick(lambda t: t.dim() == 1 and t.shape[0] == size and t.dtype == self.tensor(v).dtype)
                self.assign(f"F.layer_norm({v}, {v}.shape[-1:], {w}, {w})", v, w)
            case 9:
                self.assign(f"torch.diff({v}, dim={d})", v)
            case 10:
                self.assign(f"F.rms_norm({v}, {v}.shape[-1:])", v)
            case _:
                self.assign(f"torch.var_mean({v}, {d})[{self.rng.randint(0, 1)}]", v)

    def matmul(self) -> None:
        self.inexact()
        a = self.pick(lambda t: t.dim() >= 1 and t.dtype.is_floating_point)
        t = self.tensor(a)
        k = t.shape[-1] if t.dim() else 1
        b = self.pick(lambda o: o.dtype == t.dtype and o.dim() >= 1 and o.shape[-2:][0] == k)
        match self.rng.randrange(9):
            case 0 | 1 | 2:
                if self.chance(0.2):
                    name = self.name()
                    code = f"with torch.autocast(device.type, torch.bfloat16): {name} = {a} @ {b}"
                    self.emit(code, (a, b), (name,))
                else:
                    self.assign(f"{a} @ {b}", a, b)
            case 3:
                self.assign(f"{a} @ {a}.transpose(-1, -2)", a)
            case 4:
                c = self.pick(lambda o: o.dtype == t.dtype and o.dim() == 2)
                self.assign(f"F.linear({a}, {c})", a, c)
            case 5:
                self.assign(f"torch.addmm({b}, {a}, {a}.t(), beta={self.scalar()}, alpha=2)", a, b)
            case 6:
                self.assign(f"torch.outer({a}.flatten(), {b}.flatten())", a, b)
            case 7:
                self.assign(f"torch.einsum('...i,...j->...ij', {a}, {a})", a)
            case _:
                self.assign(f"torch.bmm({a}, {a}.transpose(1, 2))", a)

    def joining(self) -> None:
        a = self.pick()
        b = self.same_shape(a) if self.chance(0.9) else self.pick()
        c = self.partner(a)
        d = self.dim(a)
        match self.rng.randrange(9):
            case 0 | 1:
                self.assign(f"torch.cat([{a}, {b}, {a}], {d})", a, b)
            case 2:
                self.assign(f"torch.stack([{a}, {b}], {d})", a, b)
            case 3 | 4:
                self.assign(f"torch.where({c} != 0, {a}, {self.rng.choice((b, self.scalar()))})", a, b, c)
            case 5:
                self.inexact()
                self.assign(f"torch.lerp({a}, {b}, 0.5)", a, b)
            case 6:
                self.assign(f"torch.addcmul({a}, {b}, {c}, value={self.scalar(self.tensor(a))})", a, b, c)
            case 7:
                x, y = self.name(), self.name()
                self.emit(f"{x}, {y} = torch.broadcast_tensors({a}, {c})", (a, c), (x, y))
            case _:
                x, y = self.name(), self.name()
                op = self.rng.choice(("add", "mul", "maximum"))
                self.emit(f"{x}, {y} = torch._foreach_{op}([{a}, {b}], [{b}, {a}])", (a, b), (x, y))

    def foreach_inplace(self) -> None:
        a = self.floating()
        b = self.floating()
        call = self.rng.choice(
            (
                f"torch._foreach_mul_([{a}, {b}], {self.scalar()})",
                f"torch._foreach_add_([{a}, {b}], [{a}, {b}], alpha=0.5)",
                f"torch._foreach_addcmul_([{a}, {b}], [{a}, {b}], [{a}, {b}], 0.5)",
                f"torch._foreach_zero_([{a}, {b}])",
            )
        )
        self.inexact()
        self.emit(call, (a, b), (), mutates=True)

    def indexing(self) -> None:
        v = self.ranked(1)
        d = self.dim(v)
        limit = self.size(v, d)
        i = self.pick()
        t = self.tensor(v)
        if limit == 0:
            return
        match self.rng.randrange(14):
            case 0:
                one = self.pick(lambda o: o.dim() <= 1)
                self.assign(f"{v}.index_select({d}, index({one}, {limit}))", v, one)
            case 1:
                self.assign(f"{v}.gather({d}, index({v}, {limit}))", v)
            case 2:
                self.assign(f"{v}[index({i}, {t.shape[0]})]" if t.dim() and t.shape[0] else f"{v}[None]", v, i)
            case 3:
                self.assign(f"{v}[{v} > 0]", v)
            case 4:
                self.assign(f"{v}.nonzero()", v)
            case 5:
                self.assign(f"torch.masked_select({v}, {v} != 0)", v)
            case 6:
                self.assign(f"torch.take({v}, index({i}, {max(t.numel(), 1)}))" if t.numel() else f"{v}.clone()", v, i)
            case 7:
                self.assign(
                    f"F.embedding(index({i}, {t.shape[0]}), {v})" if t.dim() == 2 and t.shape[0] else f"{v}.clone()",
                    v,
                    i,
                )
            case 8:
                self.assign(f"F.one_hot(index({i}, 4), 5)", i)
            case 9:
                self.assign(f"torch.scatter({v}, {d}, index({v}, {limit}), {self.rng.randint(0, 3)})", v)
            case 10:  # different rounding may produce more distinct numbers
                self.assign(f"torch.unique({v})" if self.session.is_exact(t) else f"torch.unique(index({v}, 7))", v)
            case 11:
                self.assign(f"torch.take_along_dim({v}, index({v}, {limit}), {d})", v)
            case 12:
                self.assign(f"torch.bincount(index({i}, 6).flatten())", i)
            case _:
                self.assign(f"{v}.repeat_interleave({self.rng.randint(0, 2)}, {d})", v)

    def rearranging(self) -> None:
        v = self.pick()
        rank = self.tensor(v).dim()
        d = self.dim(v)
        code = self.rng.choice(
            (
                f"torch.flip({v}, ({d},))",
                f"torch.roll({v}, {self.rng.randint(-2, 2)}, {d})",
                f"{v}.repeat({tuple(self.rng.randint(0, 2) for _ in range(rank + self.rng.randint(0, 1)))})",
                f"torch.tril({v}, {self.rng.randint(-1, 1)})",
                f"torch.triu({v})",
                f"F.pad({v}, ({self.rng.randint(0, 2)}, {self.rng.randint(-1, 2)}), value={self.rng.randint(0, 2)})",
                f"torch.diag({v})",
                f"torch.rot90({v})",
                f"torch.tile({v}, (2,))",
                f"torch.kron({v}, {v})" if self.tensor(v).numel() < 20 else f"{v}.clone()",
                f"{v}.contiguous(memory_format=torch.channels_last)",
                f"{v}.clone(memory_format=torch.contiguous_format)",
                f"torch.clamp({v}, min={self.rng.randint(-1, 1)})",
                f"torch.masked_fill({v}, {v} == 1, {self.rng.randint(0, 3)})",
            )
        )
        self.assign(code, v)

    def cast(self) -> None:
        v, dtype = self.pick(), self.rng.choice(DTYPES)
        if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
            how = self.rng.choice((f"{v}.to({dtype})", f"{v}.type({dtype})", f"{v}.to(device, {dtype}, copy=True)"))
            self.assign(how, v)
        else:
            self.assign(f"to_int({v}, {dtype})", v)

    def move(self) -> None:
        v = self.pick()
        code = self.rng.choice(
            (
                f"{v}.to('cpu', copy=True).to(device)",
                f"{v}.to('cpu').add(1).to(device)",
                f"{v}.to(device)",
                f"torch.zeros({tuple(self.tensor(v).shape)}, device=device).copy_({v}.cpu())",
                f"torch.empty_like({v}).copy_({v}.detach().cpu())",
                f"{v}.detach().to('cpu', copy=True)[..., ::2].to(device, copy=True)",
            )
        )
        self.assign(code, v)

    def network(self) -> None:
        self.inexact()
        v = self.pick(lambda t: t.dim() in (3, 4) and t.dtype == torch.float32)
        t = self.tensor(v)
        if t.dim() < 2 or t.dtype != torch.float32:
            return
        channels = t.shape[1]
        seed = self.rng.randrange(1000)
        c = f"leaf({seed}, ({channels},), torch.float32).to(device)"
        match self.rng.randrange(8):
            case 0 | 1 if t.dim() == 4 and channels:
                self.assign(
                    f"F.conv2d({v}, leaf({seed}, (2, {channels}, 2, 2), torch.float32).to(device), padding=1)", v
                )
            case 2 if t.dim() == 3 and channels:
                self.assign(f"F.conv1d({v}, leaf({seed}, (2, {channels}, 2), torch.float32).to(device), padding=1)", v)
            case 3:
                a, b = self.name(), self.name()
                self.emit(f"{a}, {b} = {c}, torch.ones({channels}, device=device)", (), (a, b))
                training = self.rng.choice(("True", "False"))
                self.inexact()
                self.assign(f"F.batch_norm({v}, {a}, {b}, training={training}, momentum=0.25)", v, a, b)
            case 4 if t.dim() == 4:
                self.assign(f"F.{self.rng.choice(('max_pool2d', 'avg_pool2d'))}({v}, 2, padding=1)", v)
            case 5 if t.dim() == 4:
                # CPU's fused kernel gives zeros for a query whose scores are all NaN, and scales scores after they have
                # overflowed.
                q, causal = f"{v}.nan_to_num(0, 8, -8)", self.chance(0.5)
                self.assign(f"F.scaled_dot_product_attention({q}, {q}, {q}, is_causal={causal}).contiguous()", v)
            case 6:
                self.assign(f"F.group_norm({v}, 1)", v)
            case _ if channels:
                self.assign(f"F.cross_entropy({v}, index({v}.select(1, 0), {channels}))", v)

    def read(self) -> None:
        v = self.pick(lambda t: t.numel() == 1) if self.chance(0.5) else self.pick()
        t = self.tensor(v)
        what = [
            f"{v}.detach().cpu().resolve_conj()",
            f"{v}.tolist()",
            f"bool(({v} != 0).any())",
            f"int(({v} == {v}).sum())",
        ]
        if t.numel() == 1:
            what += [f"{v}.item()", f"{v}.item()"]
        if not t.requires_grad and not t.is_conj() and t.dtype != torch.bfloat16:
            what.append(f"torch.from_numpy({v}.cpu().clone().numpy())")
        what += [f"torch.equal({v}, {v})", f"len({v})" if t.dim() else f"{v}.dim()", f"{v}.is_contiguous()"]
        self.emit(f"read({self.rng.choice(what)})", (v,))

    def draw(self) -> None:
        kind = self.rng.choice(list(DRAWS))
        self.assign(f"drawn({self.rng.randrange(10**6)}, {self.shape(3)}, '{kind}', device)")

    def optimizer(self) -> None:
        a = self.pick(lambda t: t.dtype in (torch.float32, torch.float64))
        b = self.pick(lambda t: t.dtype in (torch.float32, torch.float64))
        if not all(self.tensor(v).is_floating_point() for v in (a, b)):
            return
        self.inexact()
        x, y = self.name(), self.name()
        name = self.rng.choice(list(OPTIMIZERS))
        self.emit(f"{x}, {y} = optimized('{name}', {self.rng.randrange(1000)}, {a}, {b})", (a, b), (x, y))

    def gradient(self) -> None:
        """Computes a gradient in the middle of the program."""
        wants = [v for v in self.live if self.tensor(v).requires_grad and self.is_leaf(v) is False]
        leaves = [v for v in self.live if self.tensor(v).requires_grad and self.is_leaf(v)]
        if not wants or not leaves:
            return
        self.inexact()
        v, of = self.rng.choice(wants), self.rng.choice(leaves)
        how = f"torch.ones_like({v}), retain_graph=True, allow_unused=True"
        self.assign(f"torch.autograd.grad({v}, {of}, {how})[0]", v, of)

    def exchange(self) -> None:
        """Copies a tensor to the other device of a program for two devices."""
        if len(self.lives) == 1:
            return
        v, name = self.pick(), self.name()
        there = "home" if self.place else "other"
        if self.emit(f"{name} = {v}.detach().to({there}, copy=True)", (v,), (name,)):
            self.live.remove(name)
            self.lives[1 - self.place].append(name)

    def forget(self) -> None:
        if len(self.live) > 3:
            v = self.pick()
            self.live.remove(v)
            self.emit(f"del {v}", (v,))

    def check(self) -> None:
        some = self.rng.sample(self.live, min(len(self.live), 3))
        self.emit(f"check({', '.join(some)})", tuple(some))

    def cut(self) -> None:
        self.emit("synchronize()")

    def backward(self) -> None:
        wants = [v for v in self.live if self.tensor(v).requires_grad and self.tensor(v).dtype.is_floating_point]
        if not wants:
            return
        self.inexact()
        total = " + ".join(f"{v}.float().sum()" for v in wants)
        loss = self.name()
        self.assign(total, *wants)
        loss = f"v{self.names}"
        if loss in self.session.variables:
            self.inexact()
            self.emit(f"{loss}.backward()", (loss, *wants))
            for v in wants:
                with contextlib.suppress(RuntimeError):  # autograd refuses a view that was modified without it
                    has_grad = self.tensor(v).is_leaf and self.tensor(v).grad is not None
                    if has_grad:
                        self.emit(f"check({v}.grad)", (v, loss))

    def finish(self) -> None:
        live = [v for lives in self.lives for v in lives]
        self.next_is_inexact = False
        for v in live:
            self.emit(f"check({v})", (v,))
        if live:
            self.emit(f"same_storage({', '.join(live)})", tuple(live))
        self.emit("check_draws()")


WEIGHTS: dict[str, int] = {
    "make_leaf": 5,
    "make_factory": 4,
    "view": 16,
    "unary": 7,
    "binary": 12,
    "inplace": 16,
    "storage": 3,
    "out": 3,
    "reduction": 6,
    "rowwise": 4,
    "matmul": 4,
    "joining": 6,
    "foreach_inplace": 1,
    "indexing": 5,
    "rearranging": 4,
    "cast": 4,
    "move": 2,
    "network": 2,
    "read": 3,
    "forget": 4,
    "check": 2,
    "cut": 2,
    "draw": 1,
    "optimizer": 1,
    "gradient": 1,
    "exchange": 3,
}


def generate(seed: int, length: int = 30, devices: int = 1) -> Program:
    """The program of a seed."""
    generator = Generator(seed, devices)
    for generator.place in range(devices):
        for _ in range(3):
            generator.make_leaf()
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    for _ in range(generator.rng.randint(3, length)):
        generator.place = generator.rng.randrange(devices)
        generator.next_is_inexact = False
        if not generator.live:
            generator.make_leaf()
        getattr(generator, generator.rng.choices(kinds, weights)[0])()
        if generator.stopped:
            break
        while len(generator.live) > 14:
            generator.forget()
    if not generator.stopped:
        for generator.place in range(devices):
            if generator.autograd and generator.live:
                generator.backward()
        generator.finish()
    return generator.program
