"""Executes a kernel's machine code for one block of threads, instruction by instruction, and counts what is issued.

Threads at the same instruction execute it together, as rows of NumPy arrays. An instruction counts once per warp,
however many of its threads are active, and twice if a branch has made them diverge. Device memory is the memory of this
process. Shared memory is initialized with NaN. Accesses of two threads to the same shared memory, one of them a write,
without a barrier between them are reported as a race.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .operations import Instruction, Operation, Unknown, bytes_of, operation, predicate, register_file, word

WARP = 32
SECTOR = 32  # bytes of a sector, the unit of access to device memory
WIDTH = 16  # bytes of an instruction
_POISON = 0xFF  # NaN in every type
_WINDOW = 0x7EAD0000  # the upper half of generic addresses of shared memory
_RESERVED = 0x400  # bytes of shared memory before a block's own, from Hopper on
_FIRST = 16  # the first byte of the view of all memory


@dataclass
class Kernel:
    symbol: str
    name: str  # demangled: the C++ type of the kernel's functor
    code: list[Instruction]
    entries: dict[str, int]  # of the functions within the code: the address
    registers: int  # of a thread
    shared: int  # bytes of a block
    parameters: int  # where they begin in constant bank 0
    banks: dict[int, bytes]
    keeps: list[object] = field(default_factory=list, repr=False)  # keeps alive the memory that the banks point to


class Stuck(RuntimeError):
    """Raised for a deadlock: threads wait at a barrier that others never reach."""


class BadAccess(RuntimeError):
    """Raised for an access to an unmapped or misaligned address."""


@dataclass
class Counts:
    """Statistics of some blocks: how often each instruction was issued by a warp, and the behaviour of loads."""

    by_phase: np.ndarray  # (barriers passed, instruction)
    blocks: int = 0
    longest: int = 0  # the largest number of instructions executed by one thread of a block
    # One entry for each time that a block's first thread waits for a load from device memory:
    in_flight: list[int] = field(default_factory=list)  # bytes requested and not yet arrived
    ahead: list[int] = field(default_factory=list)  # instructions since the load that it waits for
    far: list[bool] = field(default_factory=list)  # whether the load misses the L1 cache
    apart: list[bool] = field(default_factory=list)  # whether it was issued after the previous wait: one more latency
    read: int = 0  # bytes loaded by the first threads
    asked: int = 0  # bytes of device memory that a block loads and stores
    touched: int = 0  # bytes of the sectors that contain them

    @classmethod
    def of(cls, kernel: Kernel) -> Counts:
        return cls(np.zeros((1 + sum(i.base == "BAR" for i in kernel.code), len(kernel.code)), np.int64))

    @property
    def issued(self) -> np.ndarray:
        """How often each instruction was issued."""
        return self.by_phase.sum(0)


class _Split:
    """The threads that are at the same instruction."""

    __slots__ = ("at", "mask", "warps", "whole_warps")

    def __init__(self, at: int, mask: np.ndarray):
        self.at, self.mask = at, mask
        self.whole_warps = _warps_of(mask)
        self.warps = int(np.count_nonzero(self.whole_warps)) // WARP


def _warps_of(mask: np.ndarray) -> np.ndarray:
    """All threads of the warps with a thread in the mask; a uniform register belongs to a warp."""
    return np.repeat(mask.reshape(-1, WARP).any(1), WARP)


class _Meeting:
    """A reconvergence point (BSSY): its threads continue when all have reached it (BSYNC), exited, or left (BREAK)."""

    def __init__(self, expected: np.ndarray):
        self.expected, self.came, self.at = expected, np.zeros_like(expected), -1


class Program:
    """A kernel's code, decoded for execution."""

    def __init__(self, kernel: Kernel, architecture: int):
        self.kernel, self.architecture = kernel, architecture
        self.operations: list[Operation | Unknown] = [self._operation(i) for i in kernel.code]
        self.predicates = [predicate(i.predicate) if i.predicate else None for i in kernel.code]
        self.touched = [_registers(i) for i in kernel.code]

    def _operation(self, i: Instruction) -> Operation | Unknown:
        if i.base in _CONTROL:
            return lambda b: None
        try:
            return operation(i)
        except Unknown as unknown:  # raised only if it is executed: a call executes a part of the code only
            return unknown

    def target(self, i: Instruction) -> int:
        text = i.operands[-1]
        return (int(text, 16) if text.startswith("0x") else self.kernel.entries[text]) // WIDTH


_PAIRS = frozenset(("64", "WIDE", "F64", "S64", "U64"))


def _registers(i: Instruction) -> frozenset[int]:
    """The registers that an instruction uses, including those of 64- and 128-bit operands and of addresses."""
    words = 4 if "128" in i.modifiers else 2 if i.base[0] == "D" or i.modifiers & _PAIRS else 1
    found: set[int] = set()
    for n, text in enumerate(i.operands):
        is_short = "[" in text or ("WIDE" in i.modifiers and n in (1, 2))
        for register, pair in re.findall(r"(?<!U)R(\d+)(\.64)?", text):
            found.update(range(int(register), int(register) + (2 if pair else 1 if is_short else words)))
    return frozenset(found)


class Block:
    """One block, its registers and its memory. `run` executes it."""

    def __init__(
        self, program: Program, body: bytes, index: int, threads: int, counts: Counts, drop_barrier: int | None = None
    ):
        """drop_barrier: index of a barrier of the code to ignore, to test that its absence is detected."""
        kernel = program.kernel
        self.program, self.index, self.threads, self.counts = program, index, threads, counts
        self.lanes = -(-threads // WARP) * WARP
        self.R = np.full((256, self.lanes), 0x7FBADBAD, np.uint32)
        self.U = np.full((256, self.lanes), 0x7FBADBAD, np.uint32)
        self.P = np.zeros((8, self.lanes), bool)
        self.UP = np.zeros((8, self.lanes), bool)
        self.P[7] = self.UP[7] = True
        bank = bytearray(max(len(kernel.banks[0]), kernel.parameters + len(body)))
        bank[: len(kernel.banks[0])] = kernel.banks[0]
        bank[kernel.parameters : kernel.parameters + len(body)] = body
        bank[0:4] = threads.to_bytes(4, "little")
        self.banks = {**kernel.banks, 0: bytes(bank)}
        self._constants: dict[tuple[int, int, Any], Any] = {}
        self.base = _RESERVED if program.architecture >= 90 else 0
        self.shared = np.full(self.base + kernel.shared, _POISON, np.uint8)
        self.barriers = [n for n, i in enumerate(kernel.code) if i.base == "BAR"]
        self.dropped = None if drop_barrier is None else self.barriers[drop_barrier]
        self.mask = self.whole_warps = np.zeros(self.lanes, bool)
        self.races: set[str] = set()
        self.epoch = 1  # number of barriers passed; races are detected within one epoch
        self._writer = np.full((2, len(self.shared)), -1, np.int64)
        self._reader = np.full((3, len(self.shared)), -1, np.int64)  # when, the first and the last of them
        self._waited = -1  # the step of thread 0's last wait
        self._pending: dict[int, tuple[int, int, bool]] = {}  # thread 0's register: step of its load, bytes, far?
        self._sectors: set[int] = set()  # of 32 bytes of device memory that the block has read
        self._words: list[np.ndarray] = []  # of two bytes in device memory that it has read or written
        self._loaded = self._is_far = False  # by thread 0 from device memory; from beyond the cache
        self._step = 0
        self._issued_to = np.zeros(self.lanes, np.int64)

    # --------------------------------------------------------------------------------------- interface of operations

    def constant(self, bank: int, at: int, kind: Any) -> Any:
        known = self._constants.get((bank, at, kind))
        if known is None:
            known = self._constants[bank, at, kind] = np.frombuffer(self.banks[bank], kind, 1, at)[0]
        return known

    def constants(self, bank: int, at: np.ndarray, kind: Any, count: int) -> list[np.ndarray]:
        memory, size = np.frombuffer(self.banks[bank], np.uint8), np.dtype(kind).itemsize
        where = np.where(self.mask, at, 0)
        if where.max() + size * count > len(memory) or where.min() < 0:
            raise BadAccess(f"constant bank {bank} at {where.max():#x}")
        return [_gathered(memory, where + k * size, kind) for k in range(count)]

    def special(self, name: str) -> Any:
        if name == "SR_TID.X":
            return np.arange(self.lanes, dtype=np.uint32)
        known = {"SR_CTAID.X": self.index, "SR_CgaCtaId": 0, "SR_SWINHI": _WINDOW, "SR_LANEID": None}
        if known.get(name) is None:
            raise Unknown(f"special register {name}")
        return np.uint32(known[name])

    def first_of_warp(self, value: Any) -> np.ndarray:
        rows = np.broadcast_to(value, self.lanes).reshape(-1, WARP)
        first = self.mask.reshape(-1, WARP).argmax(1)
        return np.repeat(rows[np.arange(len(rows)), first], WARP)

    def read(self, space: str, at: np.ndarray, kind: Any, count: int) -> list[np.ndarray]:
        size = np.dtype(kind).itemsize
        result = [np.zeros(self.lanes, kind) for _ in range(count)]
        for inside, where, memory in self._memories(space, at, size * count):
            for k in range(count):
                result[k][inside] = _gathered(memory, where + k * size, kind)
            if memory is None:
                self._note_words(where, size * count)
                self._loaded = bool(inside[0] == 0)
                self._is_far = self._loaded and int(where[0]) >> 5 not in self._sectors
                self._sectors.update(np.unique(where >> 5).tolist())
            if memory is self.shared:
                self._watch(inside, where, size * count, written=False)
        return result

    def write(self, space: str, at: np.ndarray, kind: Any, values: list[np.ndarray]) -> None:
        size = np.dtype(kind).itemsize
        for inside, where, memory in self._memories(space, at, size * len(values)):
            if memory is None:
                self._note_words(where, size * len(values))
            for k, value in enumerate(values):
                bits = value[inside].astype(kind)
                first = (where + k * size) // size if memory is not self.shared else None
                if first is None:
                    memory[(where + k * size)[:, None] + np.arange(size)] = bits.view(np.uint8).reshape(-1, size)
                else:
                    _everything(kind)[first - _FIRST // size] = bits
            if memory is self.shared:
                self._watch(inside, where, size * len(values), written=True)

    def _memories(self, space: str, at: np.ndarray, width: int) -> list[tuple[np.ndarray, np.ndarray, Any]]:
        """(threads, their addresses, the memory) for each kind of memory that is accessed."""
        threads = np.flatnonzero(self.mask)
        where = at[threads].astype(np.int64)
        if not len(threads):
            return []
        if (where % width).any():
            raise BadAccess(f"{self.place()}: address {where[(where % width != 0)][0]:#x} of {width} bytes")
        if space == "generic":
            is_shared = where >> 32 == _WINDOW
            parts = ((~is_shared, False), (is_shared, True))
            return [self._part(threads[p], where[p] & (2**32 - 1 if s else -1), width, s) for p, s in parts if p.any()]
        return [self._part(threads, where, width, space == "shared")]

    def _part(self, threads: np.ndarray, where: np.ndarray, width: int, shared: bool) -> tuple[Any, Any, Any]:
        if not shared:
            if not _is_memory(where, width):
                raise BadAccess(f"{self.place()}: {where.min():#x} to {where.max():#x} is no memory")
            return threads, where, None
        if where.min() < self.base or where.max() + width > len(self.shared):
            whole = f"{self.base:#x} to {len(self.shared):#x}"
            raise BadAccess(f"{self.place()}: shared memory is {whole}, got {where.min():#x} to {where.max():#x}")
        return threads, where, self.shared

    def _note_words(self, where: np.ndarray, width: int) -> None:
        self._words.append(np.unique(np.concatenate([where + k for k in range(0, width, 2)]) // 2))

    def _watch(self, threads: np.ndarray, where: np.ndarray, width: int, written: bool) -> None:
        """Records accesses to shared memory, and reports conflicts with other threads since the last barrier."""
        cells = (where[:, None] + np.arange(width)).ravel()
        who = np.repeat(threads, width)
        (epoch, writer), (read_epoch, first, last) = self._writer, self._reader
        clash = (epoch[cells] == self.epoch) & (writer[cells] != who)
        if written:
            read = read_epoch[cells] == self.epoch
            clash |= read & ((first[cells] != who) | (last[cells] != who))
            epoch[cells], writer[cells] = self.epoch, who
            clash |= writer[cells] != who  # two threads in one instruction
        else:
            fresh = cells[read_epoch[cells] != self.epoch]
            first[fresh], last[fresh] = self.lanes, -1
            read_epoch[cells] = self.epoch
            np.minimum.at(first, cells, who)
            np.maximum.at(last, cells, who)
        if clash.any():
            self.races.add(self.place())

    def place(self) -> str:
        return f"{self.program.kernel.name} at {self._at * WIDTH:#x}, {self.program.kernel.code[self._at]}"

    # --------------------------------------------------------------------------------------------------- execution

    def run(self) -> None:
        program, code = self.program, self.program.kernel.code
        live = np.arange(self.lanes) < self.threads
        self._live = live
        self._ready = [_Split(0, live.copy())]
        self._meetings: list[_Meeting] = []
        self._registers = np.full((16, self.lanes), -1, np.int64)  # B0 ...: which meeting
        self._at_barrier: list[_Split] = []
        self._at_warp_barrier: dict[int, np.ndarray] = {}
        self.counts.blocks += 1
        with np.errstate(all="ignore"):
            while self._live.any():
                if not self._ready:
                    self._barrier()
                    continue
                self._go(self._ready.pop(), program, code)
        if self._words:
            words = np.unique(np.concatenate(self._words))
            self.counts.asked += 2 * len(words)
            self.counts.touched += SECTOR * len(np.unique(words // (SECTOR // 2)))
        self.counts.longest = max(self.counts.longest, int(self._issued_to.max()))

    def _go(self, split: _Split, program: Program, code: list[Instruction]) -> None:
        issued, issued_to = self.counts.by_phase[min(self.epoch, len(self.counts.by_phase)) - 1], self._issued_to
        is_first = bool(split.mask[0])
        at = split.at
        while True:
            i = code[at]
            self._at = at
            issued[at] += split.warps
            issued_to += split.mask
            condition = program.predicates[at]
            self.mask, self.whole_warps = split.mask, split.whole_warps
            if condition is not None:
                self.mask = split.mask & condition(self)
                self.whole_warps = _warps_of(self.mask)
            if i.base in _CONTROL:
                following = _CONTROL[i.base](self, i, at, split)
                if following is None:
                    return
                at = following
                continue
            if is_first:
                self._step += 1
                if self._pending:
                    self._waits(program.touched[at])
            operation = program.operations[at]
            if isinstance(operation, Unknown):
                raise operation
            self._loaded = False
            operation(self)
            if self._loaded and is_first:
                self._loads(i)
            at += 1

    def _loads(self, i: Instruction) -> None:
        first, size = register_file(i.operands[0])[1], bytes_of(i)
        self.counts.read += size
        for k in range(max(1, size // 4)):
            self._pending[first + k] = (self._step, size, self._is_far)

    def _waits(self, touched: frozenset[int]) -> None:
        """Records the wait at the first use of a loaded value; earlier loads have then arrived too."""
        used = [self._pending[r][0] for r in touched if r in self._pending]
        if used:
            loads = set(self._pending.values())
            self.counts.in_flight.append(sum(size for _, size, _ in loads))
            self.counts.ahead.append(self._step - max(used))
            self.counts.far.append(any(far for _, _, far in loads))
            self.counts.apart.append(max(used) > self._waited)
            if self.counts.apart[-1]:  # otherwise it had arrived already, and no time passed for later loads
                self._waited = self._step
            self._pending = {r: load for r, load in self._pending.items() if load[0] > max(used)}

    def _part_ways(self, at: int, target: int, split: _Split, taken: np.ndarray) -> int | None:
        if taken.all() or not (split.mask & ~taken).any():
            return target
        if not taken.any():
            return at + 1
        self._ready += [_Split(target, split.mask & taken), _Split(at + 1, split.mask & ~taken)]
        return None

    def _branch(self, i: Instruction, at: int, split: _Split) -> int | None:
        taken = self.mask.copy()
        for text in i.operands[:-1]:
            taken &= predicate(text)(self)
        return self._part_ways(at, self.program.target(i), split, taken)

    def _return(self, i: Instruction, at: int, split: _Split) -> int | None:
        to = np.broadcast_to(word(i.operands[0])(self), self.lanes)
        targets = np.unique(to[split.mask])
        self._ready += [_Split(int(t) // WIDTH, split.mask & (to == t)) for t in targets]
        return None

    def _exit(self, i: Instruction, at: int, split: _Split) -> int | None:
        self._live &= ~self.mask
        stay = split.mask & ~self.mask
        if stay.any():
            self._ready.append(_Split(at + 1, stay))
        for meeting in list(self._meetings):
            self._met(meeting)
        return None

    def _meet(self, i: Instruction, at: int, split: _Split) -> int | None:  # BSSY
        self._meetings.append(_Meeting(self.mask.copy()))
        self._numbered = getattr(self, "_numbered", [])
        self._numbered.append(self._meetings[-1])
        self._registers[int(i.operands[0][1:])][self.mask] = len(self._numbered) - 1
        return at + 1

    def _leave(self, i: Instruction, at: int, split: _Split) -> int | None:  # BREAK
        leaving = self.mask.copy()
        for text in i.operands[1:]:
            leaving &= predicate(text)(self)
        for number in np.unique(self._registers[int(i.operands[0][1:])][leaving]):
            meeting = self._numbered[number]
            meeting.expected = meeting.expected & ~leaving
            self._met(meeting)
        return at + 1

    def _come(self, i: Instruction, at: int, split: _Split) -> int | None:  # BSYNC
        numbers = self._registers[int(i.operands[0][1:])]
        stay = split.mask & ~self.mask
        if stay.any():
            self._ready.append(_Split(at + 1, stay))
        for number in np.unique(numbers[self.mask]):
            meeting = self._numbered[number]
            meeting.came |= self.mask & (numbers == number)
            meeting.at = at + 1
            self._met(meeting)
        return None

    def _met(self, meeting: _Meeting) -> None:
        if meeting.at < 0 or ((meeting.expected & self._live) & ~meeting.came).any():
            return
        self._meetings.remove(meeting)
        together = meeting.came & self._live
        if together.any():
            self._ready.append(_Split(meeting.at, together))

    def _wait(self, i: Instruction, at: int, split: _Split) -> int | None:  # BAR
        if i.opcode.split(".")[:2] != ["BAR", "SYNC"] or i.operands != ("0x0",):
            raise Unknown(str(i))
        if at == self.dropped:
            return at + 1
        if (split.mask & ~self.mask).any():
            raise Unknown(f"{i}, which not all threads pass")
        self._at_barrier.append(split)
        split.at = at + 1
        return None

    def _wait_in_warp(self, i: Instruction, at: int, split: _Split) -> int | None:
        came = self._at_warp_barrier.setdefault(at, np.zeros(self.lanes, bool))
        came |= split.mask
        whole = (came | ~self._live).reshape(-1, WARP).all(1)
        go = came & np.repeat(whole, WARP)
        came &= ~go
        if go.any():
            self._ready.append(_Split(at + 1, go))
        return None

    def _barrier(self) -> None:
        waiting = np.zeros(self.lanes, bool)
        for split in self._at_barrier:
            waiting |= split.mask
        if not self._at_barrier or (self._live & ~waiting).any():
            missing = int((self._live & ~waiting).sum())
            raise Stuck(f"{self.program.kernel.name}: {missing} threads never come to a barrier")
        places = {split.at for split in self._at_barrier}
        self._ready = [
            _Split(at, np.logical_or.reduce([s.mask for s in self._at_barrier if s.at == at])) for at in places
        ]
        self._at_barrier = []
        self.epoch += 1


_CONTROL: dict[str, Callable[[Any, Instruction, int, Any], int | None]] = {
    "BRA": Block._branch,
    "CALL": lambda b, i, at, split: b._part_ways(at, b.program.target(i), split, b.mask),
    "RET": Block._return,
    "EXIT": Block._exit,
    "BSSY": Block._meet,
    "BSYNC": Block._come,
    "BREAK": Block._leave,
    "BAR": Block._wait,
    "WARPSYNC": Block._wait_in_warp,
}


# ------------------------------------------------------------------------------------------------ this process's memory


def _gathered(memory: np.ndarray | None, where: np.ndarray, kind: Any) -> np.ndarray:
    size = np.dtype(kind).itemsize
    if memory is None:
        return _everything(kind)[where // size - _FIRST // size]
    return np.ascontiguousarray(memory[where[:, None] + np.arange(size)]).view(kind).ravel()


_views: dict[Any, np.ndarray] = {}


def _everything(kind: Any) -> np.ndarray:
    """A view of all addresses of this process from _FIRST on, as elements. Unmapped ones must not be accessed."""
    if kind not in _views:
        code = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32}[np.dtype(kind).itemsize]
        size = np.dtype(kind).itemsize
        _views[kind] = np.ctypeslib.as_array((code * ((1 << 47) // size - 64)).from_address(_FIRST)).view(kind)
    return _views[kind]


_mapped = np.zeros((0, 2), np.int64)


def _is_memory(where: np.ndarray, width: int) -> bool:
    return _inside(where, width) or (_read_map() and _inside(where, width))


def _inside(where: np.ndarray, width: int) -> bool:
    if not len(_mapped):
        return False
    at = np.searchsorted(_mapped[:, 0], where, side="right") - 1
    return bool((at >= 0).all() and (where + width <= _mapped[at, 1]).all())


def _read_map() -> bool:
    global _mapped
    ranges: list[list[int]] = []
    with open("/proc/self/maps") as lines:
        for line in lines:
            first, last = (int(text, 16) for text in line.split()[0].split("-"))
            if line.split()[1].startswith("r") and last < 1 << 47:
                if ranges and ranges[-1][1] == first:
                    ranges[-1][1] = last
                else:
                    ranges.append([first, last])
    _mapped = np.array(ranges, np.int64)
    return True
