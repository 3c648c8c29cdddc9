"""Checks of a wheel in addition to those of check-wheel-contents, twine and RECORD: `nox -s wheels`.

python tools/wheel_contents.py dist/*.whl     # needs only the standard library
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (".h", ".inc", ".cpp", ".cu")


def problems(path: Path) -> list[str]:
    """The problems of a wheel, one line each."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
        places = build_paths({name: archive.read(name) for name in archive.namelist()})
    package, csrc = ROOT / "sinpe_ext", ROOT / "csrc"
    expected = {file.relative_to(ROOT).as_posix() for file in package.rglob("*.py")}
    expected |= {f"sinpe_ext/_csrc/{f.relative_to(csrc).as_posix()}" for f in csrc.rglob("*") if f.suffix in SOURCES}
    expected |= {"sinpe_ext/py.typed", "sinpe_ext/_build.json"}
    wrong = [f"{name} is missing" for name in sorted(expected - set(content))]
    strangers = {
        name for name in set(content) - expected if not re.fullmatch(r"sinpe_ext/\w+(\.[\w-]+)*\.(so|pyd)", name)
    }
    wrong += [f"{name} does not belong there" for name in sorted(strangers)]
    return wrong or libraries(path, content) + places


def libraries(path: Path, content: dict[str, bytes]) -> list[str]:
    """Disagreements between the file name, the compiled libraries, the manifest and the sources."""
    manifest = json.loads(content["sinpe_ext/_build.json"])
    built = {entry["file"] for entry in manifest["libraries"].values()}
    there = {name.rpartition("/")[2] for name in content if name.endswith((".so", ".pyd"))}
    wrong = [f"_build.json and the wheel disagree about {name}" for name in sorted(built ^ there)]
    tag = path.stem.split("-", 2)[2]
    pure = tag == "py3-none-any"
    if pure == bool(there):
        wrong.append(f"the tag {tag} with {', '.join(sorted(there)) or 'no library'}")
    if not pure and "core" in manifest["libraries"] and not re.match(r"cp3\d+-cp3\d+-", tag):
        wrong.append(f"the tag {tag}, but _core is for one Python")
    if not there and not manifest.get("reason"):
        wrong.append("_build.json gives no reason why nothing was built")
    with tempfile.TemporaryDirectory() as scratch:
        for name in content:
            if name.startswith("sinpe_ext/_csrc/"):
                target = Path(scratch) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content[name])
        for target, entry in manifest["libraries"].items():
            if source_hash(target, Path(scratch) / "sinpe_ext" / "_csrc") != entry["sources"]:
                wrong.append(f"{entry['file']} is not of the sources beside it")
    return wrong


def source_hash(target: str, root: Path) -> str:
    sys.path.append(str(ROOT))
    from sinpe_ext.backend import sources

    return sources.source_hash(target, root)


def build_paths(content: dict[str, bytes]) -> list[str]:
    """Paths of the build machine in the files: home and temporary directories, the checkout, this Python's folder."""
    places = {str(ROOT), str(Path.home()), tempfile.gettempdir(), sys.prefix, sys.base_prefix} - {
        "/",
        "/usr",
        "/usr/local",
    }
    wrong = []
    for name, data in content.items():
        if name.endswith((".so", ".pyd", "_build.json", "/WHEEL", "/RECORD")) or ".dist-info/" in name:
            wrong += [f"{name} names {place}" for place in sorted(places) if f"{place}/".encode() in data]
    return wrong


def main() -> int:
    bad = 0
    for path in map(Path, sys.argv[1:]):
        wrong = problems(path)
        bad += len(wrong)
        print(
            f"result: {path.name}: {path.stat().st_size / 1e6:.2f} MB",
            *(wrong or ["holds what it should"]),
            sep="\n    ",
        )
    return bool(bad) or len(sys.argv) == 1


if __name__ == "__main__":
    sys.exit(main())
