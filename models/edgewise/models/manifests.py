"""The folder of manifests: what is installed."""

from __future__ import annotations

from pathlib import Path

from edgewise.core.errors import BadModelFile, InvalidRequest
from edgewise.core.files import atomic_write, fsync_dir
from edgewise.models.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from edgewise.models.names import check_name


class Manifests:
    """Reads need nothing; writes need the store's lock. A manifest appears and disappears as a whole.

    Args:
        folder: Made by the first `write`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """Names of all installed models, sorted, those with a damaged manifest included."""
        return sorted(path.stem for path in self.folder.glob("*.json") if not path.name.startswith("."))

    def has(self, name: str) -> bool:
        """Whether a manifest of that name is there, damaged or not; raises `InvalidRequest` for no valid name."""
        return self._path(name).exists()

    def read(self, name: str) -> Manifest | None:
        """The manifest, or None where the model is not installed.

        Raises:
            InvalidRequest: No valid name.
            BadModelFile: It is damaged.
        """
        path = self._path(name)
        try:
            with path.open("rb") as file:
                data = file.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            return None
        manifest = parse_manifest(data, where=str(path))
        if manifest.name != name:
            raise BadModelFile(f"{path} is the manifest of {manifest.name!r}: remove it and pull the model again.")
        return manifest

    def read_all(self) -> tuple[list[Manifest], dict[str, str]]:
        """All manifests by name, and the reason for each that cannot be read."""
        good: list[Manifest] = []
        damaged: dict[str, str] = {}
        for name in self.names():
            try:
                manifest = self.read(name)
            except (BadModelFile, InvalidRequest) as error:
                damaged[name] = error.message
                continue
            if manifest is not None:  # else removed since the folder was listed
                good.append(manifest)
        return good, damaged

    def write(self, manifest: Manifest) -> None:
        """Installs: from here on readers see the model."""
        atomic_write(self._path(manifest.name), manifest.to_json())

    def remove(self, name: str) -> None:
        """Removes the manifest, damaged or not."""
        self._path(name).unlink(missing_ok=True)
        fsync_dir(self.folder)

    def sweep(self) -> None:
        """Removes what a write that was killed left."""
        for stale in self.folder.glob(".*.tmp"):
            stale.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"{check_name(name)}.json"
