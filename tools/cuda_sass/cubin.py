"""Reads a cubin: its kernels, with their instructions as nvdisasm prints them, constants, registers and memory."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from .block import Kernel
from .operations import Instruction

# Attributes in .nv.info: the offset of a kernel's parameters in bank 0; the registers per thread.
_PARAMETERS, _REGISTERS = 0x0A, 0x2F
_ADDRESS = 2  # a relocation: 64 bits of an address


def nvdisasm() -> str:
    """The path of nvdisasm, from the CUDA toolkit or from the wheel nvidia-cuda-nvdisasm."""
    wheel = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvdisasm"))
    found = str(wheel[-1]) if wheel else shutil.which("nvdisasm")
    if found is None:
        raise FileNotFoundError(f"nvdisasm was not found: {sys.executable} -m pip install nvidia-cuda-nvdisasm")
    if wheel and not wheel[-1].stat().st_mode & 0o111:
        wheel[-1].chmod(0o755)
    return found


def kernels(path: Path) -> list[Kernel]:
    """The kernels of a cubin for one architecture."""
    listed = json.loads(subprocess.run([nvdisasm(), "-json", path], check=True, stdout=subprocess.PIPE).stdout)
    functions = {f["function-name"]: [_instruction(i) for i in f["sass-instructions"]] for f in listed[1]}
    with path.open("rb") as file:
        elf = ELFFile(file)
        names = _demangled(list(functions))
        return [_kernel(elf, symbol, name, functions[symbol]) for symbol, name in names.items()]


def _instruction(listed: dict[str, str]) -> Instruction:
    operands = re.sub(r"\.reuse|\s", "", listed.get("operands") or "")
    predicate = listed.get("predicate", "").lstrip("@")
    # nvdisasm prints "PR", which stands for all predicates, in place of one.
    return Instruction(listed["opcode"], tuple(operands.split(",")) if operands else (), predicate.replace("PR", ""))


def _demangled(symbols: list[str]) -> dict[str, str]:
    done = subprocess.run(["c++filt"], input="\n".join(symbols), check=True, stdout=subprocess.PIPE, text=True)
    return {symbol: body_of(line) for symbol, line in zip(symbols, done.stdout.splitlines(), strict=True)}


def body_of(demangled: str) -> str:
    """The TYPE of sinpe::cuda::kernel<TYPE>(TYPE), or a type itself, without the prefix of anonymous namespaces."""
    plain = re.sub(r"(\w+::)?_GLOBAL__N_\w*?::|\(anonymous namespace\)::|sinpe::cuda::|sinpe::", "", demangled)
    match = re.fullmatch(r"void kernel<(.*)>\(.*\)", plain)
    return (match.group(1) if match else plain).replace(" ", "")


def _kernel(elf: ELFFile, symbol: str, name: str, code: list[Instruction]) -> Kernel:
    text = elf.get_section_by_name(f".text.{symbol}")
    index = elf.get_section_index(text.name)
    table = elf.get_section_by_name(".symtab")
    assert isinstance(table, SymbolTableSection)
    entries = {
        s.name: s["st_value"] for s in table.iter_symbols() if s["st_shndx"] == index and s.name and s.name != text.name
    }
    shared = elf.get_section_by_name(f".nv.shared.{symbol}")
    ((_, parameters),) = _attributes(elf, f".nv.info.{symbol}", _PARAMETERS)
    (registers,) = (n for s, n in _attributes(elf, ".nv.info", _REGISTERS) if table.get_symbol(s).name == symbol)
    banks, keeps = _constants(elf, table, symbol)
    return Kernel(
        symbol,
        name,
        code,
        entries,
        registers=registers,
        shared=0 if shared is None else shared["sh_size"],
        parameters=parameters & 0xFFFF,  # the upper half is their size
        banks=banks,
        keeps=keeps,
    )


def _attributes(elf: ELFFile, section: str, attribute: int) -> Iterator[tuple[int, int]]:
    """The values of one attribute as pairs of words. An entry has a format, a name, and a size with that many bytes, or
    two bytes of data."""
    info, at = elf.get_section_by_name(section).data(), 0
    while at < len(info):
        form, name, size = struct.unpack_from("<BBH", info, at)
        if (form, name) == (4, attribute):
            yield struct.unpack_from("<II", info, at + 4)
        at += 4 + (size if form == 4 else 0)


def _constants(elf: ELFFile, table: SymbolTableSection, symbol: str) -> tuple[dict[int, bytes], list[object]]:
    banks = {0: elf.get_section_by_name(f".nv.constant0.{symbol}").data()}
    for number, name in ((2, f".nv.constant2.{symbol}"), (3, ".nv.constant3"), (4, ".nv.constant4")):
        section = elf.get_section_by_name(name)
        if section is not None:
            banks[number] = section.data()
    keeps: list[object] = []
    moves = elf.get_section_by_name(".rela.nv.constant4") or elf.get_section_by_name(".rel.nv.constant4")
    if moves is not None:
        content = elf.get_section_by_name(".nv.global.init").data()
        memory = np.empty(len(content) // 8 + 2, np.uint64)  # so that it begins at a multiple of eight
        ctypes.memmove(memory.ctypes.data, content, len(content))
        keeps.append(memory)
        bank = bytearray(banks[4])
        for move in moves.iter_relocations():
            assert move["r_info_type"] == _ADDRESS, move
            address = memory.ctypes.data + table.get_symbol(move["r_info_sym"])["st_value"]
            address += move["r_addend"] if moves.is_RELA() else struct.unpack_from("<Q", bank, move["r_offset"])[0]
            struct.pack_into("<Q", bank, move["r_offset"], address)
        banks[4] = bytes(bank)
    return banks, keeps
