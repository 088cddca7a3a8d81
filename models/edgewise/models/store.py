"""The model store: a folder of content-addressed blobs, and one manifest per installed model.

    lock                        flock(2); one changing process at a time
    blobs/sha256/<hex>          finished files, read-only
    manifests/<name>.json       what is installed; written last, removed first
    partial/                    unfinished files, resumed by the next pull, and models in the making
    quarantine/                 damaged blobs that `verify` found

Every change becomes visible by one rename: the manifest's. Before it, the old state is what readers see; blobs appear only
complete, checked and synced. So a kill or a power cut at any byte leaves a usable store.
"""

from __future__ import annotations

import datetime
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from edgewise.core.errors import BadModelFile, ConfigError, EdgewiseError, InvalidRequest, ModelNotFound, StorageError
from edgewise.models.blobs import Blobs, hash_file
from edgewise.models.catalog import SETS, Catalog, CatalogEntry, load_catalog, member_for_role, reject_set_name
from edgewise.models.disk import make_dirs, require_space, storage_errors
from edgewise.models.encoders.record import drop_ladders
from edgewise.models.files import ModelFiles
from edgewise.models.importing import Candidate, complete_info, inspect
from edgewise.models.intake import How, take
from edgewise.models.lock import store_lock
from edgewise.models.manifest import TIME_FORMAT, Manifest, ModelInfo, Role, StoredFile
from edgewise.models.manifests import Manifests
from edgewise.models.names import check_name
from edgewise.models.progress import ProgressSink, no_progress
from edgewise.models.pulling import Puller

RESERVE_BYTES: Final = 32 << 20  # stays free for logs and databases, which must be written when models cannot

FileState: TypeAlias = Literal["ok", "damaged", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What `verify` found of one file; `detail` is a sentence where it is not ok."""

    model: str
    file: str
    sha256: str
    state: FileState
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """An import's result; `left_out` names the folder's files that are not part of the model."""

    manifest: Manifest
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What `remove` or `clear_partial` freed, in bytes."""

    name: str | None
    freed: int


class Store:
    """Models on disk. Reading needs no lock and no write permission; changing takes the lock and never waits for it.

    Args:
        root: The store's folder, usually `<home>/models`; made when first needed.
        catalog: Gives the catalog for the messages of `resolve`; by default the built-in one and `<root>/../catalog.d`.
        offline: Whether pulls leave sources alone that need a network.
        reserve_bytes: Bytes of the disk that pulls and imports must leave free.
        now: Gives the time for manifests.
    """

    def __init__(
        self,
        root: Path,
        *,
        catalog: Callable[[], Catalog] | None = None,
        offline: bool = False,
        reserve_bytes: int = RESERVE_BYTES,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.timezone.utc),
    ) -> None:
        self.root = root
        self._catalog = catalog or (lambda: load_catalog(root.parent / "catalog.d"))
        self._reserve = reserve_bytes
        self._now = now
        self._blobs = Blobs(root)
        self._manifests = Manifests(root / "manifests")
        self._puller = Puller(self._blobs, offline=offline)

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    # --- reading --------------------------------------------------------------------------------------------------------

    def manifests(self) -> list[Manifest]:
        """The manifests of all installed models, sorted by name. Damaged ones are left out: `damaged()` has them."""
        return self._manifests.read_all()[0]

    def damaged(self) -> Mapping[str, str]:
        """Name -> reason, for installed models whose manifest cannot be read."""
        return self._manifests.read_all()[1]

    def manifest(self, name: str) -> Manifest:
        """The manifest of one installed model.

        Raises:
            InvalidRequest: No valid name.
            ModelNotFound: Not installed; the message says what is, and how to get this one.
            BadModelFile: Its manifest is damaged.
        """
        manifest = self._manifests.read(name)
        if manifest is None:
            raise self._not_installed(name)
        return manifest

    def resolve(self, name: str, role: Role = "llm") -> ModelFiles:
        """The files of an installed model, or of the set member for `role` where `name` names a set.

        Raises:
            InvalidRequest: No valid name, or a model of another role.
            ModelNotFound: Not installed.
            BadModelFile: A file is missing or cut; a pull or import mends it.
        """
        manifest = self.manifest(member_for_role(check_name(name), role))
        if manifest.info.role != role:
            raise InvalidRequest(f"Model {name!r} is for {manifest.info.role}, not for {role}.", param="model")
        for file in manifest.files:
            if not self._blobs.has(file):
                raise BadModelFile(
                    f"{file.name} of model {manifest.name!r} is missing or cut ({self._blobs.path(file.sha256)}): "
                    f"`edgewise models pull {manifest.name}` or a new import mends it."
                )
        return ModelFiles(
            name=manifest.name,
            digest=manifest.digest,
            format=manifest.info.format,
            paths={file.name: self._blobs.path(file.sha256) for file in manifest.files},
        )

    def require_new(self, name: str) -> str:
        """Returns `name` if a model that is yet to be made can be installed under it.

        Raises:
            InvalidRequest: The name is not valid, or taken.
        """
        if self._manifests.has(reject_set_name(check_name(name))):
            raise InvalidRequest(
                f"The name {name!r} is taken: choose another name, or `edgewise models rm {name}` first.", param="model"
            )
        return name

    def leftovers(self) -> int:
        """Bytes of unfinished downloads and models, and of damaged blobs, which `clear_partial` would free."""
        return self._blobs.leftovers()

    # --- changing -------------------------------------------------------------------------------------------------------

    def pull(self, entry: CatalogEntry, progress: ProgressSink = no_progress) -> Manifest:
        """Installs a catalog entry; whatever of it is here already, finished or not, is not fetched again.

        Raises:
            SourceUnavailable: No source has a file; `Offline` where one would need a network and networks are off.
            DigestMismatch: A source has another file than the entry states.
            BadModelFile: The entry is to be inspected, and its files are no whole model.
            StorageError: Disk full (said before anything is fetched), read-only or faulty. Nothing is left behind.
            StoreBusy: Another process is changing the store.
            InvalidRequest: The user brought a different model under this name (import, or another `hf:` or `oci:` place).
        """
        manifest, old = self._plan(entry)
        if manifest == old and not self._puller.missing(entry):
            return old
        self._puller.require_sources(entry)
        require_space(self.root, self._puller.bytes_needed(entry), self._reserve)
        with self._changing():
            manifest, old = self._plan(entry)
            try:
                self._puller.fetch(entry, progress)
                manifest = self._inspected(entry, manifest)
                self._manifests.write(manifest)
            except (StorageError, OSError):
                self._give_back(entry)
                raise
            if old is not None and old.digest != manifest.digest:
                self._collect()
        return manifest

    def import_path(
        self,
        path: Path,
        name: str | None = None,
        *,
        role: Role = "llm",
        how: How = "copy",
        made_from: Manifest | None = None,
        progress: ProgressSink = no_progress,
    ) -> Imported:
        """Installs a model from files: a .gguf file, or a folder with config.json and *.safetensors.

        Args:
            path: Where it lies.
            name: What to call it; derived from `path` where None.
            role: What it is for.
            how: "copy"; "reflink" (shares disk blocks, same file system with that ability only); "hardlink" (shares the
                file itself: whoever changes the original damages the model, which `verify` finds).
            made_from: The model that this one was made from, whose licences and recommendations hold for it too.
            progress: Told how far it is.

        Raises:
            InvalidRequest: No model there, or the name is invalid or taken by another model.
            BadModelFile: A model that is not whole.
            StorageError: Disk full, read-only or faulty, or the asked-for kind of link is impossible.
            StoreBusy: Another process is changing the store.
        """
        return self.install(inspect(path, name, role), path, how=how, made_from=made_from, progress=progress)

    def install(
        self,
        candidate: Candidate,
        path: Path,
        *,
        how: How = "copy",
        made_from: Manifest | None = None,
        progress: ProgressSink = no_progress,
    ) -> Imported:
        """`import_path` of what has been found at `path`; raises the same."""
        reject_set_name(candidate.name)
        needed = sum(file.stat().st_size for file in candidate.paths.values()) if how == "copy" else 0
        require_space(self.root, needed, self._reserve)
        with self._changing():
            try:
                manifest = Manifest(
                    name=candidate.name,
                    files=tuple(
                        take(self._blobs, candidate.paths[item], item, how, progress)
                        for item in sorted(candidate.paths)
                    ),
                    info=candidate.info if made_from is None else _inherited(candidate.info, made_from.info),
                    source=f"import:{path.expanduser().absolute()}" if made_from is None else _made_from(made_from),
                    installed_at=self._timestamp(),
                )
                self._require_name_free(manifest)
                self._manifests.write(manifest)
            except BaseException:
                self._give_back(None)
                raise
        return Imported(manifest=manifest, left_out=candidate.left_out)

    @contextmanager
    def workshop(self, size: int) -> Iterator[Path]:
        """A folder in which to make a model of `size` bytes, to be imported from there by copying; it is removed at the end.

        Raises:
            StorageError: There is no room for the model and its copy, or the disk refuses, also what is written in it.
        """
        require_space(self.root, 2 * size, self._reserve)
        with storage_errors(self.root), self._blobs.workshop() as folder:
            yield folder

    def verify(self, names: Sequence[str] | None = None, progress: ProgressSink = no_progress) -> list[FileReport]:
        """Hashes every file of the named models (all where None) and puts damaged blobs aside.

        Raises:
            InvalidRequest, ModelNotFound: A name is not valid or not installed.
        """
        reports: list[FileReport] = []
        checked: dict[str, tuple[FileState, str]] = {}
        for name in self._manifests.names() if names is None else names:
            try:
                files = self.manifest(name).files
            except BadModelFile as error:
                reports.append(
                    FileReport(model=name, file="(manifest)", sha256="", state="damaged", detail=error.message)
                )
                continue
            for file in files:
                if file.sha256 not in checked:
                    checked[file.sha256] = self._check(file, progress)
                state, detail = checked[file.sha256]
                reports.append(FileReport(model=name, file=file.name, sha256=file.sha256, state=state, detail=detail))
        return self._set_aside(reports)

    def remove(self, name: str) -> Removed:
        """Removes a model, or what is installed of a set, and every blob that no other model uses. Works on a full disk.

        Raises:
            InvalidRequest: No valid name.
            ModelNotFound: Nothing of it is installed.
            StorageError: Read-only or faulty disk.
            StoreBusy: Another process is changing the store.
            BadModelFile: Another model's manifest is damaged, so that its blobs cannot be told from unused ones; `name`
                is removed, no blob is.
        """
        installed = [member for member in SETS.get(name, (name,)) if self._manifests.has(member)]
        if not installed:
            raise self._not_installed(name)
        with self._changing():
            for member in installed:
                self._manifests.remove(member)
            return Removed(name=name, freed=self._collect())

    def clear_partial(self) -> Removed:
        """Gives up what is unfinished and deletes damaged blobs that were put aside."""
        with self._changing():
            return Removed(name=None, freed=self._blobs.clear_partial())

    # --- inside ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with storage_errors(self.root):
            make_dirs(self.root)
            with store_lock(self.root / "lock"):
                self._blobs.prepare()
                make_dirs(self._manifests.folder)
                self._manifests.sweep()
                yield

    def _not_installed(self, name: str) -> ModelNotFound:
        installed = ", ".join(self._manifests.names()) or "none"
        try:
            known = name in SETS or name in self._catalog().entries
        except ConfigError as error:
            remedy = f"the catalog cannot be read ({error.message})"
        else:
            pulls = f"`edgewise models pull {name}` installs it"
            remedy = pulls if known else "`edgewise models list` shows what can be pulled"
        return ModelNotFound(f"Model {name!r} is not installed (installed: {installed}): {remedy}.", param="model")

    def _plan(self, entry: CatalogEntry) -> tuple[Manifest, Manifest | None]:
        """The manifest to install, and the readable one that is there. They are equal where only blobs may be missing."""
        manifest = Manifest(
            name=check_name(entry.name),
            files=tuple(sorted((item.file for item in entry.files), key=lambda file: file.name)),
            info=entry.info,
            source=entry.source,
            installed_at=self._timestamp(),
        )
        try:
            old = self._manifests.read(entry.name)
        except BadModelFile:
            return manifest, None
        if old is None:
            return manifest, None
        if (entry.origin or _named_by_user(old.source)) and _place(old.source) != _place(manifest.source):
            self._require_name_free(manifest)
        info = old.info if entry.inspect and old.digest == manifest.digest else manifest.info
        same = replace(manifest, installed_at=old.installed_at, info=info)
        return (same if same == old else manifest), old

    def _inspected(self, entry: CatalogEntry, manifest: Manifest) -> Manifest:
        if not entry.inspect:
            return manifest
        paths = {file.name: self._blobs.path(file.sha256) for file in manifest.files}
        try:
            return replace(manifest, info=complete_info(manifest.info, paths))
        except EdgewiseError:
            self._give_back(None)  # the bytes are what the source has; fetched again they would be no better
            raise

    def _require_name_free(self, manifest: Manifest) -> None:
        try:
            old = self._manifests.read(manifest.name)
        except BadModelFile:
            return
        if old is not None and old.digest != manifest.digest:
            raise InvalidRequest(
                f"The name {manifest.name!r} is taken by another model (from {old.source}): choose another name, or "
                f"`edgewise models rm {manifest.name}` first.",
                param="model",
            )

    def _check(self, file: StoredFile, progress: ProgressSink) -> tuple[FileState, str]:
        path = self._blobs.path(file.sha256)
        try:
            found = hash_file(path, "verify", file.name, progress)
        except FileNotFoundError:
            return "missing", f"{path} is not there: pull or import the model again."
        except OSError as error:
            if error.errno != errno.EIO:
                raise StorageError(f"{path} cannot be read: {error.strerror}.") from error
            return "damaged", f"{path} cannot be read: the disk reports a fault."
        if found == file.sha256:
            return "ok", ""
        return "damaged", f"{path} has SHA-256 {found}: pull or import the model again."

    def _set_aside(self, reports: list[FileReport]) -> list[FileReport]:
        damaged = {report.sha256: report for report in reports if report.state == "damaged" and report.sha256}
        if not damaged:
            return reports
        try:
            with self._changing():
                for sha256, report in damaged.items():
                    # Hashed once more under the lock: since then somebody may have pulled it anew.
                    file = StoredFile(name=report.file, sha256=sha256, size=0)
                    if self._check(file, no_progress)[0] == "damaged":
                        self._blobs.set_aside(sha256)
        except EdgewiseError as error:  # the damage must be told in any case
            note = f" It could not be put aside: {error.message}"
            return [replace(it, detail=it.detail + note) if it.sha256 in damaged else it for it in reports]
        return reports

    def _collect(self) -> int:
        manifests, damaged = self._manifests.read_all()
        if damaged:
            raise BadModelFile(
                f"No blob was removed, because of damaged manifests: {' '.join(damaged.values())} "
                f"Remove them with `edgewise models rm {next(iter(damaged))}`."
            )
        freed = drop_ladders(self.root, [manifest.digest for manifest in manifests])
        return freed + self._blobs.collect(file.sha256 for manifest in manifests for file in manifest.files)

    def _give_back(self, entry: CatalogEntry | None) -> None:
        """Frees what a failed change used. That it failed is the error to tell, so one met here is not."""
        with suppress(OSError, EdgewiseError):
            if entry is not None:
                self._puller.abandon(entry)
            self._collect()

    def _timestamp(self) -> str:
        return self._now().strftime(TIME_FORMAT)


def _inherited(info: ModelInfo, parent: ModelInfo) -> ModelInfo:
    return replace(
        info,
        licence_model=parent.licence_model,
        licence_package=parent.licence_package,
        sampling=parent.sampling,
    )


def _made_from(parent: Manifest) -> str:
    return f"quantize:{parent.name}@{parent.digest}"


def _named_by_user(source: str) -> bool:
    return source.startswith(("import:", "quantize:", "hf:", "oci:"))


def _place(source: str) -> str:
    """A manifest's source without its revision: a newer one of the same place may take the name over."""
    before, _, after = source.partition("@")
    return f"{before}/{after.partition('/')[2]}"
