"""The process that climbs an encoder's ladder, but at ordinary priority: a test waits for it, however busy the machine is."""

from __future__ import annotations

import sys

from edgewise.models.encoders import build

if __name__ == "__main__":
    build._NICEST = 0  # type: ignore[misc]  # tests alone may
    sys.exit(build.main())
