"""A broker that has stopped answering, and still holds its port, is found out and started again."""

from __future__ import annotations

import os
import signal
import threading
import time

import psutil

from edgewise.wire.mqtt.broker_watch import BrokerWatch, takes_clients
from tests.e2e.broker import iotcore_broker


def test_a_broker_that_takes_no_clients_is_started_again() -> None:
    restarted = threading.Event()
    with iotcore_broker() as broker:

        def restart() -> None:
            broker.kill()
            broker.start()
            restarted.set()

        watch = BrokerWatch(broker.host, broker.port, restart, pause_s=0.05, answer_s=0.5)
        assert takes_clients(broker.host, broker.port)
        assert broker.process is not None
        os.kill(broker.process.pid, signal.SIGSTOP)
        while psutil.Process(broker.process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        assert not takes_clients(broker.host, broker.port, 0.5)
        watch.start()
        assert restarted.wait(60)
        watch.stop()
        assert takes_clients(broker.host, broker.port)


def test_a_broker_that_answers_is_left_alone() -> None:
    with iotcore_broker() as broker:
        watch = BrokerWatch(broker.host, broker.port, lambda: None, pause_s=0.01)
        watch.start()
        for _ in range(5):
            assert takes_clients(broker.host, broker.port)
        watch.stop()
        assert watch.restarts == 0
