"""Settings of voice sessions."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from edgewise.core.settings_types import Bytes, Seconds, Section


class VoiceSettings(Section):
    """Conversations in speech over /v1/realtime."""

    max_sessions: PositiveInt = Field(
        default=8, description="Sessions that are open together; one more is answered 429."
    )
    max_session_s: Seconds = Field(default=3600.0, description="A session that lasts longer is ended.")
    max_turn_s: Seconds = Field(
        default=60.0, description="Longest turn of a speaker in seconds; a longer one is ended there and answered."
    )
    max_message_bytes: Bytes = Field(
        default=4 * 2**20, description='Largest message of a client, e.g. "4 MiB"; a larger one is refused.'
    )
