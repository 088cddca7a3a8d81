"""Whether a broker of ours still takes clients, asked now and then; one that does not is started again.

iotcore 0.4.0 (rumqttd 0.20) may lose the thread that routes messages when connections break in the middle of large deliveries.
Its process and its port stay, clients are cut off, and none gets in again. The messages do not rest on the broker, so a new one
in its place is all that is needed.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger

log = get_logger(__name__)

PAUSE_S = 30.0
"""Seldom: beside a client that came and went every two seconds, streams over links that were cut were lost more often."""
ANSWER_S = 5.0
_MISSES = 2
_AGAIN_S = 0.5  # after a question without an answer


def takes_clients(host: str, port: int, seconds: float = ANSWER_S) -> bool:
    """Whether the broker answers a client's CONNECT within so many seconds."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"check-{uuid.uuid4().hex}", protocol=paho.MQTTv5)
    client.connect_timeout = seconds
    answered = False

    def connected(*_: object) -> None:
        nonlocal answered
        answered = True

    client.on_connect = connected
    limit = time.monotonic() + seconds
    try:
        client.connect(host, port, keepalive=60)
        while not answered and time.monotonic() < limit and client.loop(0.2) == paho.MQTT_ERR_SUCCESS:
            pass
        client.disconnect()
        client.loop(0.2)
    except OSError:
        return False
    return answered


class BrokerWatch:
    """Asks from a thread of its own between `start` and `stop`.

    Args:
        restart: Ends the broker and starts it again; called after two questions without an answer.
        pause_s, answer_s: Between two questions, and for an answer.
    """

    def __init__(
        self,
        host: str,
        port: int,
        restart: Callable[[], None],
        *,
        pause_s: float = PAUSE_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._host, self._port = host, port
        self._restart = restart
        self._pause_s, self._answer_s = pause_s, answer_s
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self.restarts = 0

    def start(self) -> None:
        self._end.clear()
        self._thread = threading.Thread(target=self._watch, name="broker-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns once nothing is restarted any more."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _answers(self) -> bool:
        try:
            return takes_clients(self._host, self._port, self._answer_s)
        except Exception:  # a watch that ended by a fault would watch nothing, and nobody would know
            log.exception("broker_watch_failed")
            return True

    def _watch(self) -> None:
        missed = 0
        while not self._end.wait(min(self._pause_s, _AGAIN_S) if missed else self._pause_s):
            missed = 0 if self._answers() else missed + 1
            if missed < _MISSES or self._end.is_set():
                continue
            missed = 0
            self.restarts += 1
            log.error("broker_restarted", host=self._host, port=self._port, reason="it takes no clients any more")
            try:
                self._restart()
            except (OSError, RuntimeError, EdgewiseError) as error:
                log.error("broker_restart_failed", error=str(error))  # asked and tried again after the next pauses
