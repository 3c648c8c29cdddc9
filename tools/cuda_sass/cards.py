"""The properties of GPUs that the estimate of a launch's time needs, and the estimate.

The estimate is the longest of these times: the memory's for all bytes, the issue slots' for all instructions, each
pipe's for its instructions, the latency of the loads if too few bytes are in flight (Little's law), and that of the
longest warp. The last blocks, which do not fill the GPU, run at the speed of their own loads. Interference between
these limits is not modeled, and no estimate has been compared with a GPU yet.
Rates are NVIDIA's (datasheets; throughput table of the CUDA C++ programming guide), in threads per clock and
multiprocessor, at the highest clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

COPY = 0.9  # fraction of the datasheet's bandwidth that a copy reaches
LATENCY = 700e-9  # seconds of a load from device memory under load
NEAR = 25e-9  # seconds of a load from the L1 cache
SLOTS = 4  # warp instructions issued per clock and multiprocessor
GAP = 5  # clocks between two dependent instructions of a warp


@dataclass(frozen=True)
class Card:
    name: str
    architecture: int
    multiprocessors: int
    clock: float  # GHz, boost
    bandwidth: float  # TB/s
    threads: int  # of a multiprocessor
    shared: int  # bytes of a multiprocessor
    fp64: int
    fp32: int
    conversions64: int  # from and to 64-bit types
    in_double: bool  # the arithmetic of float32 rows, csrc/cuda/device.cu

    @property
    def rates(self) -> Mapping[str, float]:
        return {
            # The rate of the memory pipe is in 32-bit words.
            "fp64": self.fp64, "alu": 64, "fma": self.fp32, "imad": 64, "convert64": self.conversions64, "special": 16,
            "memory": 32, "other": 128,
        }  # fmt: skip


CARDS = (
    Card("A100", 80, 108, 1.41, 2.04, 2048, 164 << 10, 32, 64, 16, True),
    Card("H100", 90, 132, 1.98, 3.35, 2048, 228 << 10, 64, 128, 16, True),
    Card("H200", 90, 132, 1.98, 4.8, 2048, 228 << 10, 64, 128, 16, True),
    Card("B200", 100, 148, 1.97, 8.0, 2048, 228 << 10, 64, 128, 16, True),
    Card("RTX 4090", 89, 128, 2.52, 1.01, 1536, 100 << 10, 2, 128, 2, False),
    Card("RTX 5090", 120, 170, 2.41, 1.79, 1536, 100 << 10, 2, 128, 2, False),
)

_PIPES = {
    "alu": "LOP3 PLOP3 SHF IADD3 IADD ISETP SEL FSEL FSETP PRMT LEA VIADD VIADDMNMX VIMNMX IMNMX MOV IABS F2FP I2FP "
    "P2R R2P",
    "imad": "IMAD",
    "fma": "FFMA FADD FMUL HADD2 HFMA2 CS2R",
    "fp64": "DADD DMUL DFMA DSETP",
    "special": "MUFU I2F F2I F2F",
    "memory": "LDG LDS LD STG STS ST LDC",
}
_PIPE = {name: pipe for pipe, names in _PIPES.items() for name in names.split()}


def pipe_of(opcode: str) -> str:
    base, *modifiers = opcode.split(".")
    if base in ("I2F", "F2I", "F2F") and {"F64", "S64", "U64"} & set(modifiers):
        return "convert64"
    return _PIPE.get(base, "other")


@dataclass(frozen=True)
class Work:
    """The work of all blocks of a launch, extrapolated from the blocks that were executed."""

    blocks: int
    threads: int  # of a block
    registers: int
    shared: int  # bytes of a block
    issued: float  # warp instructions
    by_pipe: Mapping[str, float]
    in_flight: float  # bytes requested per thread when it waits for memory, on average
    longest: float  # instructions of the longest executed warp
    far: float  # waits for device memory by the first thread of the slowest blocks
    near: float  # waits of the same thread for the L1 cache
    read: float  # bytes
    sectors: float = 1.0  # bytes in accessed sectors per requested byte

    def resident(self, card: Card) -> int:
        """Blocks that a multiprocessor holds at once."""
        registers = -(-self.registers // 8) * 8 * 32  # of a warp, allocated in units of 256
        by_registers = 65536 // (registers * -(-self.threads // 32))
        by_shared = card.shared // max(1, self.shared + 1024)
        return max(1, min(by_registers, by_shared, card.threads // self.threads, 32))

    def waves(self, card: Card) -> float:
        return self.blocks / (self.resident(card) * card.multiprocessors)


@dataclass(frozen=True)
class Prediction:
    seconds: float
    by: str  # the limit that takes longest


def predict(work: Work, moved: float, card: Card) -> Prediction:
    """The estimated time of a launch that moves `moved` bytes of device memory."""
    clocks = card.multiprocessors * card.clock * 1e9
    speed = card.bandwidth * 1e12 * COPY
    each = {"memory": moved * max(1.0, work.sectors) / speed, "issue": work.issued / SLOTS / clocks}
    for pipe, count in work.by_pipe.items():
        each[f"pipe {pipe}"] = count * 32 / card.rates[pipe] / clocks
    # On some GPUs, integer multiplications use the floating-point pipe.
    each["pipe fma"] = (work.by_pipe.get("fma", 0) + work.by_pipe.get("imad", 0)) * 32 / card.fp32 / clocks
    waves, resident = work.waves(card), work.resident(card) * work.threads * card.multiprocessors
    if work.in_flight:
        on_the_way = min(resident, work.blocks * work.threads) * work.in_flight
        each["latency"] = work.read / (on_the_way / LATENCY)
        last = waves % 1
        if waves > 1 and last:
            share = min(1.0, last * resident * work.in_flight / LATENCY / speed)  # fraction of the memory's speed
            for name in ("memory", "latency"):
                each[name] *= (math.floor(waves) + last / share) / waves
    each["the longest warp"] = work.longest * GAP / (card.clock * 1e9) + work.far * LATENCY + work.near * NEAR
    by = max(each, key=lambda name: each[name])
    return Prediction(each[by], by)
