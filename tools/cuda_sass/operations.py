"""The effect of each instruction on the registers of a block of threads.

`operation(instruction)` returns a function of a `Block` (block.py) that executes the instruction for all threads in
block.mask at once: a register is a row of 32-bit words, one per thread. Control flow and barriers are in block.py.
Only instructions that occur in this library's kernels are implemented; others raise Unknown. The formats are those of
nvdisasm. NVIDIA does not document the meaning of all of them; check.py verifies the interpretation.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Fetch = Callable[[Any], Any]  # block -> value of an operand: one number, or one per thread
Operation = Callable[[Any], None]

u32, i32, u64, i64, f16, f32, f64 = np.uint32, np.int32, np.uint64, np.int64, np.float16, np.float32, np.float64

_libm = ctypes.CDLL("libm.so.6")
_libm.fma.restype = ctypes.c_double
_libm.fma.argtypes = [ctypes.c_double] * 3


@dataclass(frozen=True)
class Instruction:
    opcode: str  # with its modifiers: IMAD.WIDE.U32
    operands: tuple[str, ...]
    predicate: str  # "P0", "!UP1"; empty for none

    @cached_property
    def base(self) -> str:
        return self.opcode.split(".")[0]

    @cached_property
    def modifiers(self) -> frozenset[str]:
        return frozenset(self.opcode.split(".")[1:])

    def __str__(self) -> str:
        return f"{'@' + self.predicate + ' ' if self.predicate else ''}{self.opcode} {', '.join(self.operands)}"


class Unknown(NotImplementedError):
    """Raised for an instruction, or a form of one, that is not implemented."""


def operation(i: Instruction) -> Operation:
    make = _OPERATIONS.get(i.base)
    if make is None:
        raise Unknown(str(i))
    return make(i)


# ----------------------------------------------------------------------------------------------------------- operands

_REGISTER = re.compile(r"([-~]?)(\|?)(U?)R(Z|\d+)(?:\.H([01])_H[01])?(?:\.64)?\|?")
_CONSTANT = re.compile(r"([-~]?)(\|?)c\[0x(\w+)\]\[(?:(U?R\w+)\+?)?(?:0x(\w+))?\]\|?")
_PREDICATE = re.compile(r"(!?)(U?)P([0-6]|T)")
_ADDRESS = re.compile(r"(?:desc\[UR\w+\])?\[(.*)\]")


def is_predicate(text: str) -> bool:
    return _PREDICATE.fullmatch(text) is not None


def predicate(text: str) -> Fetch:
    match = _PREDICATE.fullmatch(text)
    if match is None:
        raise Unknown(f"predicate {text}")
    negated, uniform, index = match.group(1) == "!", match.group(2) == "U", match.group(3)
    number = 7 if index == "T" else int(index)
    if uniform:
        return (lambda b: ~b.UP[number]) if negated else (lambda b: b.UP[number])
    return (lambda b: ~b.P[number]) if negated else (lambda b: b.P[number])


def set_predicate(text: str) -> Callable[[Any, Any], None]:
    match = _PREDICATE.fullmatch(text)
    if match is None:
        raise Unknown(f"predicate {text}")
    if match.group(3) == "T":
        return lambda b, v: None
    number = int(match.group(3))
    if match.group(2):
        return lambda b, v: np.copyto(b.UP[number], v, where=b.whole_warps)
    return lambda b, v: np.copyto(b.P[number], v, where=b.mask)


def register_file(text: str) -> tuple[bool, int]:
    """Whether it is a uniform register, and its number; -1 for the one that is zero."""
    match = _REGISTER.fullmatch(text)
    if match is None:
        raise Unknown(f"register {text}")
    return bool(match.group(3)), -1 if match.group(4) == "Z" else int(match.group(4))


def setter(text: str, words: int = 1) -> Callable[..., None]:
    """A function that writes a register, or `words` consecutive ones."""
    uniform, number = register_file(text)
    if number < 0:
        return lambda b, *v: None
    if uniform:

        def put(b: Any, *v: Any) -> None:
            for k in range(words):
                np.copyto(b.U[number + k], v[k], where=b.whole_warps)

        return put
    if words == 1:
        return lambda b, v: np.copyto(b.R[number], v, where=b.mask)

    def put_all(b: Any, *v: Any) -> None:
        for k in range(words):
            np.copyto(b.R[number + k], v[k], where=b.mask)

    return put_all


def set64(text: str) -> Callable[[Any, Any], None]:
    put = setter(text, 2)

    def both(b: Any, v: Any) -> None:
        bits = v.view(u64) if isinstance(v, np.ndarray) or isinstance(v, np.generic) else u64(v)
        put(b, (bits & u64(0xFFFFFFFF)).astype(u32), (bits >> u64(32)).astype(u32))

    return both


def word(text: str) -> Fetch:
    """A 32-bit integer operand, with its sign or complement applied."""
    sign, get = _bits(text)
    if sign == "-":
        return lambda b: u32(0) - get(b)
    return (lambda b: ~get(b)) if sign == "~" else get


def _bits(text: str) -> tuple[str, Fetch]:
    match = _REGISTER.fullmatch(text)
    if match is not None and not match.group(2):
        uniform, number = register_file(text)
        if number < 0:
            return match.group(1), lambda b: u32(0)
        return match.group(1), (lambda b: b.U[number]) if uniform else (lambda b: b.R[number])
    match = _CONSTANT.fullmatch(text)
    if match is not None and not match.group(2) and match.group(4) is None:
        bank, at = int(match.group(3), 16), int(match.group(5) or "0", 16)
        return match.group(1), lambda b: b.constant(bank, at, u32)
    try:
        value = u32(int(text, 0) & 0xFFFFFFFF)
    except ValueError:
        raise Unknown(f"operand {text}") from None
    return "", lambda b: value


def wide(text: str) -> Fetch:
    """The 64 bits of a register and the next one, of a constant or of a number."""
    match = _REGISTER.fullmatch(text)
    if match is not None:
        uniform, number = register_file(text)
        if number < 0:
            get: Fetch = lambda b: u64(0)  # noqa: E731
        elif uniform:
            get = lambda b: b.U[number].astype(u64) | b.U[number + 1].astype(u64) << u64(32)  # noqa: E731
        else:
            get = lambda b: b.R[number].astype(u64) | b.R[number + 1].astype(u64) << u64(32)  # noqa: E731
        if match.group(1) == "-":
            return lambda b: u64(0) - get(b)
        return (lambda b: ~get(b)) if match.group(1) == "~" else get
    match = _CONSTANT.fullmatch(text)
    if match is not None and not match.group(1) and match.group(4) is None:
        bank, at = int(match.group(3), 16), int(match.group(5) or "0", 16)
        return lambda b: b.constant(bank, at, u64)
    value = u64(int(text, 0) & 0xFFFFFFFFFFFFFFFF)
    return lambda b: value


_NUMBERS = {"+INF": "inf", "INF": "inf", "-INF": "-inf", "+QNAN": "nan", "QNAN": "nan", "-QNAN": "nan"}


def _number(text: str) -> float | None:
    try:
        return float(_NUMBERS.get(text, text))
    except ValueError:
        return None


def _signed(text: str) -> tuple[str, str]:
    """(sign and magnitude bars, the operand without them)."""
    sign = "-" if text.startswith("-") else ""
    text = text.removeprefix("-")
    if text.startswith("|") and text.endswith("|"):
        return sign + "|", text[1:-1]
    return sign, text


def _float(text: str, kind: Any, bits: Callable[[str], Fetch]) -> Fetch:
    """A floating-point operand: a number, or bits with sign and magnitude bars applied."""
    value = _number(text)
    if value is not None:
        number = kind(value)
        return lambda b: number
    sign, plain = _signed(text)
    get = bits(plain)

    def read(b: Any) -> Any:
        found = np.asarray(get(b)).view(kind)
        found = np.abs(found) if "|" in sign else found
        return -found if "-" in sign else found

    return read


def single(text: str) -> Fetch:
    return _float(text, f32, word)


def double(text: str) -> Fetch:
    return _float(text, f64, wide)


def address(text: str) -> tuple[Fetch, bool]:
    """(function that computes the address of a memory operand, whether the address has 64 bits)."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise Unknown(f"address {text}")
    terms: list[Fetch] = []
    is_wide = False
    for term in re.split(r"\+(?!-)|\+(?=-)", match.group(1)):
        factor = re.fullmatch(r"(U?R\w+)\.X(\d+)", term)
        if factor is not None:
            get, by = word(factor.group(1)), u64(int(factor.group(2)))
            terms.append(lambda b, get=get, by=by: np.asarray(get(b)).astype(u64) * by)
        elif term.endswith(".64") or (term.startswith("UR") and is_wide):
            is_wide = True
            terms.append(wide(term.removesuffix(".64")))
        elif re.fullmatch(r"U?R\w+", term):
            get = word(term)
            terms.append(lambda b, get=get: np.asarray(get(b)).astype(u64))
        else:
            value = u64(int(term, 0) & 0xFFFFFFFFFFFFFFFF)
            terms.append(lambda b, value=value: value)
    keep = u64(0xFFFFFFFFFFFFFFFF if is_wide else 0xFFFFFFFF)

    def total(b: Any) -> Any:
        sum_ = terms[0](b)
        for term in terms[1:]:
            sum_ = sum_ + term(b)
        return np.broadcast_to(np.asarray(sum_ & keep), b.mask.shape)

    return total, is_wide


# -------------------------------------------------------------------------------------------------- moves, selections


def _mov(i: Instruction) -> Operation:
    if "64" in i.modifiers:
        put, get = set64(i.operands[0]), wide(i.operands[1])
        return lambda b: put(b, get(b))
    put, get = setter(i.operands[0]), word(i.operands[1])
    return lambda b: put(b, get(b))


def _sel(i: Instruction) -> Operation:
    d, x, y, p = i.operands
    if "64" in i.modifiers:
        put, one, two, which = set64(d), wide(x), wide(y), predicate(p)
    else:
        put, one, two, which = setter(d), word(x), word(y), predicate(p)
    return lambda b: put(b, np.where(which(b), one(b), two(b)))


def _fsel(i: Instruction) -> Operation:
    d, x, y, p = i.operands
    put, one, two, which = setter(d), single(x), single(y), predicate(p)
    return lambda b: put(b, np.where(which(b), one(b), two(b)).view(u32))


def _cs2r(i: Instruction) -> Operation:
    if i.operands[1] != "SRZ":
        raise Unknown(str(i))
    put = setter(i.operands[0], 1 if "32" in i.modifiers else 2)
    zero = u32(0)
    return lambda b: put(b, *(zero,) * (1 if "32" in i.modifiers else 2))


def _s2r(i: Instruction) -> Operation:
    put, name = setter(i.operands[0]), i.operands[1]
    return lambda b: put(b, b.special(name))


def _r2ur(i: Instruction) -> Operation:
    put, get = setter(i.operands[-2]), word(i.operands[-1])
    return lambda b: put(b, b.first_of_warp(get(b)))


def _voteu(i: Instruction) -> Operation:
    """VOTEU: whether the predicate holds for any, or all, of the active threads of a warp."""
    put, get, is_all = set_predicate(i.operands[0]), predicate(i.operands[1]), "ALL" in i.modifiers
    if len(i.operands) != 2 or not i.modifiers & {"ALL", "ANY"}:
        raise Unknown(str(i))

    def run(b: Any) -> None:
        said = (get(b) | ~b.mask) if is_all else (get(b) & b.mask)
        of_warps = said.reshape(-1, 32)
        put(b, np.repeat(of_warps.all(1) if is_all else of_warps.any(1), 32))

    return run


def _p2r(i: Instruction) -> Operation:
    put, get, mask = setter(i.operands[0]), word(i.operands[-2]), u32(int(i.operands[-1], 0))

    def run(b: Any) -> None:
        bits = np.zeros(b.mask.shape, u32)
        for k in range(7):
            bits |= b.P[k].astype(u32) << u32(k)
        put(b, (get(b) & ~mask) | (bits & mask))

    return run


def _r2p(i: Instruction) -> Operation:
    get, mask = word(i.operands[-2]), int(i.operands[-1], 0)
    put = {k: set_predicate(f"P{k}") for k in range(7) if mask >> k & 1}

    def run(b: Any) -> None:
        value = get(b)
        for k, each in put.items():
            each(b, (value >> u32(k) & u32(1)) != 0)

    return run


# ----------------------------------------------------------------------------------------------------------- integers


def _wide_term(text: str) -> Fetch:
    """An addend of a sum with carries, as 64 bits; -x is 2^32 - x."""
    sign, get = _bits(text)
    plain: Fetch = lambda b: np.asarray(get(b)).astype(u64)  # noqa: E731
    if sign == "-":
        return lambda b: u64(1 << 32) - plain(b)
    return (lambda b: plain(b) ^ u64(0xFFFFFFFF)) if sign == "~" else plain


def _leading_predicates(operands: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """(predicate results that follow the first operand, remaining operands)."""
    rest = list(operands)
    found: list[str] = []
    while rest and is_predicate(rest[0]):
        found.append(rest.pop(0))
    return found, rest


def _iadd3(i: Instruction) -> Operation:
    carries, rest = _leading_predicates(i.operands[1:])
    put, terms = setter(i.operands[0]), [_wide_term(text) for text in rest[:3]]
    given = [predicate(text) for text in rest[3:]]
    outs = [set_predicate(text) for text in carries]

    def run(b: Any) -> None:
        total = terms[0](b) + terms[1](b) + terms[2](b)
        for carry in given:
            total = total + carry(b).astype(u64)
        over = total >> u64(32)
        for k, out in enumerate(outs):
            out(b, over > u64(k))
        put(b, total.astype(u32))

    return run


def _iadd64(i: Instruction) -> Operation:
    carries, rest = _leading_predicates(i.operands[1:])
    put, terms = set64(i.operands[0]), rest[: len(rest) - ("X" in i.modifiers)]
    given = predicate(rest[-1]) if "X" in i.modifiers else None
    outs = [set_predicate(text) for text in carries]
    gets = [(wide(text.lstrip("-")), text.startswith("-") and text != "-") for text in terms]
    for text in terms:
        if text.startswith("~"):
            raise Unknown(str(i))

    def run(b: Any) -> None:
        total, over = u64(0), np.zeros(b.mask.shape, u64)
        for get, minus in gets:
            value = np.asarray(get(b))
            if minus:
                over = over + (value == 0)  # 2^64 - 0
                value = u64(0) - value
            before, total = total, total + value
            over = over + (total < before)
        if given is not None:
            before, total = total, total + given(b).astype(u64)
            over = over + (total < before)
        for k, out in enumerate(outs):
            out(b, over > u64(k))
        put(b, total)

    return run


def _viadd(i: Instruction) -> Operation:
    put, one, two = setter(i.operands[0]), word(i.operands[1]), word(i.operands[2])
    return lambda b: put(b, one(b) + two(b))


def _imad(i: Instruction) -> Operation:
    carries, rest = _leading_predicates(i.operands[1:])
    one, two = word(rest[0]), word(rest[1])
    carry = predicate(rest[3]) if "X" in i.modifiers else None
    outs = [set_predicate(text) for text in carries]
    unsigned = "U32" in i.modifiers

    def product(b: Any) -> Any:
        x, y = np.asarray(one(b)), np.asarray(two(b))
        if unsigned:
            return x.astype(u64) * y.astype(u64)
        return (x.view(i32).astype(i64) * y.view(i32).astype(i64)).view(u64)

    if "WIDE" in i.modifiers or "HI" in i.modifiers:
        three = wide(rest[2])
        put = set64(i.operands[0]) if "WIDE" in i.modifiers else setter(i.operands[0])

        def run(b: Any) -> None:
            p = product(b)
            total = np.asarray(p + three(b))
            over = total < p
            if carry is not None:
                total = total + carry(b).astype(u64)
                over = over | (carry(b) & (total == 0))
            for out in outs:
                out(b, over)
            put(b, total if "WIDE" in i.modifiers else (total >> u64(32)).astype(u32))

        return run
    if outs:
        raise Unknown(str(i))
    put, last = setter(i.operands[0]), word(rest[2])
    if carry is None:
        return lambda b: put(b, one(b) * two(b) + last(b))
    return lambda b: put(b, one(b) * two(b) + last(b) + carry(b).astype(u32))


def _iabs(i: Instruction) -> Operation:
    put, get = setter(i.operands[0]), word(i.operands[1])
    return lambda b: put(b, np.abs(np.asarray(get(b)).view(i32)).view(u32))


def _lea(i: Instruction) -> Operation:
    carries, rest = _leading_predicates(i.operands[1:])
    put, outs = setter(i.operands[0]), [set_predicate(text) for text in carries]
    high, extended = "HI" in i.modifiers, "SX32" in i.modifiers
    carry = predicate(rest.pop()) if "X" in i.modifiers else None
    shift = u64(int(rest.pop(), 0))
    one, two = word(rest[0]), _wide_term(rest[1])
    above: Fetch = word(rest[2]) if high and not extended else lambda b: u32(0)

    def run(b: Any) -> None:
        low = np.asarray(one(b))
        if extended:
            value = low.view(i32).astype(i64).view(u64) << shift
        else:
            value = (low.astype(u64) | np.asarray(above(b)).astype(u64) << u64(32)) << shift
        part = value >> u64(32) if high else value & u64(0xFFFFFFFF)
        total = (part & u64(0xFFFFFFFF)) + two(b)
        if carry is not None:
            total = total + carry(b).astype(u64)
        for out in outs:
            out(b, (total >> u64(32)) != 0)
        put(b, np.asarray(total).astype(u32))

    return run


def _shf(i: Instruction) -> Operation:
    d, low_, by_, high_ = i.operands
    put, low, by, high = setter(d), word(low_), word(by_), word(high_)
    left, top, wraps = "L" in i.modifiers, "HI" in i.modifiers, "W" in i.modifiers
    signed = bool(i.modifiers & {"S32", "S64"})
    most = 63 if i.modifiers & {"S64", "U64"} else 32
    all32 = bool(i.modifiers & {"S32", "U32"})

    def run(b: Any) -> None:
        lower, upper = np.asarray(low(b)).astype(u64), np.asarray(high(b))
        n = np.asarray(by(b))
        n = n & u32(31 if all32 else 63) if wraps else np.minimum(n, u32(most))
        n = n.astype(u64)
        if left:
            result = (lower | upper.astype(u64) << u64(32)) << n
        elif signed:
            result = ((upper.view(i32).astype(i64) << i64(32)) | lower.view(i64)) >> n.view(i64)
            result = result.view(u64)
        else:
            result = (lower | upper.astype(u64) << u64(32)) >> n
        if left and not top:
            part = np.where(n > u64(31), u64(0), result) if all32 else result
        else:
            part = result >> u64(32) if top else result
        put(b, np.asarray(part).astype(u32))

    return run


def _lut(number: int) -> Callable[[Any, Any, Any], Any]:
    """The function of three bits whose value at (a, b, c) is bit 4a + 2b + c of the number."""

    def of_two(four: int) -> Callable[[Any, Any], Any]:
        ones = ~u32(0)
        return [
            lambda b, c: u32(0), lambda b, c: ~(b | c), lambda b, c: ~b & c, lambda b, c: ~b,
            lambda b, c: b & ~c, lambda b, c: ~c, lambda b, c: b ^ c, lambda b, c: ~(b & c),
            lambda b, c: b & c, lambda b, c: ~(b ^ c), lambda b, c: c, lambda b, c: ~b | c,
            lambda b, c: b, lambda b, c: b | ~c, lambda b, c: b | c, lambda b, c: ones,
        ][four]  # fmt: skip

    low, high = of_two(number & 15), of_two(number >> 4)
    if number & 15 == number >> 4:
        return lambda a, b, c: low(b, c)
    if number & 15 == 0:
        return lambda a, b, c: a & high(b, c)
    if number >> 4 == 15:
        return lambda a, b, c: a | low(b, c)
    return lambda a, b, c: (a & high(b, c)) | (~a & low(b, c))


def _lop3(i: Instruction) -> Operation:
    outs, rest = _leading_predicates(i.operands)
    put, gets = setter(rest[0]), [word(text) for text in rest[1:4]]
    table = _lut(int(rest[4], 0))
    out, given = set_predicate(outs[0]) if outs else None, predicate(rest[5])

    def run(b: Any) -> None:
        value = table(gets[0](b), gets[1](b), gets[2](b))
        put(b, value)
        if out is not None:
            out(b, (np.asarray(value) != 0) | given(b))

    return run


def _plop3(i: Instruction) -> Operation:
    outs = [set_predicate(text) for text in i.operands[:2]]
    gets = [predicate(text) for text in i.operands[2:5]]
    tables = [_lut(int(text, 0)) for text in i.operands[5:7]]

    def run(b: Any) -> None:
        values = [np.where(get(b), ~u32(0), u32(0)) for get in gets]
        results = [np.broadcast_to(np.asarray(table(*values)) != 0, b.mask.shape) for table in tables]
        for out, result in zip(outs, results, strict=True):
            out(b, result)

    return run


def _prmt(i: Instruction) -> Operation:
    put, low, which, high = setter(i.operands[0]), *(word(text) for text in i.operands[1:4])

    def run(b: Any) -> None:
        both = np.asarray(low(b)).astype(u64) | np.asarray(high(b)).astype(u64) << u64(32)
        select, result = np.asarray(which(b)).astype(u64), u64(0)
        for k in range(4):
            nibble = select >> u64(4 * k) & u64(15)
            byte = both >> (nibble & u64(7)) * u64(8) & u64(0xFF)
            byte = np.where(nibble & u64(8), np.where(byte & u64(0x80), u64(0xFF), u64(0)), byte)
            result = result | byte << u64(8 * k)
        put(b, np.asarray(result).astype(u32))

    return run


def _minimum(i: Instruction) -> Operation:
    """IMNMX, VIMNMX, VIADDMNMX: the minimum if the last predicate holds, otherwise the maximum."""
    operands = [text for text in i.operands if text not in ("PT", "!PT")]
    which = predicate(i.operands[-1])
    if "S64" in i.modifiers or "U64" in i.modifiers:
        which = predicate(i.operands[-2])
        put, one, two = set64(operands[0]), wide(operands[1]), wide(operands[2])
        kind: Any = i64 if "S64" in i.modifiers else u64
    else:
        put, kind = setter(operands[0]), u32 if "U32" in i.modifiers else i32
        one, two = word(operands[-2]), word(operands[-1])
        if i.base == "VIADDMNMX":
            first, second = word(operands[1]), word(operands[2])
            one = lambda b: first(b) + second(b)  # noqa: E731

    def run(b: Any) -> None:
        x, y = np.asarray(one(b)).view(kind), np.asarray(two(b)).view(kind)
        put(b, np.where(which(b), np.minimum(x, y), np.maximum(x, y)).view(u64 if kind in (i64, u64) else u32))

    return run


_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "LT": lambda x, y: x < y,
    "LE": lambda x, y: x <= y,
    "GT": lambda x, y: x > y,
    "GE": lambda x, y: x >= y,
    "EQ": lambda x, y: x == y,
    "NE": lambda x, y: x != y,
}
_JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "AND": lambda x, y: x & y,
    "OR": lambda x, y: x | y,
    "XOR": lambda x, y: x ^ y,
}


def _compare(i: Instruction, compared: Fetch) -> Operation:
    """Sets two predicates: the comparison and its opposite, each combined with a third predicate."""
    (join,) = [_JOINED[m] for m in i.modifiers if m in _JOINED]
    outs = [set_predicate(text) for text in i.operands[:2]]
    given = predicate(i.operands[4])

    def run(b: Any) -> None:
        result, other = compared(b), given(b)
        first = np.broadcast_to(join(result, other), b.mask.shape).copy()
        second = np.broadcast_to(join(~np.asarray(result), other), b.mask.shape)
        outs[1](b, second)
        outs[0](b, first)

    return run


def _isetp(i: Instruction) -> Operation:
    (name,) = [m for m in i.modifiers if m in _COMPARED]
    test = _COMPARED[name]
    if i.modifiers & {"S64", "U64"}:
        one, two, kind = wide(i.operands[2]), wide(i.operands[3]), i64 if "S64" in i.modifiers else u64
    else:
        one, two, kind = word(i.operands[2]), word(i.operands[3]), u32 if "U32" in i.modifiers else i32
    below = predicate(i.operands[5]) if "EX" in i.modifiers else None  # of the lower words

    def compared(b: Any) -> Any:
        x, y = np.asarray(one(b)).view(kind), np.asarray(two(b)).view(kind)
        if below is None:
            return test(x, y)
        if name == "NE":
            return (x != y) | below(b)
        if name == "EQ":
            return (x == y) & below(b)
        return (x < y if name in ("LT", "LE") else x > y) | ((x == y) & below(b))

    return _compare(i, compared)


# ------------------------------------------------------------------------------------------------------------- floats


def _float_compare(i: Instruction) -> Operation:
    (name,) = [m for m in i.modifiers if m.removesuffix("U") in _COMPARED]
    test, unordered = _COMPARED[name.removesuffix("U")], name.endswith("U")
    read = double if i.base == "DSETP" else single
    one, two = read(i.operands[2]), read(i.operands[3])

    def compared(b: Any) -> Any:
        x, y = one(b), two(b)
        nan = np.isnan(x) | np.isnan(y)
        return (test(x, y) | nan) if unordered else (test(x, y) & ~nan)

    return _compare(i, compared)


def _fma32(x: Any, y: Any, z: Any) -> Any:
    """Fused multiply-add with one rounding: the float64 sum is rounded to odd, which avoids a double rounding."""
    p, c = x.astype(f64) * y.astype(f64), z.astype(f64)
    s = np.atleast_1d(p + c)
    t = s - p
    error = (p - (s - t)) + (c - t)
    bits = s.view(u64)
    exact = (error == 0) | ~np.isfinite(error)
    odd = (bits - ((error < 0) != (s < 0)).astype(u64)) | u64(1)
    return np.where(exact, bits, odd).view(f64).astype(f32)


def _singles(function: Callable[..., Any]) -> Callable[[Instruction], Operation]:
    def make(i: Instruction) -> Operation:
        if i.modifiers - {"F32"}:
            raise Unknown(str(i))
        put, gets = setter(i.operands[0]), [single(text) for text in i.operands[1:]]
        return lambda b: put(b, np.asarray(function(*(get(b) for get in gets)), f32).view(u32))

    return make


def _doubles(function: Callable[..., Any]) -> Callable[[Instruction], Operation]:
    def make(i: Instruction) -> Operation:
        if i.modifiers:
            raise Unknown(str(i))
        put, gets = set64(i.operands[0]), [double(text) for text in i.operands[1:]]
        return lambda b: put(b, np.asarray(function(*(get(b) for get in gets)), f64))

    return make


def _fma64(x: Any, y: Any, z: Any) -> Any:
    shaped = np.broadcast_arrays(x, y, z)
    return np.array([_libm.fma(*each) for each in zip(*(a.ravel().tolist() for a in shaped), strict=True)], f64)


def _hadd2(i: Instruction) -> Operation:
    """HADD2.F32 d, -RZ, half: a float16 as a float."""
    match = _REGISTER.fullmatch(i.operands[2])
    if "F32" not in i.modifiers or i.operands[1] != "-RZ" or match is None or match.group(5) is None:
        raise Unknown(str(i))
    put, get = setter(i.operands[0]), word(re.sub(r"\.H\d_H\d", "", i.operands[2]))
    shift = u32(16 * int(match.group(5)))
    return lambda b: put(b, (np.asarray(get(b)) >> shift).astype(np.uint16).view(f16).astype(f32).view(u32))


def _hfma2(i: Instruction) -> Operation:
    """HFMA2 d, -RZ, RZ, high, low: a constant."""
    if i.operands[1:3] != ("-RZ", "RZ"):
        raise Unknown(str(i))
    high, low = (int(f16(float(text)).view(np.uint16)) for text in i.operands[3:5])
    put, value = setter(i.operands[0]), u32(high << 16 | low)
    return lambda b: put(b, value)


def _f2fp(i: Instruction) -> Operation:
    put, high, low = setter(i.operands[0]), single(i.operands[1]), single(i.operands[2])
    to = _bfloat16 if "BF16" in i.modifiers else _float16
    return lambda b: put(b, to(high(b)) << u32(16) | to(low(b)))


def _float16(x: Any) -> Any:
    bits = np.asarray(x, f32).astype(f16).view(np.uint16).astype(u32)
    return np.where(np.isnan(x), u32(0x7FFF), bits)


def _bfloat16(x: Any) -> Any:
    bits = np.asarray(x, f32).view(u32)
    return np.where(np.isnan(x), u32(0x7FFF), (bits + u32(0x7FFF) + (bits >> u32(16) & u32(1))) >> u32(16))


def _mufu(i: Instruction) -> Operation:
    if i.modifiers != {"RCP"}:
        raise Unknown(str(i))
    put, get = setter(i.operands[0]), single(i.operands[1])
    return lambda b: put(b, np.asarray(1.0 / np.asarray(get(b)).astype(f64)).astype(f32).view(u32))


def _i2f(i: Instruction) -> Operation:
    kinds: dict[str, Any] = {"U32": u32, "S32": i32, "U64": u64, "S64": i64}
    source = next((kinds[m] for m in i.modifiers if m in kinds), i32)
    read = wide if source in (u64, i64) else word
    to: Any = f64 if "F64" in i.modifiers else f32
    put = set64(i.operands[0]) if to is f64 else setter(i.operands[0])
    get, up = read(i.operands[1]), "RP" in i.modifiers

    def run(b: Any) -> None:
        value = np.asarray(get(b)).view(source)
        result = np.atleast_1d(value.astype(to))
        if up:
            result = np.where(result.astype(np.longdouble) < value, np.nextafter(result, to(np.inf)), result)
        put(b, result.view(u64) if to is f64 else result.view(u32))

    return run


def _f2i(i: Instruction) -> Operation:
    kinds: dict[str, Any] = {"U32": u32, "S32": i32, "U64": u64, "S64": i64}
    to = next((kinds[m] for m in i.modifiers if m in kinds), i32)
    if "TRUNC" not in i.modifiers:
        raise Unknown(str(i))
    get = double(i.operands[1]) if "F64" in i.modifiers else single(i.operands[1])
    put = set64(i.operands[0]) if to in (u64, i64) else setter(i.operands[0])

    def run(b: Any) -> None:
        info = np.iinfo(to)
        value = np.trunc(np.asarray(get(b)).astype(np.longdouble))
        whole = np.where(np.isnan(value), 0, np.clip(value, np.longdouble(info.min), np.longdouble(info.max)))
        whole = np.atleast_1d(whole)
        result = np.array([int(v) for v in whole.tolist()] if to is u64 else whole, dtype=to)
        put(b, result.view(u64) if to in (u64, i64) else result.view(u32))

    return run


def _f2f(i: Instruction) -> Operation:
    if "F32.F64" in i.opcode:
        put, get = setter(i.operands[0]), double(i.operands[1])
        return lambda b: put(b, np.asarray(get(b)).astype(f32).view(u32))
    if "F64.F32" in i.opcode:
        put, get = set64(i.operands[0]), single(i.operands[1])
        return lambda b: put(b, np.asarray(get(b)).astype(f64))
    raise Unknown(str(i))


# ------------------------------------------------------------------------------------------------------------- memory

_SIZES: dict[str, Any] = {"U8": np.uint8, "S8": np.int8, "U16": np.uint16, "S16": np.int16}


def _element(i: Instruction) -> tuple[Any, int]:
    """(type, number) of the elements that a thread loads or stores."""
    for name, kind in _SIZES.items():
        if name in i.modifiers:
            return kind, 1
    return u32, 4 if "128" in i.modifiers else 2 if "64" in i.modifiers else 1


def bytes_of(i: Instruction) -> int:
    kind, count = _element(i)
    return int(np.dtype(kind).itemsize) * count


def _load(i: Instruction) -> Operation:
    kind, count = _element(i)
    put, at = setter(i.operands[0], count), address(i.operands[1])[0]
    space = {"LDG": "global", "LDS": "shared", "LD": "generic"}[i.base]

    def run(b: Any) -> None:
        values = b.read(space, at(b), kind, count)
        put(b, *(v if kind is u32 else v.astype(i32).view(u32) if kind in (np.int8, np.int16) else v for v in values))

    return run


def _store(i: Instruction) -> Operation:
    kind, count = _element(i)
    at = address(i.operands[0])[0]
    _, number = register_file(i.operands[1])
    space = {"STG": "global", "STS": "shared", "ST": "generic"}[i.base]

    def run(b: Any) -> None:
        zero = np.zeros(b.mask.shape, u32)
        b.write(space, at(b), kind, [zero if number < 0 else b.R[number + k] for k in range(count)])

    return run


def _load_constant(i: Instruction) -> Operation:
    kind, count = _element(i)
    match = _CONSTANT.fullmatch(i.operands[1])
    if match is None:
        raise Unknown(str(i))
    bank, at, put = int(match.group(3), 16), int(match.group(5) or "0", 16), setter(i.operands[0], count)
    size = np.dtype(kind).itemsize
    index = word(match.group(4)) if match.group(4) else None

    def run(b: Any) -> None:
        if index is None:
            put(b, *(u32(b.constant(bank, at + k * size, kind)) for k in range(count)))
            return
        where = np.broadcast_to(np.asarray(index(b)), b.mask.shape).astype(i64) + at
        put(b, *b.constants(bank, where, kind, count))

    return run


_OPERATIONS: dict[str, Callable[[Instruction], Operation]] = {
    "MOV": _mov, "UMOV": _mov, "SEL": _sel, "USEL": _sel, "FSEL": _fsel, "CS2R": _cs2r, "S2R": _s2r, "S2UR": _s2r,
    "R2UR": _r2ur, "VOTEU": _voteu, "P2R": _p2r, "R2P": _r2p,
    "IADD3": _iadd3, "UIADD3": _iadd3, "IADD": _iadd64, "VIADD": _viadd, "IMAD": _imad, "UIMAD": _imad, "IABS": _iabs,
    "LEA": _lea, "ULEA": _lea, "SHF": _shf, "USHF": _shf, "LOP3": _lop3, "ULOP3": _lop3, "PLOP3": _plop3,
    "UPLOP3": _plop3, "PRMT": _prmt, "UPRMT": _prmt, "IMNMX": _minimum, "VIMNMX": _minimum, "VIADDMNMX": _minimum,
    "ISETP": _isetp, "UISETP": _isetp,
    "FSETP": _float_compare, "DSETP": _float_compare,
    "FADD": _singles(lambda x, y: x + y), "FMUL": _singles(lambda x, y: x * y), "FFMA": _singles(_fma32),
    "DADD": _doubles(lambda x, y: x + y), "DMUL": _doubles(lambda x, y: x * y), "DFMA": _doubles(_fma64),
    "HADD2": _hadd2, "HFMA2": _hfma2, "F2FP": _f2fp, "MUFU": _mufu,
    "I2F": _i2f, "I2FP": _i2f, "UI2F": _i2f, "F2I": _f2i, "F2F": _f2f,
    "LDG": _load, "LDS": _load, "LD": _load, "STG": _store, "STS": _store, "ST": _store,
    "LDC": _load_constant, "ULDC": _load_constant, "LDCU": _load_constant,
    "NOP": lambda i: lambda b: None,
}  # fmt: skip
