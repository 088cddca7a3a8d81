#!/usr/bin/env bash
# Checks that the system has what `make install` needs, installs what is missing through apt where it may, and otherwise
# names exactly what is missing and exits 1.
# usage: system_packages.sh PYTHON
set -euo pipefail
python=$1
missing=()

have_python() {
    command -v "$python" >/dev/null 2>&1 && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

have_venv() {
    "$python" -c 'import venv, ensurepip, ssl, sqlite3' 2>/dev/null
}

if ! command -v "$python" >/dev/null 2>&1; then
    missing+=(python3 python3-venv)
elif ! have_python; then
    echo "install: $python is $("$python" --version 2>&1), but Python 3.10 to 3.13 is needed." >&2
    echo "install: name another with 'make install PYTHON=python3.11'." >&2
    exit 1
elif ! have_venv; then
    missing+=("python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv")
fi
command -v curl >/dev/null 2>&1 || missing+=(curl)
[ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] || [ -n "${SSL_CERT_FILE:-}" ] ||
    missing+=(ca-certificates)
# The native kernels are compiled at installation (kernels/build_native.py).
case "${EDGEWISE_NO_NATIVE:-0}" in
    0) command -v "${CXX:-c++}" >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 ||
        missing+=(g++) ;;
esac

[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root=(sudo -n)
    else
        echo "install: missing system packages: ${missing[*]}" >&2
        echo "install: run 'sudo apt-get install ${missing[*]}' (or your system's equivalent), then 'make install' again." >&2
        exit 1
    fi
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "install: missing system packages: ${missing[*]}, and there is no apt-get here to install them with." >&2
    exit 1
fi
echo "install: installing system packages: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
if ! have_python || ! have_venv; then
    echo "install: ${missing[*]} installed, but '$python' still has no venv, ssl or sqlite3 module (a Python built without them?)." >&2
    exit 1
fi
