"""tools/cuda_sass without nvcc: instructions on random operands; a block with a barrier, a branch, a race; the
estimate. `make check-cuda` itself checks real kernels, by comparison with C++.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch

np = pytest.importorskip("numpy")
from cuda_sass import block, cards, cases, operations, report  # noqa: E402

WORD, LANES = 2**32, 64


def code(text: str) -> list[Any]:
    """Parses lines "@P0 OPCODE a, b, c"."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        predicate, _, rest = line[1:].partition(" ") if line.startswith("@") else ("", "", line)
        opcode, _, operands = rest.partition(" ")
        listed = tuple(operand.strip() for operand in operands.split(",") if operand.strip())
        found.append(operations.Instruction(opcode, listed, predicate))
    return found


def kernel(text: str, shared: int = 0) -> Any:
    return block.Kernel("k", "K", code(text), {}, 32, shared, 0x210, {0: bytes(0x220)})


class Registers:
    """The state that an instruction operates on."""

    def __init__(self) -> None:
        rng = random.Random(0)
        edges = [0, 1, 2, 31, 32, 33, 63, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
        words = [rng.choice(edges) if rng.random() < 0.3 else rng.getrandbits(32) for _ in range(32 * LANES)]
        self.R = np.zeros((256, LANES), np.uint32)
        self.R[:32] = np.array(words, np.uint32).reshape(32, LANES)
        self.U = self.R.copy()
        self.P = np.array([[rng.random() < 0.5 for _ in range(LANES)] for _ in range(8)])
        self.P[7] = True
        self.UP = self.P.copy()
        self.mask = self.whole_warps = np.ones(LANES, bool)

    def word(self, number: int, lane: int) -> int:
        return int(self.R[number, lane])

    def wide(self, number: int, lane: int) -> int:
        return self.word(number, lane) | self.word(number + 1, lane) << 32


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def lut(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1) << k for k in range(32))


# Instruction -> the result's words from operands a, b, c (R4, R6, R8), 64 bits of c (w) and a carry (P1).
RESULTS: dict[str, Callable[[int, int, int, int, int], int]] = {
    "IADD3 R0, R4, -R6, R8": lambda a, b, c, w, p: a - b + c,
    "IADD3.X R0, ~R4, R6, RZ, P1, !PT": lambda a, b, c, w, p: ~a + b + p,
    "IMAD R0, R4, R6, R8": lambda a, b, c, w, p: a * b + c,
    "IMAD.X R0, R4, 0x1, ~R6, P1": lambda a, b, c, w, p: a + ~b + p,
    "IMAD.HI.U32 R0, R4, R6, R8": lambda a, b, c, w, p: (a * b + w) >> 32,
    "LEA R0, R4, R6, 0x3": lambda a, b, c, w, p: (a << 3) + b,
    "LEA.HI R0, R4, R6, RZ, 0x1": lambda a, b, c, w, p: (a >> 31) + b,
    "LEA.HI.X R0, R4, R6, R8, 0x3, P1": lambda a, b, c, w, p: ((a | c << 32) << 3 >> 32) + b + p,
    "LEA.HI.X.SX32 R0, R4, R6, 0x1, P1": lambda a, b, c, w, p: (signed(a) << 1 >> 32) + b + p,
    "SHF.L.U32 R0, R4, 0x7, RZ": lambda a, b, c, w, p: a << 7,
    "SHF.L.U32.HI R0, R4, 0x10, R6": lambda a, b, c, w, p: (a | b << 32) << 16 >> 32,
    "SHF.L.U64.HI R0, R4, 0x23, R6": lambda a, b, c, w, p: ((a | b << 32) << 35) >> 32,
    "SHF.L.W.U32.HI R0, R4, 0x28, R4": lambda a, b, c, w, p: a << 8 | a >> 24,
    "SHF.R.S32.HI R0, RZ, 0x1f, R4": lambda a, b, c, w, p: signed(a) >> 31,
    "SHF.R.U32.HI R0, RZ, 0x3, R4": lambda a, b, c, w, p: a >> 3,
    "SHF.R.U64 R0, R4, 0xd, R6": lambda a, b, c, w, p: (a | b << 32) >> 13,
    "SHF.R.S64 R0, R4, 0x28, R6": lambda a, b, c, w, p: (a | signed(b) << 32) >> 40,
    "LOP3.LUT R0, R4, R6, R8, 0x96, !PT": lambda a, b, c, w, p: lut(a, b, c, 0x96),
    "LOP3.LUT R0, R4, R6, R8, 0xca, !PT": lambda a, b, c, w, p: lut(a, b, c, 0xCA),
    "LOP3.LUT R0, R4, R6, R8, 0x1e, !PT": lambda a, b, c, w, p: lut(a, b, c, 0x1E),
    "PRMT R0, R4, 0x7604, R6": lambda a, b, c, w, p: b & 0xFFFF0000 | (a & 0xFF) << 8 | b & 0xFF,
    "VIADD R0, R4, 0xfffffffe": lambda a, b, c, w, p: a - 2,
    "VIMNMX R0, R4, R6, PT": lambda a, b, c, w, p: min(signed(a), signed(b)),
    "VIADDMNMX R0, R4, R6, R8, !PT": lambda a, b, c, w, p: max(signed(a + b), signed(c)),
    "IABS R0, R4": lambda a, b, c, w, p: abs(signed(a)),
    "SEL R0, R4, R6, P1": lambda a, b, c, w, p: a if p else b,
    "@P1 MOV R0, R4": lambda a, b, c, w, p: a if p else -1,
}


@pytest.mark.parametrize("line", RESULTS)
def test_integer_instruction(line: str) -> None:
    state = Registers()
    (instruction,) = code(line)
    state.R[0] = 0xFFFFFFFF
    if instruction.predicate:
        state.mask = operations.predicate(instruction.predicate)(state)
    operations.operation(instruction)(state)
    for lane in range(LANES):
        given = [state.word(n, lane) for n in (4, 6, 8)]
        want = RESULTS[line](*given, state.wide(8, lane), int(state.P[1, lane]))
        assert state.word(0, lane) == want % WORD, (lane, given)


def test_carries_and_wide_products() -> None:
    state = Registers()
    for line in ("IADD3 R0, P2, R4, -R6, RZ", "IMAD.WIDE.U32 R10, P3, R4, R6, R8", "IMAD.WIDE R12, R4, R6, R8"):
        operations.operation(code(line)[0])(state)
    operations.operation(code("IADD.64 R14, P4, R4, -R8")[0])(state)
    for lane in range(LANES):
        a, b, w = state.word(4, lane), state.word(6, lane), state.wide(8, lane)
        assert bool(state.P[2, lane]) == (a >= b)  # no borrow
        assert state.wide(10, lane) == (a * b + w) % 2**64 and bool(state.P[3, lane]) == (a * b + w >= 2**64)
        assert state.wide(12, lane) == (signed(a) * signed(b) + w) % 2**64
        assert state.wide(14, lane) == (state.wide(4, lane) - w) % 2**64
        assert bool(state.P[4, lane]) == (state.wide(4, lane) >= w)


@pytest.mark.parametrize("relation", ["LT", "LE", "GT", "GE", "EQ", "NE"])
@pytest.mark.parametrize("kind", ["", ".U32"])
def test_64_bit_comparison_in_two_steps(relation: str, kind: str) -> None:
    state = Registers()
    state.R[7, ::2] = state.R[5, ::2]  # equal upper words
    lower = f"ISETP.{relation}.U32.AND P2, PT, R4, R6, PT"
    for line in (lower, f"ISETP.{relation}{kind}.AND.EX P3, P4, R5, R7, P1, P2"):
        operations.operation(code(line)[0])(state)
    test = {"LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "EQ": "==", "NE": "!="}[relation]
    for lane in range(LANES):
        x, y, given = state.wide(4, lane), state.wide(6, lane), bool(state.P[1, lane])
        holds = eval(f"{x} {test} {y}" if kind else f"{signed(x, 64)} {test} {signed(y, 64)}")
        assert bool(state.P[3, lane]) == (holds and given) and bool(state.P[4, lane]) == (not holds and given)


def test_fused_products_are_rounded_once() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 4000)).astype(np.float32)
    z = (-(x.astype(np.float64) * y) * (1 + 2.0**-24 * rng.integers(-2, 3, 4000))).astype(np.float32)
    z[::3] = rng.standard_normal(len(z[::3])) * 2.0 ** rng.integers(-30, 30, len(z[::3]))
    got = operations._fma32(x, y, z)
    for a, b, c, d in zip(x.tolist(), y.tolist(), z.tolist(), got, strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        near = [np.nextafter(d, np.float32(w)) for w in (-np.inf, np.inf)]
        assert all(abs(Fraction(float(d)) - exact) <= abs(Fraction(float(n)) - exact) for n in near)


def test_unknown_instruction_is_rejected() -> None:
    with pytest.raises(operations.Unknown, match="HMMA"):
        operations.operation(code("HMMA.16816.F32 R0, R4, R8, R12")[0])


# Each thread stores its number in shared memory and reads its neighbour's.
EXCHANGE = """
    S2R R0, SR_TID.X
    LDC.64 R4, c[0x0][0x210]
    IMAD.SHL.U32 R2, R0, 0x4, RZ
    STS [R2+0x400], R0
    BAR.SYNC 0x0
    LOP3.LUT R3, R2, 0x4, RZ, 0x3c, !PT
    LDS R6, [R3+0x400]
    ISETP.GE.U32.AND P0, PT, R0, 0x21, PT
    BSSY B0, 0xc0
    @P0 BRA 0xb0
    VIADD R6, R6, 0x64
    BSYNC B0
    IMAD.WIDE.U32 R4, R0, 0x4, R4
    STG.E desc[UR4][R4.64], R6
    EXIT
"""


def exchange(drop: int | None = None) -> tuple[Any, Any, Any]:
    k = kernel(EXCHANGE, shared=4 * LANES)
    out, counts = np.full(LANES, 7, np.uint32), block.Counts.of(k)
    running = block.Block(block.Program(k, 90), out.ctypes.data.to_bytes(8, "little"), 0, LANES, counts, drop)
    running.run()
    return out, counts, running.races


def test_block() -> None:
    out, counts, races = exchange()
    numbers = np.arange(LANES)
    assert (out == (numbers ^ 1) + 100 * (numbers < 33)).all() and not races
    issued = counts.issued.tolist()
    # Two warps; the second diverges, so its threads reach the code after the branch in two groups.
    assert issued[:10] == [2] * 10 and issued[10:12] == [2, 3] and issued[12:] == [2, 2, 2]
    assert counts.by_phase.sum(1).tolist() == [10, 21]


def test_race() -> None:
    assert any("LDS" in race for race in exchange(drop=0)[2])


def test_barrier_that_some_threads_never_reach() -> None:
    """The first thread waits there for all others, and they wait for it."""
    k = kernel("""
        S2R R0, SR_TID.X
        ISETP.EQ.U32.AND P0, PT, R0, RZ, PT
        BSSY B0, 0x50
        @P0 BRA 0x60
        NOP
        BSYNC B0
        BAR.SYNC 0x0
        EXIT
    """)
    with pytest.raises(block.Stuck, match="63 threads never come to a barrier"):
        block.Block(block.Program(k, 90), b"", 0, LANES, block.Counts.of(k)).run()


def test_invalid_address() -> None:
    k = kernel("CS2R R4, SRZ\nLDG.E R0, desc[UR4][R4.64+0x20]\nEXIT")
    with pytest.raises(block.BadAccess, match=r"LDG.E R0.* 0x20 to 0x20 is no memory"):
        block.Block(block.Program(k, 90), b"", 0, LANES, block.Counts.of(k)).run()


def work(**given: Any) -> Any:
    usual = {"blocks": 132 * 8 * 10, "threads": 256, "registers": 32, "shared": 0, "issued": 0.0, "by_pipe": {},
             "in_flight": 0.0, "longest": 0.0, "far": 0.0, "near": 0.0, "read": 0.0}  # fmt: skip
    return cards.Work(**usual | given)


def test_estimate() -> None:
    """Calculated for an H200: 132 multiprocessors, 4.8 TB/s of which a copy reaches 90 %."""
    (h200,) = (card for card in cards.CARDS if card.name == "H200")
    tick = h200.clock * 1e6  # clocks per millisecond
    assert work().resident(h200) == 8 and work().waves(h200) == 10
    assert work(registers=128).resident(h200) == 2 and work(shared=100 << 10).resident(h200) == 2
    memory = cards.predict(work(), 4.32e9, h200)
    assert memory.by == "memory" and memory.seconds == pytest.approx(1e-3)
    issue = cards.predict(work(issued=132 * 4 * tick), 1e6, h200)
    assert issue.by == "issue" and issue.seconds == pytest.approx(1e-3)
    pipe = cards.predict(work(by_pipe={"fp64": 132 * 2 * tick}), 1e6, h200)
    assert pipe.by == "pipe fp64" and pipe.seconds == pytest.approx(1e-3)
    late = cards.predict(work(in_flight=8.0, read=1e9), 1e9, h200)
    full = 132 * 2048 * 8 / 700e-9  # bytes per second
    assert late.by == "latency" and late.seconds == pytest.approx(1e9 / full)
    # One and a quarter waves, with 32 bytes in flight: its last quarter has loads for 0.715 of the memory bandwidth.
    tail = cards.predict(work(blocks=132 * 8 * 5 // 4, in_flight=32.0, read=1e9), 4.32e9, h200)
    share = 0.25 * 4 * full / 4.32e12
    assert tail.by == "memory" and tail.seconds == pytest.approx(1e-3 * (1 + 0.25 / share) / 1.25)
    alone = cards.predict(work(blocks=1, longest=tick / 1e3, far=3.0), 1e3, h200)
    assert alone.by == "the longest warp" and alone.seconds == pytest.approx(5e-6 + 2.1e-6)


def test_two_threads_write_one_word() -> None:
    k = kernel("S2R R0, SR_TID.X\nSTS [0x400], R0\nEXIT", shared=16)
    running = block.Block(block.Program(k, 90), b"", 0, LANES, block.Counts.of(k))
    running.run()
    assert running.races


@pytest.mark.parametrize("writer", [0, 7, LANES - 1])
def test_all_threads_read_and_one_writes_a_word(writer: int) -> None:
    test = f"ISETP.EQ.AND P0, PT, R0, {writer:#x}, PT"
    k = kernel(f"S2R R0, SR_TID.X\nLDS R1, [0x400]\n{test}\n@P0 STS [0x400], R0\nEXIT", 16)
    running = block.Block(block.Program(k, 90), b"", 0, LANES, block.Counts.of(k))
    running.run()
    assert any("STS" in race for race in running.races)


def test_barrier_under_a_condition() -> None:
    k = kernel("S2R R0, SR_TID.X\nISETP.EQ.AND P0, PT, R0, RZ, PT\n@P0 BAR.SYNC 0x0\nEXIT")
    with pytest.raises(operations.Unknown, match="which not all threads pass"):
        block.Block(block.Program(k, 90), b"", 0, LANES, block.Counts.of(k)).run()


def test_waits_for_loads() -> None:
    """Two loads, the second later: two waits, for 8 and 4 bytes, after 3 and 1 instructions."""
    values = np.arange(64, dtype=np.uint32)
    k = kernel("""
        LDC.64 R2, c[0x0][0x210]
        LDG.E.64 R4, desc[UR4][R2.64]
        MOV R8, 0x1
        LDG.E R6, desc[UR4][R2.64+0x80]
        IADD3 R9, R5, 0x1, RZ
        IADD3 R9, R6, 0x1, RZ
        EXIT
    """)
    counts = block.Counts.of(k)
    block.Block(block.Program(k, 90), values.ctypes.data.to_bytes(8, "little"), 0, LANES, counts).run()
    assert counts.in_flight == [12, 4] and counts.ahead == [3, 2] and counts.far == [True, True] and counts.read == 12
    assert counts.apart == [True, False]  # the second was already in flight


def test_registers_of_a_16_byte_load() -> None:
    (load,) = code("LDG.E.128 R20, desc[UR8][R16.64]")
    assert block._registers(load) == {16, 17, 20, 21, 22, 23}
    (wide,) = code("IMAD.WIDE.U32 R4, R0, R9, R6")
    assert block._registers(wide) == {0, 4, 5, 6, 7, 9}


@pytest.mark.parametrize("how, bound, said", [("ANY", 1, True), ("ANY", 0, False), ("ALL", 9, True), ("ALL", 3, False)])
def test_warp_vote(how: str, bound: int, said: bool) -> None:
    """Whether any or all of threads 0 to 3 are below the bound; the second warp does not vote."""
    k = kernel(f"""
        S2R R0, SR_TID.X
        ISETP.LT.U32.AND P1, PT, R0, {bound:#x}, PT
        LOP3.LUT R1, R0, 0xfc, RZ, 0xc0, !PT
        ISETP.EQ.U32.AND P2, PT, R1, RZ, PT
        @P2 VOTEU.{how} UP0, P1
        EXIT
    """)
    running = block.Block(block.Program(k, 90), b"", 0, LANES, block.Counts.of(k))
    running.UP[0] = ~running.UP[0] if not said else running.UP[0]
    running.run()
    assert (running.UP[0][:32] == said).all() and (running.UP[0][32:] != said).all()


@pytest.mark.parametrize("stride, sectors", [(4, 1), (8, 2), (32, 8), (256, 8)])
def test_sectors(stride: int, sectors: int) -> None:
    """A word every `stride` bytes; the same ones loaded twice, which are counted once."""
    values = np.arange(LANES * 64 + 8, dtype=np.uint32)
    k = kernel(f"""
        S2R R0, SR_TID.X
        LDC.64 R4, c[0x0][0x210]
        IMAD.WIDE.U32 R4, R0, {stride:#x}, R4
        LDG.E R6, desc[UR4][R4.64]
        STG.E desc[UR4][R4.64], R6
        EXIT
    """)
    counts, first = block.Counts.of(k), values.ctypes.data + -values.ctypes.data % block.SECTOR
    block.Block(block.Program(k, 90), first.to_bytes(8, "little"), 0, LANES, counts).run()
    assert counts.asked == 4 * LANES and counts.touched == sectors * counts.asked
    predicted = cards.predict(work(sectors=float(sectors)), 1e9, cards.CARDS[0]).seconds
    assert predicted == pytest.approx(sectors * cards.predict(work(), 1e9, cards.CARDS[0]).seconds)


def test_budgets_depend_on_architecture_and_dtype() -> None:
    limits = {"instructions": (60.0, 40.0), "ahead": (50.0, 50.0)}
    case = cases.Case("a case", cases.table, budgets=limits)

    def missed(dtype: Any, instructions: float, ahead: float, architecture: int = 90) -> list[str]:
        figures = SimpleNamespace(values={"instructions": instructions, "ahead": ahead}, work=work())
        row = report.Row(case, dtype, architecture, figures)
        return [str(one) for one in report.missed(row, [row])]

    assert missed(torch.float32, 60.0, 50.0) == [] == missed(torch.float32, 99.0, 0.0, architecture=80)
    assert missed(torch.float32, 70.0, 50.0) == ["instructions 70.0, budget <= 60"]
    assert missed(torch.bfloat16, 46.0, 50.0) == ["instructions 46.0, budget <= 40"]
    assert missed(torch.float32, 10.0, 49.0) == ["ahead 49.0, budget >= 50"]


@pytest.mark.parametrize("limit, dtype, missed", [
    (5.0, torch.float32, ["fp64 6.0, budget <= 5"]), (6.0, torch.bfloat16, []), (None, torch.float32, []),
    (5.0, torch.float64, []),
])  # fmt: skip
def test_double_precision_budget(limit: float | None, dtype: Any, missed: list[str]) -> None:
    case = cases.Case("a case", cases.table, fp64=limit)
    row = report.Row(case, dtype, 89, SimpleNamespace(values={"fp64": 6.0}, work=work()))
    assert [str(one) for one in report.missed(row, [row])] == missed


@pytest.mark.parametrize(
    "opcode, pipe",
    [("IMAD.WIDE.U32", "imad"), ("LOP3.LUT", "alu"), ("DFMA", "fp64"), ("F2F.F32.F64", "convert64"),
     ("MUFU.RCP", "special"), ("I2F.U32.RP", "special"), ("STG.E.128", "memory"), ("BRA", "other"), ("FFMA", "fma")],
)  # fmt: skip
def test_pipe_of_an_instruction(opcode: str, pipe: str) -> None:
    assert cards.pipe_of(opcode) == pipe
