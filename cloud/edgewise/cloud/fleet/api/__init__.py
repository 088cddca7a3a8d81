"""The fleet's REST API below /fleet/v1: all that it can do, for programs, the command line and devices that enrol."""
