"""What an installation takes on the disk: packages and MB of the core and of each extra, bansong's own included.

    python benchmarks/footprint.py [EXTRA…]

Installs this checkout once for each, into folders that are removed again, without bytecode (which adds a fifth).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOT_FOR_USERS = {"dev", "browser", "docs"}


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = sys.argv[1:] or ["", *(one for one in project["optional-dependencies"] if one not in NOT_FOR_USERS)]
    print("| | packages | MB | the largest |\n| --- | --- | --- | --- |")
    for extra in extras:
        with tempfile.TemporaryDirectory() as name:
            wanted = f"{ROOT}[{extra}]" if extra else str(ROOT)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", name, wanted]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
            sizes = {path.name: size_of(path) for path in Path(name).iterdir()}
            packages = sum(path.endswith(".dist-info") for path in sizes)
            largest = sorted(sizes, key=lambda one: sizes[one], reverse=True)[:3]
            said = ", ".join(f"{one} {sizes[one] / 1e6:.0f}" for one in largest)
            print(f"| {extra or 'core'} | {packages} | {sum(sizes.values()) / 1e6:.0f} | {said} |", flush=True)


def size_of(path: Path) -> int:
    return sum(one.stat().st_size for one in (path, *path.rglob("*")) if one.is_file())


if __name__ == "__main__":
    main()
