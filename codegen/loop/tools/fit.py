"""Writes codegen/loop/function_tables.h: coefficients of the polynomials in the expansions of elementary functions.

    python codegen/loop/tools/fit.py > codegen/loop/function_tables.h

Each is the minimax polynomial of its function (Remez exchange; relative error unless a weight says otherwise). Low
coefficients are rounded to the format one after the other. After each, the remaining ones are fitted again, to
compensate for the rounding. The script needs mpmath and takes minutes.
"""

import struct
import sys
from collections.abc import Callable

from mpmath import mp, mpf

mp.prec = 200
POINTS = 400

Function = Callable[[mpf], mpf]


def solve(rows: list[list[mpf]], right: list[mpf]) -> list[mpf]:
    return list(mp.lu_solve(mp.matrix(rows), mp.matrix(right)))


def grid(low: mpf, high: mpf) -> list[mpf]:
    middle, half = (low + high) / 2, (high - low) / 2
    return [middle - half * mp.cos(mp.pi * i / POINTS) for i in range(POINTS + 1)]


class Problem:
    """f(x) ~ sum of c[k] * x**k for the powers k; the error is weighted with weight(x)."""

    def __init__(self, f: Function, weight: Function, low: mpf, high: mpf):
        self.xs = [x for x in grid(mpf(low), mpf(high)) if abs(x) > mpf(high) / 1000]
        self.f = [f(x) for x in self.xs]
        self.w = [weight(x) for x in self.xs]

    def take(self, power: int, coefficient: mpf) -> None:
        self.f = [v - coefficient * x**power for v, x in zip(self.f, self.xs, strict=True)]

    def minimax(self, powers: list[int]) -> tuple[list[mpf], mpf]:
        n = len(powers)
        # We divide by the lowest power. What remains is a polynomial with all powers, whose errors alternate.
        least = powers[0]
        columns = [[x ** (k - least) for k in powers] for x in self.xs]
        f = [v / x**least for v, x in zip(self.f, self.xs, strict=True)]
        weights = [w * abs(x) ** least for w, x in zip(self.w, self.xs, strict=True)]
        chosen = [round((i + mpf("0.3")) * (len(self.xs) - 1) / (n + 1)) for i in range(n + 1)]
        best: tuple[list[mpf], mpf] | None = None
        for _ in range(15):
            rows = [[*columns[j], (-1) ** i / weights[j]] for i, j in enumerate(chosen)]
            *c, level = solve(rows, [f[j] for j in chosen])
            errors = [
                (sum(a * b for a, b in zip(c, row, strict=True)) - v) * w
                for row, v, w in zip(columns, f, weights, strict=True)
            ]
            worst = max(abs(e) for e in errors)
            if best is None or worst < best[1]:
                best = c, worst
            if worst < abs(level) * mpf("1.01"):
                break
            chosen = exchange(errors, n + 1)
            if len(chosen) != n + 1:
                break
        assert best is not None
        return best


def exchange(errors: list[mpf], count: int) -> list[int]:
    """Returns the largest error of each run of one sign, without the smaller ones at an end."""
    peaks: list[int] = []
    for i, e in enumerate(errors):
        if peaks and (e > 0) == (errors[peaks[-1]] > 0):
            if abs(e) > abs(errors[peaks[-1]]):
                peaks[-1] = i
        else:
            peaks.append(i)
    while len(peaks) > count:
        peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
    return peaks


def to_float(x: mpf) -> mpf:
    return mpf(struct.unpack("f", struct.pack("f", float(x)))[0])


def to_double(x: mpf) -> mpf:
    return mpf(float(x))


def fit(
    name: str, f: Function, weight: Function, low, high, powers: list[int], single: bool, first_in_two: bool = False
) -> None:
    """Prints the table. The lowest coefficients are rounded one by one, the others together.

    We try several numbers of the former and use the best one. With `first_in_two`, the first coefficient is the sum of
    the first two numbers of the table.
    """
    rounded = to_float if single else to_double
    best: tuple[mpf, list[mpf]] | None = None
    for careful in (1, 2, 4):
        problem = Problem(f, weight, low, high)
        left = list(powers)
        done: list[mpf] = []
        while left:
            c, _ = problem.minimax(left)
            take = 1 if len(done) < careful else len(left)
            for power, coefficient in zip(left[:take], c[:take], strict=True):
                done.append(rounded(coefficient))
                problem.take(power, done[-1])
                if first_in_two and len(done) == 1:
                    done.append(rounded(coefficient - done[-1]))
                    problem.take(power, done[-1])
            left = left[take:]
        worst = max(abs(v) * w for v, w in zip(problem.f, problem.w, strict=True))
        if best is None or worst < best[0]:
            best = worst, done
    assert best is not None
    exponent = float(mp.log(best[0], 2))
    print(f"  2^{exponent:.1f} {name}", file=sys.stderr, flush=True)
    show(name, best[1], exponent)


def show(name: str, values: list[mpf], error: float) -> None:
    text = ", ".join(float(v).hex() for v in values)
    print(f"// 2^{error:.1f}")
    print(f"inline constexpr double {name}[] = {{{text}}};")


def squares(f: Function) -> Function:
    return lambda z: f(mp.sqrt(z))


def log_quotient(s: mpf) -> mpf:
    return mp.log((1 + s) / (1 - s)) / s


ROOT = mp.sqrt(2)


def tables() -> None:
    ln2 = mp.log(2)
    half = ln2 / 2 * mpf("1.0001")
    # exp(r) = 1 + r + r^2 q(r), |r| <= ln 2 / 2
    for name, top, single in (("kExp32", 6, True), ("kExp64", 11, False), ("kExpMid", 7, False)):
        fit(name, lambda x: mp.exp(x) - 1 - x, lambda x: mp.exp(-x), -half, half, list(range(2, top + 1)), single)
    # 2^r = 1 + r q(r), |r| <= 1/2
    for name, top, single in (("kExp2_32", 6, True), ("kExp2_64", 11, False), ("kExp2Mid", 7, False)):
        fit(name, lambda x: 2**x - 1, lambda x: mpf(2) ** -x, -0.5001, 0.5001, list(range(1, top + 1)), single)
    # exp(r) - 1 = r + r^2 q(r), |r| <= ln 2 / 2
    for name, top, single in (("kExpm1_32", 5, True), ("kExpm1Short32", 4, True), ("kExpm1_64", 10, False)):
        fit(
            name,
            lambda x: (mp.expm1(x) - x) / x**2,
            lambda x: abs(x * x / mp.expm1(x)),
            -half,
            half,
            list(range(top + 1)),
            single,
        )
    # sinh(x) = x + x^3 q(x^2), x <= 1
    for name, top, single in (("kSinh32", 3, True), ("kSinh64", 6, False)):
        fit(
            name,
            squares(lambda x: (mp.sinh(x) - x) / x**3),
            squares(lambda x: x**3 / mp.sinh(x)),
            0,
            1.001,
            list(range(top + 1)),
            single,
        )
    # tanh(x) = x + x^3 q(x^2), x <= 0.55
    for name, top, single in (("kTanh32", 4, True), ("kTanh64", 11, False)):
        fit(
            name,
            squares(lambda x: (mp.tanh(x) - x) / x**3),
            squares(lambda x: x**3 / mp.tanh(x)),
            0,
            mpf("0.3026"),
            list(range(top + 1)),
            single,
        )
    # log(1 + f) = f - f^2 / 2 + f^3 q(f), sqrt(1/2) <= 1 + f <= sqrt(2)
    fit(
        "kLog32",
        lambda x: (mp.log1p(x) - x + x * x / 2) / x**3,
        lambda x: abs(x**3 / mp.log1p(x)),
        1 / ROOT - mpf("1.0001"),
        ROOT - mpf("0.9999"),
        list(range(9)),
        True,
    )
    # log((1 + s) / (1 - s)) = 2 s + s q(s^2), s <= (sqrt(2) - 1) / (sqrt(2) + 1)
    most = ((ROOT - 1) / (ROOT + 1)) ** 2 * mpf("1.0001")
    for name, top in (("kLog64", 7), ("kLogMid", 4)):
        fit(
            name,
            squares(lambda s: log_quotient(s) - 2),
            squares(lambda s: 1 / log_quotient(s)),
            0,
            most,
            list(range(1, top + 1)),
            False,
        )
    # log((1 + s) / (1 - s)) = 2 s + 2/3 s^3 + s^5 q(s^2)
    fit(
        "kLogLong",
        squares(lambda s: (log_quotient(s) - 2 - 2 * s**2 / 3) / s**4),
        squares(lambda s: s**4 / log_quotient(s)),
        0,
        most,
        list(range(9)),
        False,
    )
    quarter = (mp.pi / 4 * mpf("1.011")) ** 2
    # sin(r) = r + r^3 q(r^2), cos(r) = 1 - r^2 / 2 + r^4 q(r^2), r <= pi / 4
    for end, top, single in (("32", 2, True), ("64", 5, False), ("Mid", 3, False)):
        fit(
            "kSin" + end,
            squares(lambda x: (mp.sin(x) - x) / x**3),
            squares(lambda x: x**3 / mp.sin(x)),
            0,
            quarter,
            list(range(top + 1)),
            single,
        )
        fit(
            "kCos" + end,
            squares(lambda x: (mp.cos(x) - 1 + x * x / 2) / x**4),
            squares(lambda x: x**4 / mp.cos(x)),
            0,
            quarter,
            list(range(top + 1)),
            single,
        )
    # asin(x) = x + x^3 q(x^2), x <= 1/2
    for name, top, single in (("kAsin32", 4, True), ("kAsin64", 11, False)):
        fit(
            name,
            squares(lambda x: (mp.asin(x) - x) / x**3),
            squares(lambda x: x**3 / mp.asin(x)),
            0,
            mpf("0.2501"),
            list(range(top + 1)),
            single,
        )
    # atan(x) = x + x^3 q(x^2), x <= 1
    for name, top, single in (("kAtan32", 8, True), ("kAtan64", 19, False)):
        fit(
            name,
            squares(lambda x: (mp.atan(x) - x) / x**3),
            squares(lambda x: x**3 / mp.atan(x)),
            0,
            1,
            list(range(top + 1)),
            single,
        )

    # -log(erfc(x)) = x + x q(x). Only the error of erf(x) = 1 - exp(-x - x q(x)) matters.
    fit(
        "kErf32",
        lambda x: -mp.log(mp.erfc(x)) / x - 1,
        lambda x: x * mp.erfc(x) / mp.erf(x),
        0,
        3.95,
        list(range(9)),
        True,
    )
    # erf(x) = x + x q(x^2), x <= 1
    fit(
        "kErf64",
        squares(lambda x: mp.erf(x) / x - 1),
        squares(lambda x: x / mp.erf(x)),
        0,
        1.001,
        list(range(14)),
        False,
    )

    # erfc(x) = exp(-x^2) t q(v), t = k / (k + x), v = 2 t - 1, x <= 28
    for name, k, top in (("kErfc64", 4, 23), ("kErfcMid", 3, 13)):

        def scaled(v: mpf, k: int = k) -> mpf:
            t = (v + 1) / 2
            x = (1 / t - 1) * k
            return mp.exp(x * x) * mp.erfc(x) / t

        low = 2 * mpf(k) / (k + 28) - 1
        fit(name, scaled, lambda v, scaled=scaled: 1 / scaled(v), low, 1, list(range(top + 1)), False, k == 4)
    # lgamma(1 + w) = w q(w), -0.5 <= w <= 0.4; lgamma(2 + w) = w q(w), -0.6 <= w <= 0.5
    for end, first, second in (("64", 26, 19), ("Mid", 15, 11)):
        for name, n, low, high, top in (
            ("kLgamma1_", 1, -0.5002, 0.4002, first),
            ("kLgamma2_", 2, -0.6002, 0.5002, second),
        ):
            fit(
                name + end,
                lambda w, n=n: mp.loggamma(n + w) / w,
                lambda w, n=n: abs(w / mp.loggamma(n + w)),
                low,
                high,
                list(range(top + 1)),
                False,
            )

    # lgamma(x) = (x - 1/2) (log(x) - 1) + log(2 pi) / 2 - 1/2 + q(1 / x^2) / x, x >= 8
    def stirling(z: mpf) -> mpf:
        x = 1 / mp.sqrt(z)
        return (mp.loggamma(x) - (x - mpf(1) / 2) * (mp.log(x) - 1) - mp.log(2 * mp.pi) / 2 + mpf(1) / 2) * x

    fit("kStirling", stirling, lambda z: mpf(1), 1 / mpf(10) ** 5, mpf("0.01563"), list(range(6)), False)
    # sin(pi r) = r q(r^2), |r| <= 1/2
    fit(
        "kSinPi",
        squares(lambda r: mp.sinpi(r) / r),
        squares(lambda r: r / mp.sinpi(r)),
        0,
        0.2501,
        list(range(9)),
        False,
    )


def pieces(value: mpf, first: int, bits: list[int]) -> list[mpf]:
    """Returns consecutive bits of a number below 1 as numbers, from bit `first` after the binary point."""
    result = []
    at = first
    for count in bits:
        part = mp.floor(value * mpf(2) ** (at + count)) - mp.floor(value * mpf(2) ** at) * mpf(2) ** count
        result.append(part / mpf(2) ** (at + count))
        at += count
    return result


def reductions() -> None:
    mp.prec = 2000
    turn = 1 / (2 * mp.pi)
    print("// Bits 23 to 191 of 1 / (2 pi).")
    show_plain("kInvTwoPi32", pieces(turn, 23, [29, 29, 29, 29, 53]))
    words = []
    for i in range(24):
        words.append(pieces(turn, 50 * i, [50])[0] * mpf(2) ** (50 * i))
    print("// 50 bits each of 1 / (2 pi), as numbers below 1.")
    show_plain("kInvTwoPi64", words)


def show_plain(name: str, values: list[mpf]) -> None:
    text = ", ".join(float(v).hex() for v in values)
    print(f"inline constexpr double {name}[] = {{{text}}};")


if __name__ == "__main__":
    print("#pragma once\n")
    print("// Written by codegen/loop/tools/fit.py. The comment above a table is the relative error of its polynomial")
    print("// (fit.py has the exceptions). Suffixes: 32 for f32, 64 for f64, Mid for f32 functions computed in f64.")
    print("namespace torch_remote::codegen::tables {\n\n// clang-format off")
    tables()
    reductions()
    print("// clang-format on\n\n}  // namespace torch_remote::codegen::tables")
