"""A process whose wall clock is years off, for all of it (OpenSSL too): a library that is loaded before the C library's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_OFFSET = "EDGEWISE_TEST_CLOCK_OFFSET_S"
_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset(void) {
    const char *text = getenv("EDGEWISE_TEST_CLOCK_OFFSET_S");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, ts);
    if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) ts->tv_sec += offset();
    return result;
}

time_t time(time_t *out) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (out) *out = ts.tv_sec;
    return ts.tv_sec;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    struct timespec ts;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &ts);
    if (!result && tv) { tv->tv_sec = ts.tv_sec; tv->tv_usec = ts.tv_nsec / 1000; }
    return result;
}
"""


def shifted(folder: Path, years: float) -> dict[str, str]:
    """The environment of a process whose clock is `years` ahead; skips the test where there is no C compiler.

    Args:
        folder: For the library.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = folder / "clock.so"
    if not library.exists():
        source = folder / "clock.c"
        source.write_text(_SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return {**os.environ, "LD_PRELOAD": str(library), _OFFSET: f"{years * 365 * 86_400:.0f}"}
