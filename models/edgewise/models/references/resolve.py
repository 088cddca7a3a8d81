"""One door for all names of places."""

from __future__ import annotations

from edgewise.core.errors import InvalidRequest
from edgewise.models.catalog import Catalog, reject_set_name
from edgewise.models.manifest import Manifest, Role
from edgewise.models.names import check_name
from edgewise.models.progress import ProgressSink, no_progress
from edgewise.models.references.hub import resolve_hub
from edgewise.models.references.names import PREFIXES, HubName, RegistryName, parse_hub_name, parse_registry_name
from edgewise.models.references.oci import resolve_registry
from edgewise.models.references.resolved import Resolved
from edgewise.models.sources.access import SourceAccess
from edgewise.models.sources.source import Offline
from edgewise.models.store import Store


def is_place(text: str) -> bool:
    """Whether `text` names a place rather than a model of the catalog."""
    return text.startswith(PREFIXES)


def resolve_place(
    text: str,
    access: SourceAccess,
    catalog: Catalog,
    *,
    name: str | None = None,
    role: Role = "llm",
    progress: ProgressSink = no_progress,
) -> Resolved:
    """The model at a place, every file pinned; raises as `resolve_hub` and `resolve_registry`.

    Args:
        text: `hf:...` or `oci:...`.
        access: Credentials, and what may be opened.
        catalog: Its names are not given to other models.
        name: What to call the model; derived from `text` where None.
        role: What it is for.
        progress: Told of files that are read for their digest.
    """
    if name is not None:
        _check_free(name, catalog)
    place = _parse(text)
    if isinstance(place, HubName):
        resolved = resolve_hub(place, access, name=name, role=role, progress=progress)
    else:
        resolved = resolve_registry(place, access, name=name, role=role)
    _check_free(resolved.entry.name, catalog)
    return resolved


def installed_from(text: str, store: Store, name: str | None = None) -> Manifest:
    """The installed model that an earlier pull of this place brought, for when there is no network to ask again.

    Raises:
        InvalidRequest: `text` is no place.
        Offline: There is none, or the place names a commit or digest that is not the installed one.
    """
    place = _parse(text)
    for manifest in store.manifests():
        if name in {None, manifest.name} and _fits(place, manifest.source):
            return manifest
    raise Offline(text)


def _parse(text: str) -> HubName | RegistryName:
    return parse_hub_name(text) if text.startswith("hf:") else parse_registry_name(text)


def _fits(place: HubName | RegistryName, source: str) -> bool:
    before, _, after = source.partition("@")
    if isinstance(place, RegistryName):
        return before == f"oci:{place.host}/{place.repository}" and place.digest in {None, after}
    commit, _, file = after.partition("/")
    wanted = place.revision in {None, "main", commit} and place.file in {None, file}
    return before == f"hf:{place.repo}" and wanted and (place.quant is None or place.quant.lower() in file.lower())


def _check_free(name: str, catalog: Catalog) -> None:
    if reject_set_name(check_name(name)) in catalog.entries:
        raise InvalidRequest(f"{name!r} names a model of the catalog: choose another name with --name.", param="model")
