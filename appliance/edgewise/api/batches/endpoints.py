"""What a batch may ask: the text routes, by their paths."""

from __future__ import annotations

from collections.abc import Mapping

from edgewise.api.generate import Prepare
from edgewise.api.responses_api.routes import RESPONSES, prepare_response
from edgewise.api.routes_v1 import CHAT, COMPLETIONS, prepare_chat, prepare_completion

ENDPOINTS: Mapping[str, Prepare] = {
    CHAT: prepare_chat,
    COMPLETIONS: prepare_completion,
    RESPONSES: prepare_response,
}
