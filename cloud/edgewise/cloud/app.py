"""The cloud engine's composition root: what a service is extended with to take jobs."""

from __future__ import annotations

from collections.abc import Sequence

from edgewise.api.deps import ApiDependencies
from edgewise.core.settings import LoadedSettings, Settings
from edgewise.serving import service
from edgewise.serving.service import Part


def serve(loaded: LoadedSettings) -> int:
    """Run the cloud engine until a stop signal; see `serving.service.serve`."""
    return service.serve(loaded, cloud_parts)


def cloud_parts(settings: Settings, deps: ApiDependencies) -> Sequence[Part]:
    """Intake, job table and workers."""
    del settings, deps
    return ()
