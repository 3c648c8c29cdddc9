"""Sessions that need their own environment: other torch versions, other libraries, wheels, sanitizers (`nox -l`).

TORCH_INDEX_URL is the package index for torch, for example that of the builds without CUDA, which are a tenth of the
size. TORCH_VERSIONS are those of the session matrix, SINPE_EXT_BUILD the libraries that it builds.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

from environments import sources  # noqa: E402

PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
TEST = PROJECT["project"]["optional-dependencies"]["test"]
(TORCH,) = (name for name in PROJECT["build-system"]["requires"] if name.startswith("torch"))
BUILD = [name for name in PROJECT["build-system"]["requires"] if name != TORCH]

PINNED = TORCH.partition("==")[2]  # the version that `make test` installs
OLDEST = "2.11.0"  # the oldest with kernels
EAGER = "2.6.0"  # the oldest that eager PyTorch is tested with
NEWEST = "newest"

# Libraries that tests/peers compares with.
PEERS = """diffusers==0.42.1 transformers==5.23.0 positional-encodings==6.0.3 x-transformers==2.31.10 monai==1.6.1
accelerate==1.15.0 peft==0.21.2 torchao==0.18.0""".split()
# Installed without their dependencies: only a file or two of each is used, and torchvision would have to match torch.
PEERS_FILES = "timm==1.0.31 denoising-diffusion-pytorch==2.2.5 espnet==202511 nerfstudio==1.1.5".split()

nox.options.sessions = []


def install_torch(session: nox.Session, version: str, *more: str) -> None:
    """Also removes environment variables of the caller that would change the results."""
    index = ["--index-url", os.environ["TORCH_INDEX_URL"]] if os.environ.get("TORCH_INDEX_URL") else []
    session.install(*(["--upgrade", "torch"] if version == NEWEST else [f"torch=={version}"]), *index)
    if more:
        session.install(*more)
    session.env.update({name: None for name in os.environ if name.startswith(("SINPE_EXT_", "PYTHONPATH"))})


def install_copy(session: nox.Session, folder: Path, build: str) -> Path:
    """Installs the sources (editable) from a copy of them, in which the session goes on; also with --no-install."""
    session.chdir(sources(folder))
    command = ["python", "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "-e", "."]
    session.run_install(*command, env={"SINPE_EXT_BUILD": build})
    return folder


@nox.session
@nox.parametrize("torch", os.environ.get("TORCH_VERSIONS", f"{OLDEST} {PINNED} {NEWEST}").split())
def matrix(session: nox.Session, torch: str) -> None:
    """The tests of `make test`, and builds, under one torch version, which it is built for; -- PYTEST-ARGUMENTS."""
    every = ROOT / "build" / "matrix"
    install_torch(session, torch, *BUILD, *TEST)
    copy = install_copy(session, every / f"torch-{torch}", os.environ.get("SINPE_EXT_BUILD", "cpu"))
    others = [path.parent for path in every.glob("*/sinpe_ext/_build.json") if copy not in path.parents]
    session.env["SINPE_EXT_OTHER_LIBRARIES"] = os.pathsep.join(map(str, others))  # tests/backend/test_stable_abi.py
    session.env["SINPE_EXT_CACHE_DIR"] = str(every / f"cache-{torch}")
    command = "python -m pytest -n auto --dist worksteal --require-backend=compiled"
    session.run(*command.split(), "-m", "not long or builds", *session.posargs)


@nox.session(name="cuda-on-host")
def cuda_on_host(session: nox.Session) -> None:
    """tests/cuda with a CUDA build of torch and no GPU, by tools/cuda_on_host; -- tests PYTEST-ARGUMENTS, or times."""
    session.install(f"torch=={OLDEST}", *BUILD, *TEST)  # not of TORCH_INDEX_URL, which may have CPU builds
    install_copy(session, ROOT / "build" / "cuda-on-host" / "copy", "cpu")
    session.run("python", "tools/cuda_on_host", *session.posargs)


@nox.session
def peers(session: nox.Session) -> None:
    """Runs tests/peers with diffusers, transformers, timm and others installed; -- PYTEST-ARGUMENTS."""
    install_torch(session, PINNED, *BUILD, *TEST, TORCH, *PEERS)
    session.install("--no-deps", *PEERS_FILES)
    command = ["python", "-m", "pytest", "tests/peers", "--require-backend=compiled", *session.posargs]
    session.run(*command, env={"SINPE_EXT_REQUIRE_PEERS": "1"})


@nox.session
def wheels(session: nox.Session) -> None:
    """Builds the source distribution and wheels in dist/, checks and installs them, and installs the checkout by an
    isolated build; runs tools/wheel_smoke.py on each; -- KIND...: SINPE_EXT_BUILD of the wheels (none cpu)."""
    install_torch(session, PINNED, *BUILD, *"auditwheel build check-manifest check-wheel-contents twine".split())
    commit_time = str(session.run("git", "log", "-1", "--format=%ct", external=True, silent=True)).strip()
    session.env["SOURCE_DATE_EPOCH"] = os.environ.get("SOURCE_DATE_EPOCH", commit_time)  # for reproducible wheels
    session.run("check-manifest", "--no-build-isolation")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    for kind in session.posargs or ["none", "cpu"]:
        session.run("python", "-m", "build", "--no-isolation", env={"SINPE_EXT_BUILD": kind})
    made = sorted(str(path) for path in (ROOT / "dist").glob("*.whl"))
    session.run("twine", "check", "--strict", *made, *map(str, (ROOT / "dist").glob("*.tar.gz")))
    session.run("check-wheel-contents", *made)
    session.run("python", "tools/wheel_contents.py", *made)
    checkout = sources(ROOT / "build" / "installs")
    session.chdir(session.create_tmp())  # so that the installed package is imported
    for torch, package in [*((torch, wheel) for torch in (EAGER, PINNED) for wheel in made), (PINNED, str(checkout))]:
        install_torch(session, torch)
        index = {"PIP_EXTRA_INDEX_URL": os.environ.get("TORCH_INDEX_URL", "")}  # an isolated build installs torch
        session.install("--force-reinstall", "--no-deps", package, env=index)
        session.run("python", "-W", "ignore", str(ROOT / "tools" / "wheel_smoke.py"), env={"SINPE_EXT_JIT": "0"})


@nox.session
def asan(session: nox.Session) -> None:
    """The tests of `make test` on libraries built with AddressSanitizer and UBSan; -- PYTEST-ARGUMENTS."""
    install_torch(session, PINNED, *BUILD, *TEST)
    session.env.update({"SINPE_EXT_SANITIZE": "1", "CXX": "g++"})
    install_copy(session, ROOT / "build" / "sanitized", "cpu")
    # Python itself is not linked to the sanitizers' runtimes, which are g++'s, so they have to be preloaded.
    names = ("libasan.so", "libubsan.so", "libstdc++.so")
    found = [str(session.run("g++", f"-print-file-name={name}", external=True, silent=True)).strip() for name in names]
    reports = ROOT / "build" / "sanitizers"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    # No leak check, because Python does not free everything at exit. PYTHONMALLOC: one allocation per object.
    settings = {
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": f"detect_leaks=0:protect_shadow_gap=0:allocator_may_return_null=1:log_path={reports}/report",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": "2",
    }
    session.run("python", "-m", "pytest", "-q", "tests/suite/test_sanitizers.py", env=settings)  # planted faults
    for backend in ("compiled", "emulated"):  # a report ends its worker, which pytest-xdist replaces
        command = f"python -m pytest -q -n auto --dist worksteal --require-backend={backend}".split()
        none = [5] if session.posargs and backend == "emulated" else []  # few tests run there
        session.run(*command, "-m", "not long", *session.posargs, env=settings, success_codes=[0, *none])
    if wrong := [path for path in reports.iterdir() if "ERROR: " in path.read_text(errors="replace")]:
        session.error(f"reports, of child processes too: {', '.join(map(str, wrong))}")
