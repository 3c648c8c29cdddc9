"""``pytest --feature-report=FOLDER``: results of the tests marked ``feature(name)``, for docs/compatibility.md.

One run tests one backend, that of --require-backend: cases of other backends are omitted. FOLDER has a file for each
version of torch and Python, with an entry for each backend.
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
from compatibility_page import features_of

PLACE = re.compile(r"(?<![\w.])/\S+/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--feature-report",
        metavar="FOLDER",
        help="run only the tests of features, with the backend of --require-backend; write their results as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--feature-report"):
        backend = config.getoption("--require-backend")
        if backend not in ("compiled", "eager", "cuda"):
            raise pytest.UsageError("--feature-report: name the backend, --require-backend=compiled, eager or cuda")
        config.pluginmanager.register(FeatureReport(config, Path(path), backend), "feature report")


def backends_of(item: pytest.Item) -> set[str]:
    """The backends that a case tests: that of a device, or the CPU backends unless its parameter names one."""
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    if parameters.get("device") == "cuda" or "cuda" in getattr(item, "fixturenames", ()):
        return {"cuda"}
    if "device" in parameters:  # fixture of tests/support/cuda_support.py
        return {"compiled"}
    named = {parameters.get(name) for name in ("backend", "front")} & {"compiled", "eager"}
    return named or {"compiled", "eager"}


class FeatureReport:
    """Collects the results of one run; registered with --feature-report only."""

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
            if names and self.backend in backends_of(item):
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
        """A file that cannot be imported fails its features; a skipped file skips them."""
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
                if (name, report.nodeid) not in self.seen:  # once, even if both the test and its teardown fail
                    self.seen.add((name, report.nodeid))
                    found["failed"].append(report.nodeid)
            elif report.skipped:
                found["skipped"][reason(report)] += 1
            elif report.when == "call":
                found["passed"] += 1

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return  # interrupted: write no incomplete report
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
        """Writes a report that the backend is missing."""
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


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped or is expected to fail, without local paths."""
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail.removeprefix('reason: ')}"
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return re.sub(PLACE, "", said.removeprefix("Skipped: ")).splitlines()[0]
