"""What the package index shows beside pyproject.toml: the repository, and README with links that lead there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = r"(?!https?:|mailto:|#)"
PAGES = {
    "Repository": "{repository}",
    "Documentation": "{repository}/blob/{tag}/docs/how_it_works.md",
    "Changelog": "{repository}/blob/{tag}/CHANGELOG.md",
    "Issues": "{repository}/issues",
}


class RepositoryHook(MetadataHookInterface):
    """Fills ``urls`` and ``readme`` from the one address in pyproject.toml; without it, README stays as it is."""

    def update(self, metadata: dict[str, Any]) -> None:  # noqa: D102 (of the interface)
        repository, tag = self.config["repository"], f"v{metadata['version']}"
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["urls"] = {}
        if repository:
            metadata["urls"] = {name: url.format(repository=repository, tag=tag) for name, url in PAGES.items()}
            readme = re.sub(rf"(!\[[^]]*\]\(){RELATIVE}", rf"\g<1>{repository}/raw/{tag}/", readme)
            readme = re.sub(rf"(\]\(){RELATIVE}", rf"\g<1>{repository}/blob/{tag}/", readme)
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
