# SPDX-License-Identifier: MIT
"""The build of a package: PEP 517 and PEP 660 with Python alone, no compiler and no network.

pyproject.toml beside this file names the package and, in tool.gdrapi_build, the libraries that a
wheel carries: where `make` leaves them, libgdrapi.so.2 last. GDRAPI_LIBRARY in the environment names
another libgdrapi.so.2; the others then lie beside it. Where one is missing the wheel has none, and
the package takes those that the dynamic loader finds.
"""
import base64
import hashlib
import io
import os
import platform
import re
import sys
import tarfile
import zipfile
from typing import Any, Dict, List, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
SONAME = "libgdrapi.so.2"


def _text(name: str) -> str:
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


def _field(name: str) -> str:
    found = re.search(r'^%s = "(.*)"$' % re.escape(name), _text("pyproject.toml"), re.M)
    assert found, name
    return found.group(1)


NAME = _field("name")


def _version() -> str:
    return _field("version")


def _libraries() -> Dict[str, bytes]:
    """The libraries to carry, by name: all of them, or none."""
    listed = re.search(r"^libraries = \[(.*)\]$", _text("pyproject.toml"), re.M)
    asked = os.environ.get("GDRAPI_LIBRARY")
    paths = [os.path.join(HERE, path) for path in re.findall(r'"([^"]+)"', listed.group(1) if listed else "")]
    if asked:
        paths = [os.path.join(os.path.dirname(asked), os.path.basename(path)) for path in paths[:-1]] + [asked]
    missing = [path for path in paths if not os.path.exists(path)]
    if asked and missing:
        raise SystemExit("GDRAPI_LIBRARY=%s: %s is not there" % (asked, missing[0]))
    found = {}
    for path in paths if not missing else []:
        with open(path, "rb") as file:
            found[SONAME if path == asked else os.path.basename(path)] = file.read()
    return found


def _platform(libraries: Dict[str, bytes]) -> str:
    """manylinux with the newest symbol version that a library needs of the C library; 2.31 is the oldest tried."""
    needs = max((int(n) for data in libraries.values() for n in re.findall(rb"GLIBC_2\.(\d+)", data)), default=0)
    return "manylinux_2_%d_%s" % (max(needs, 31), platform.machine())


def _metadata() -> str:
    return "\n".join([
        "Metadata-Version: 2.1",
        "Name: " + NAME,
        "Version: " + _version(),
        "Summary: " + _field("description"),
        "License: MIT",
        "Requires-Python: " + _field("requires-python"),
        "Description-Content-Type: text/markdown",
        "",
        _text("README.md"),
    ])


def _package() -> Dict[str, bytes]:
    """The package's own files."""
    files = {}
    for name in sorted(os.listdir(os.path.join(HERE, NAME))):
        if name.endswith(".py") or name == "py.typed":
            files["%s/%s" % (NAME, name)] = _text(os.path.join(NAME, name)).encode()
    return files


def _write_wheel(directory: str, files: Dict[str, bytes], tag: str) -> str:
    info = "%s-%s.dist-info" % (NAME, _version())
    files = dict(files)
    files[info + "/METADATA"] = _metadata().encode()
    pure = "true" if tag.endswith("any") else "false"
    files[info + "/WHEEL"] = ("Wheel-Version: 1.0\nGenerator: gdrapi_build\n"
                              "Root-Is-Purelib: %s\nTag: %s\n" % (pure, tag)).encode()
    record = ["%s,sha256=%s,%d" % (path, base64.urlsafe_b64encode(hashlib.sha256(data).digest())
                                   .rstrip(b"=").decode(), len(data)) for path, data in files.items()]
    record.append(info + "/RECORD,,")
    files[info + "/RECORD"] = ("\n".join(record) + "\n").encode()
    wheel = "%s-%s-%s.whl" % (NAME, _version(), tag)
    with zipfile.ZipFile(os.path.join(directory, wheel), "w", zipfile.ZIP_DEFLATED) as out:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))  # the same wheel each time
            entry.external_attr = (0o755 if ".so" in path else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, data)
    return wheel


def build_wheel(wheel_directory: str, config_settings: Any = None,
                metadata_directory: Optional[str] = None) -> str:
    """The wheel, with its libraries where there are any."""
    files, tag, libraries = _package(), "py3-none-any", _libraries()
    if libraries:
        files.update(("%s/%s" % (NAME, name), data) for name, data in libraries.items())
        tag = "py3-none-" + _platform(libraries)
    else:
        print("gdrapi_build: no library: run make first, or set GDRAPI_LIBRARY", file=sys.stderr)
    return _write_wheel(wheel_directory, files, tag)


def build_editable(wheel_directory: str, config_settings: Any = None,
                   metadata_directory: Optional[str] = None) -> str:
    """A wheel that leads to this folder. The dynamic loader finds the library."""
    return _write_wheel(wheel_directory, {NAME + ".pth": (HERE + "\n").encode()}, "py3-none-any")


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """The sources, without a library."""
    root = "%s-%s" % (NAME, _version())
    files = _package()
    for name in ("pyproject.toml", "README.md", "gdrapi_build.py"):
        files[name] = _text(name).encode()
    files["PKG-INFO"] = _metadata().encode()
    with tarfile.open(os.path.join(sdist_directory, root + ".tar.gz"), "w:gz") as out:
        for name, data in files.items():
            entry = tarfile.TarInfo("%s/%s" % (root, name))
            entry.size, entry.mode = len(data), 0o644
            out.addfile(entry, io.BytesIO(data))
    return root + ".tar.gz"


def get_requires_for_build_wheel(config_settings: Any = None) -> List[str]:
    """Nothing."""
    return []


get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel
