from __future__ import annotations

from edgewise.core.sizes import file_size, gib, mib


def test_memory_is_binary_and_files_are_decimal() -> None:
    assert mib(512 * 2**20) == "512.0 MiB"
    assert gib(3 * 2**29) == "1.5 GiB"
    assert file_size(700) == "0.7 kB"
    assert (file_size(98_362_432), file_size(1_240_000_000)) == ("98.4 MB", "1.24 GB")
