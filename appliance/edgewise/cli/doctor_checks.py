"""What `edgewise doctor` runs: the machine's checks, the configuration, the models, and torch in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgewise.cli.install_plan import UNIT
from edgewise.core.checks import (
    Check,
    check_clock,
    check_memory,
    check_port,
    check_python,
    check_state_folder,
    check_systemd,
)
from edgewise.core.clock import SystemClock
from edgewise.core.errors import ConfigError, EdgewiseError
from edgewise.core.python import module_command
from edgewise.core.settings import LoadedSettings, Settings, load_settings
from edgewise.core.sizes import gib
from edgewise.edge.enrol.folder import with_enrolment
from edgewise.edge.offload.doctor import check_broker, check_cloud, check_peer
from edgewise.engine.devices.shares import share_of
from edgewise.engine.weight_choice import FP8_CAPABILITY
from edgewise.kernels.native import library
from edgewise.kernels.tuned import Place, records
from edgewise.models.longtail.estimate import read_network
from edgewise.models.store import Store
from edgewise.security.tls import check_tls
from edgewise.serving.ladders import hearing_ladder

_TORCH_TIMEOUT_S = 180.0
_NVIDIA_NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu")


def run_checks(config: Path | None) -> Iterator[Check]:
    """All checks, one after the other. A bad configuration is reported, and the rest is checked with the defaults."""
    yield check_python()
    yield check_clock(SystemClock())
    settings = Settings()
    try:
        loaded = with_enrolment(load_settings(config))
    except EdgewiseError as error:
        yield Check("configuration", "fail", error.message, "mend it; the checks below use the defaults")
    else:
        settings = loaded.settings
        yield Check("configuration", "ok", _configuration_text(loaded))
    yield check_memory()
    yield check_state_folder(settings.home)
    yield check_port(settings.host, settings.port, tls=settings.tls.cert is not None)
    yield check_certificate(settings)
    yield check_model(settings)
    yield from check_cloud(settings)
    yield from check_peer(settings)
    yield from check_broker(settings)
    yield check_native(settings)
    report = probe_torch()
    yield from check_torch(report)
    yield from check_hearing(settings, report)
    yield from check_kernels(settings, report)
    if settings.engine.devices > 1:
        yield check_devices(settings, report)
    yield check_systemd(UNIT)


def _configuration_text(loaded: LoadedSettings) -> str:
    changed = sum(origin != "default" for origin in loaded.origins.values())
    return f"{loaded.file or 'no file'}; {changed} of {len(loaded.origins)} settings are not at their default"


def check_certificate(settings: Settings) -> Check:
    try:
        files = check_tls(settings.tls.cert, settings.tls.key)
    except EdgewiseError as error:
        return Check(
            "tls", "fail", error.message, "give a valid certificate and key, or remove both from the configuration"
        )
    if files is None:
        detail = "not configured: plain HTTP" + ("" if settings.loopback else f" on {settings.host}")
        remedy = "" if settings.loopback else "set tls.cert and tls.key: API keys now cross the network in the clear"
        return Check("tls", "ok" if settings.loopback else "warn", detail, remedy)
    if files.warnings:
        return Check("tls", "warn", "; ".join(files.warnings), "renew the certificate and protect its key")
    return Check("tls", "ok", f"valid until {files.not_after:%Y-%m-%d}")


def check_model(settings: Settings) -> Check:
    """Whether the configured model is in the store, whole as far as its files' sizes say."""
    try:
        files = Store(settings.home / "models").resolve(settings.model)
    except EdgewiseError as error:
        return Check("model", "fail", error.message, f"`edgewise models pull {settings.model}`")
    return Check("model", "ok", f"{settings.model}: {files.name} ({files.format}), {len(files.paths)} file(s)")


def check_hearing(settings: Settings, report: Mapping[str, Any]) -> Iterator[Check]:
    """Of each model that hears, whether the quickest form of its encoder is known here."""
    store = Store(settings.home / "models")
    card = settings.engine.device != "cpu" and bool(report.get("cuda", {"devices": []})["devices"])
    for manifest in store.manifests():
        if manifest.info.role == "speech-to-text":
            found = hearing_ladder(settings, store, manifest, card=card)
            yield Check("hearing", "warn" if found.remedy else "ok", f"{manifest.name}: {found.detail}", found.remedy)


def check_native(settings: Settings) -> Check:
    """Whether the native kernels can compute here; without them auto computes with PyTorch, and native starts no engine."""
    missing = library.why_not()
    if missing is None:
        asked = settings.engine.kernels
        return Check("native kernels", "ok", f"{library.isa()}; engine.kernels is {asked}")
    needed = settings.engine.kernels == "native"
    detail = (
        missing
        if needed
        else f"{missing}; engine.kernels = {settings.engine.kernels} computes with PyTorch, far slower"
    )
    remedy = "install g++ and edgewise again, or set engine.kernels = reference"
    return Check("native kernels", "fail" if needed else "warn", detail, remedy)


def probe_torch(module: str = "edgewise.cli.torch_probe") -> Mapping[str, Any]:
    """The probe's report, or {"failure": what happened to it}."""
    command = module_command(module)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TORCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"failure": f"no result after {_TORCH_TIMEOUT_S:.0f} s"}
    if done.returncode < 0:
        return {"failure": f"it was ended by {signal.Signals(-done.returncode).name}"}
    if done.returncode > 0:
        return {"failure": (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]}
    report: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def check_torch(report: Mapping[str, Any]) -> Iterator[Check]:
    """One check of torch and one for each back end."""
    if "failure" in report:
        remedy = "install a torch that suits this machine; `python -m edgewise.cli.torch_probe` shows the whole error"
        yield Check("torch", "fail", str(report["failure"]), remedy)
        return
    yield Check("torch", "ok", f"torch {report['torch']}")
    yield _check_cpu(report["cpu"])
    yield from _check_cuda(report["cuda"])


def check_kernels(settings: Settings, report: Mapping[str, Any]) -> Iterator[Check]:
    """How kernels are launched on a GPU that Triton's kernels compute on; nothing where there is none."""
    devices = report.get("cuda", {"devices": []})["devices"]
    if not devices or settings.engine.device == "cpu" or settings.engine.kernels == "reference":
        return
    if devices[0]["place"] is None:  # no Triton
        return
    place = Place(**devices[0]["place"])
    kept = [record for record in records(settings.home / "kernels") if record.place.card == place.card]
    found = [record for record in kept if record.place == place]
    failed = [record for record in found if record.failed]
    if settings.engine.kernel_tuning == "off":
        yield Check("gpu kernels", "ok", "launched by defaults: engine.kernel_tuning is off")
    elif not found:
        later = settings.engine.kernel_tuning == "load"
        other = f" with this {', '.join(max(kept, key=lambda it: it.when).place.differs(place))}" if kept else ""
        detail = f"not measured on this card{other} yet: " + (
            "it is when a model is loaded" if later else "launched by defaults"
        )
        yield Check("gpu kernels", "ok" if later else "warn", detail, "" if later else "`edgewise kernels tune`")
    elif failed:
        detail = f"tuning failed, so defaults serve, which may be wrong: {failed[0].failed}"
        yield Check("gpu kernels", "fail", detail, "set engine.kernels = reference; `edgewise kernels show` says more")
    else:
        refused = sum(len(record.refused) for record in found)
        latest = max(record.when for record in found)
        detail = f"measured for {len(found)} shape(s), last {latest}; {refused} candidate(s) refused"
        yield Check("gpu kernels", "ok", detail, "`edgewise kernels show` says why" if refused else "")


def check_devices(settings: Settings, report: Mapping[str, Any]) -> Check:
    """Whether the devices that are to compute a model together are there, and whether the model can be divided among them."""
    count, cuda = settings.engine.devices, report.get("cuda", {"devices": []})
    on_gpus = settings.engine.device != "cpu" and bool(cuda["devices"])
    found = len(cuda["devices"])
    detail = f"engine.tensor_parallel = {count}: " + (
        f"{found} GPU(s) are there" if on_gpus else "processes on the CPU"
    )
    remedy = f"set engine.tensor_parallel to {found} at most, or have more GPUs seen"
    if on_gpus and found < count:
        return Check("devices", "fail", detail, remedy)
    try:
        share_of(read_network(Store(settings.home / "models").resolve(settings.model)), count)
    except ConfigError as error:
        return Check(
            "devices", "fail", error.message, "set engine.tensor_parallel to a number that the message names, or to 1"
        )
    except EdgewiseError as error:
        return Check(
            "devices", "warn", f"{detail}; the model cannot be looked at: {error.message}", "see the check of the model"
        )
    if not on_gpus:
        return Check(
            "devices", "warn", detail, "that tries out what is meant for GPUs: one process on all threads is faster"
        )
    return Check("devices", "ok", detail)


def _check_cpu(cpu: Mapping[str, Any]) -> Check:
    bf16 = "native bfloat16" if cpu["bf16_native"] else "bfloat16 only emulated"
    detail = f"{cpu['capability']}, {cpu['threads']} thread(s), {bf16}; matmul differs from numpy by {cpu['error']:.1e}"
    if not cpu["ok"]:
        return Check("cpu kernel", "fail", detail, "this torch computes wrongly here: install another build")
    return Check("cpu kernel", "ok", detail)


def _check_cuda(cuda: Mapping[str, Any]) -> Iterator[Check]:
    if not cuda["available"]:
        detail = f"no CUDA: {cuda['reason']}; the engine uses the CPU"
        if any(Path(node).exists() for node in _NVIDIA_NODES):
            yield Check("cuda kernel", "warn", f"{detail}, although this machine has an NVIDIA device", _CUDA_REMEDY)
        else:
            yield Check("cuda kernel", "ok", detail)
    for device in cuda["devices"]:
        bf16 = "native bfloat16" if device["bf16_native"] else "no native bfloat16"
        known = tuple(int(part) for part in device["capability"].split("."))
        fp8 = "fp8" if known >= FP8_CAPABILITY else f"no fp8 (it comes with {'.'.join(map(str, FP8_CAPABILITY))})"
        free, total = gib(device["free_bytes"]), gib(device["total_bytes"])
        text = f"{device['name']}, capability {device['capability']}, {free} of {total} free, {bf16}, {fp8}"
        detail = f"{text}; matmul differs from numpy by {device['error']:.1e}"
        if device["ok"]:
            yield Check("cuda kernel", "ok", detail)
        else:
            yield Check(
                "cuda kernel", "fail", detail, "this GPU computes wrongly: update its driver, or set engine.device=cpu"
            )


_CUDA_REMEDY = "install the driver and a torch built for its CUDA version (on a Jetson: NVIDIA's own build)"
