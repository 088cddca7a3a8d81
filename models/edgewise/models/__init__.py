"""Models: where they come from, how their files are read, and the networks themselves. Knows nothing of requests."""

import os

# Asked of ONNX Runtime before anything here imports it: from 1.32 on it else starts a thread that reports use to its maker, and
# keeps an identifier of the device in the home directory. A device tells nobody but its own fleet what it does.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
