"""What a job may ask: the routes that answer without a connection, by their paths."""

from __future__ import annotations

from edgewise.api.batches.endpoints import ENDPOINTS
from edgewise.api.deps import ApiDependencies
from edgewise.api.images.routes import GENERATIONS
from edgewise.api.images.unattended import PictureEndpoint
from edgewise.api.pipelines.routes import ROUTE as PIPELINES
from edgewise.api.pipelines.routes import pipelines_of
from edgewise.api.pipelines.unattended import PipelineEndpoint
from edgewise.api.unattended import Endpoint, TextEndpoint
from edgewise.core.errors import InvalidRequest


class Endpoints:
    """Text routes, pictures and pipelines."""

    def __init__(self, deps: ApiDependencies) -> None:
        self._fixed: dict[str, Endpoint] = {path: TextEndpoint(prepare) for path, prepare in ENDPOINTS.items()}
        self._fixed[GENERATIONS] = PictureEndpoint()
        self._pipelines = pipelines_of(deps)

    def find(self, url: str) -> Endpoint:
        """Raises `InvalidRequest` for a route that jobs may not ask; a pipeline is looked for when it is asked."""
        if url in self._fixed:
            return self._fixed[url]
        name = url.removeprefix(f"{PIPELINES}/")
        if name != url:
            return PipelineEndpoint(self._pipelines, name)
        known = ", ".join(sorted(self._fixed))
        raise InvalidRequest(f"'url' is '{url[:80]}': it must be {known} or {PIPELINES}/NAME.", param="url")
