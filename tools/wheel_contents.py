"""What a wheel or a source distribution of ours has to hold and must not, for wheels.py and check_wheels.py.

Standard library alone.
"""

from __future__ import annotations

import base64
import csv
import email
import hashlib
import json
import re
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("sinpe_ext/py.typed", "sinpe_ext/_build.json", "sinpe_ext/__main__.py")
SDIST = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "CMakeLists.txt",
    "Makefile",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
)


def version() -> str:
    found = re.search(
        r'"(.+)"', (ROOT / "sinpe_ext" / "_version.py").read_text(encoding="utf-8").split("__version__")[1]
    )
    assert found
    return found[1]


def problems(path: Path) -> list[str]:
    """What is wrong with a file that is to be given away; nothing, hopefully."""
    return of_wheel(path) if path.suffix == ".whl" else of_sdist(path)


def of_sdist(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {*SDIST, *csrc_files("csrc"), *python_files("sinpe_ext"), *python_files("tests")}
    found = [f"{name} is missing" for name in sorted(needed - names)]
    return found + [f"{name} does not belong there" for name in sorted(names) if unwanted(name)]


def of_wheel(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    info = f"sinpe_ext-{version()}.dist-info"
    needed = {*NEEDED, *python_files("sinpe_ext"), *csrc_files("sinpe_ext/_csrc"), f"{info}/licenses/LICENSE"}
    found = [f"{name} is missing" for name in sorted(needed - set(content))]
    for name in sorted(content):
        if not name.startswith(("sinpe_ext/", f"{info}/")) or unwanted(name):
            found.append(f"{name} does not belong there")
    if found:
        return found
    found += record(content, info)
    metadata = email.message_from_bytes(content[f"{info}/METADATA"])
    if (metadata["Name"], metadata["Version"]) != ("sinpe-ext", version()):
        found.append(f"METADATA names {metadata['Name']} {metadata['Version']}, and _version.py {version()}")
    return found + libraries(path, content) + build_paths(content)


def libraries(path: Path, content: dict[str, bytes]) -> list[str]:
    """Whether file name, compiled libraries, manifest and sources say the same."""
    manifest = json.loads(content["sinpe_ext/_build.json"])
    built = {entry["file"] for entry in manifest["libraries"].values()}
    there = {name.rpartition("/")[2] for name in content if name.endswith((".so", ".pyd"))}
    found = [f"_build.json and the wheel disagree about {name}" for name in sorted(built ^ there)]
    tag = path.stem.split("-", 2)[2]
    pure = tag == "py3-none-any"
    if pure == bool(there):
        found.append(f"the tag {tag} with {', '.join(sorted(there)) or 'no library'}")
    if not pure and "core" in manifest["libraries"] and not re.match(r"cp3\d+-cp3\d+-", tag):
        found.append(f"the tag {tag}, but _core is for one Python")
    if not there and not manifest.get("reason"):
        found.append("_build.json gives no reason why nothing was built")
    with tempfile.TemporaryDirectory() as scratch:
        for name in content:
            if name.startswith("sinpe_ext/_csrc/"):
                target = Path(scratch) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content[name])
        for target, entry in manifest["libraries"].items():
            if source_hash(target, Path(scratch) / "sinpe_ext" / "_csrc") != entry["sources"]:
                found.append(f"{entry['file']} is not of the sources beside it")
    return found


def source_hash(target: str, root: Path) -> str:
    sys.path.insert(0, str(ROOT))
    from sinpe_ext.backend import compilation

    return compilation.source_hash(target, root)


def build_paths(content: dict[str, bytes]) -> list[str]:
    """Folders of the machine that built it: home, temporary ones, the checkout, this Python's."""
    places = {str(ROOT), str(Path.home()), tempfile.gettempdir(), sys.prefix, sys.base_prefix} - {
        "/",
        "/usr",
        "/usr/local",
    }
    found = []
    for name, data in content.items():
        if name.endswith((".so", ".pyd", "_build.json", "/WHEEL", "/RECORD")) or ".dist-info/" in name:
            found += [f"{name} names {place}" for place in sorted(places) if f"{place}/".encode() in data]
    return found


def record(content: dict[str, bytes], info: str) -> list[str]:
    """RECORD names every file, with its hash and size."""
    rows = {row[0]: row[1:] for row in csv.reader(content[f"{info}/RECORD"].decode().splitlines()) if row}
    found = [f"RECORD and the wheel disagree about {name}" for name in sorted(set(rows) ^ set(content))]
    for name, (digest, size) in rows.items():
        if name in content and name != f"{info}/RECORD":
            made = base64.urlsafe_b64encode(hashlib.sha256(content[name]).digest()).rstrip(b"=").decode()
            if (digest, size) != (f"sha256={made}", str(len(content[name]))):
                found.append(f"RECORD has another {name}")
    return found


def unwanted(name: str) -> bool:
    """Leftovers of a build or of an editor, wherever they are; libraries and _build.json in a source distribution."""
    if re.search(r"(^|/)(__pycache__|\.git|\.venv[^/]*|build|dist)/|\.(py[co]|o|orig|rej|swp)$|~$", name):
        return True
    inside = name.startswith("sinpe_ext/") or ".dist-info/" in name
    return not inside and name.endswith((".so", "_build.json"))


def python_files(package: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}


def csrc_files(prefix: str) -> set[str]:
    """Sources and headers, as the JIT compiles them."""
    root = ROOT / "csrc"
    files = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return {
        f"{prefix}/{name}" for name in files if name.endswith((".h", ".hpp", ".inl", ".inc", ".cpp", ".cu", ".cuh"))
    }
