"""``pytest --feature-report=FOLDER``: what came of the tests marked ``feature(name)``, for docs/compatibility.md.

One run is about one backend, that of --require-backend: a case that is about another one is left out of it. FOLDER has
a file for each torch and Python, and that an entry for each backend.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

MARK = re.compile(r"""\bfeature\(\s*["']([^"']+)["']""")
PLACE = re.compile(r"(?<![\w.])/\S+/")


def options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--feature-report",
        metavar="FOLDER",
        help="run the tests of features alone, with the backend of --require-backend; write what came of them as JSON",
    )


def about(item: pytest.Item) -> set[str]:
    """The backends that a case is about: a device's, or those of the CPU unless its parameter names one."""
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    if parameters.get("device") == "cuda" or "cuda" in getattr(item, "fixturenames", ()):
        return {"cuda"}
    if "device" in parameters:  # of tests/support/cuda_support.py: a device's own kernels
        return {"compiled"}
    named = {parameters.get(name) for name in ("backend", "front")} & {"compiled", "eager"}
    return named or {"compiled", "eager"}


class FeatureReport:
    """Collects the outcomes of one run; registered only where --feature-report is given."""

    def __init__(self, config: pytest.Config, folder: Path, backend: str):
        self.folder, self.backend, self.root = folder, backend, config.rootpath
        self.begun = time.monotonic()
        self.names: dict[str, list[str]] = {}  # test -> its features
        self.features: dict[str, dict[str, Any]] = {}
        self.seen: set[tuple[str, str]] = set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept, left_out = [], []
        for item in items:
            names = [mark.args[0] for mark in item.iter_markers("feature")]
            if names and self.backend in about(item):
                self.names[item.nodeid] = names
                kept.append(item)
            else:
                left_out.append(item)
        for name in sorted({name for names in self.names.values() for name in names}):
            self._of(name)
        items[:] = kept
        if left_out:
            config.hook.pytest_deselected(items=left_out)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported fails its features, and one that is skipped whole skips them."""
        if report.passed or not report.nodeid.endswith(".py"):
            return
        for name in sorted(features_of(self.root / report.nodeid)):
            found = self._of(name)
            if report.failed:
                found["failed"].append(report.nodeid)
            else:
                found["skipped"][reason(report)] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name in self.names.get(report.nodeid, ()):
            found = self._of(name)
            if report.failed:
                if (name, report.nodeid) not in self.seen:  # once, though the test and its teardown fail
                    self.seen.add((name, report.nodeid))
                    found["failed"].append(report.nodeid)
            elif report.skipped:
                found["skipped"][reason(report)] += 1
            elif report.when == "call":
                found["passed"] += 1

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return  # stopped half-way: no report is better than half of one
        import torch

        from sinpe_ext.backend import loader

        served = loader.resolve("cuda" if self.backend == "cuda" else "cpu")
        device = torch.cuda.get_device_name() if self.backend == "cuda" else ""
        library = served.build.get("torch", "") if self.backend != "eager" else ""
        self.write(
            {
                "backend": self.backend,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
                "platform": f"{platform.system()} {platform.machine()}",
                "device": device,
                "library": f"built with torch {library}" if library else "",
                "commit": os.environ.get("SINPE_EXT_COMMIT", ""),
                "date": datetime.date.today().isoformat(),
                "seconds": round(time.monotonic() - self.begun),
                "features": self.features,
            }
        )

    def missing(self, reason: str) -> None:
        """There is no such backend here."""
        self.write({"not_run": re.sub(PLACE, "", reason)})

    def write(self, run: dict[str, Any]) -> None:
        import torch

        release, python = str(torch.__version__).split("+")[0], platform.python_version()
        path = self.folder / f"torch-{release}-python-{python.rpartition('.')[0]}.json"
        self.folder.mkdir(parents=True, exist_ok=True)
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else {}
        result = {"torch": release, "python": python, "runs": runs | {self.backend: run}}
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def _of(self, name: str) -> dict[str, Any]:
        return self.features.setdefault(name, {"passed": 0, "failed": [], "skipped": Counter()})


def features_of(path: Path) -> set[str]:
    """The features that a test file names."""
    return set(MARK.findall(path.read_text(encoding="utf-8")))


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped or is expected to fail, without the places of this machine."""
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail.removeprefix('reason: ')}"
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return re.sub(PLACE, "", said.removeprefix("Skipped: ")).splitlines()[0]
