"""The CUDA library compiled as plain C++ for CPU tensors: the same kernels without a device, for tests and tools."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sinpe_ext.backend import jit, loader, sources
from sinpe_ext.backend.sources import BuildUnavailable

REASON = "the CUDA kernels, compiled as C++"


def forwarding_sources(folder: Path) -> list[Path]:
    """Writes a .cpp file for each source of the CUDA library, which includes it: g++ does not compile .cu files."""
    root = _root()
    forwarded = []
    for source in sources.sources("cuda", root):
        unit = folder / f"{source.parent.name}_{source.name.replace('.cu', '_cu.cpp')}"
        unit.write_text(f'#include "{source.relative_to(root).as_posix()}"\n', encoding="utf-8")
        forwarded.append(unit)
    return forwarded


def flags() -> list[str]:
    """-O3 and forced inlining take three times as long to compile."""
    return [*sources.compile_flags("cpu"), "-DSINPE_EMULATED", "-DSINPE_INLINE_FREELY", "-O1"]


def load() -> None:
    """Makes the emulated library serve the CPU. Must be called before the CPU library is loaded: an operator cannot
    have two implementations. Raises BuildUnavailable if that is too late or the build fails."""
    if "cpu" in loader.backends():
        raise BuildUnavailable("the CPU library is loaded already", "load it before any call of sinpe_ext")
    root = _root()
    facts = sources.build_facts("cpu", root) | {"target": "emulated", "sources": sources.source_hash("cuda", root)}
    facts["flags"] = " ".join(flags())
    with tempfile.TemporaryDirectory() as folder:
        path, facts = jit.find_or_compile(
            "emulated",
            facts,
            because="for the tests",
            sources=[str(path) for path in forwarding_sources(Path(folder))],
            extra_include_paths=sources.include_directories(root),
            extra_cflags=flags(),
            extra_ldflags=sources.link_flags("cpu"),
        )
    loader._load_library(path)
    backend = loader.DeviceBackend("cpu", "compiled", REASON, "emulated", str(path), build=facts)
    loader._backends["cpu"] = backend


def _root() -> Path:
    root = sources.source_root()
    if root is None:
        raise BuildUnavailable("the C++ sources are not installed", "run the tests from a checkout")
    return root
