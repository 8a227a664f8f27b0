# SPDX-License-Identifier: MIT
"""pip installs the package from the tree, without a network and without a compiler."""
import importlib
import os
import platform
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest

from conftest import TOP

TREE = os.path.join(TOP, "python")
WRITE = """
import gdrapi
with gdrapi.open() as gdr, gdr.alloc(4096) as memory, gdr.pin(memory) as buffer:
    buffer.write(b"installed")
    print(buffer.read(9).decode(), gdrapi.__file__)
    print([line.split()[-1] for line in open("/proc/self/maps") if "libgdrapi" in line][0])
"""
EDITABLE = "import site, sys; site.addsitedir(sys.argv[1]); import gdrapi; print(gdrapi.__file__)"


def build():
    """The build backend, as pip imports it."""
    sys.path.insert(0, TREE)
    try:
        return importlib.import_module("gdrapi_build")
    finally:
        sys.path.remove(TREE)


def test_what_is_installed_works(install, tmp_path):
    first, library = install("python", ["gdrapi/__init__.py", "gdrapi/libgdrapi.so.2", "gdrapi/py.typed"], WRITE)
    assert first.startswith("installed " + str(tmp_path))
    assert library == str(tmp_path / "site" / "gdrapi" / "libgdrapi.so.2")


def test_editable(tmp_path):
    made = build().build_editable(str(tmp_path))
    with zipfile.ZipFile(tmp_path / made) as files:
        files.extractall(tmp_path / "site")
    told = subprocess.run([sys.executable, "-c", EDITABLE, str(tmp_path / "site")], check=True, text=True,
                          stdout=subprocess.PIPE, cwd=str(tmp_path), env={**os.environ, "PYTHONPATH": ""})
    assert os.path.samefile(told.stdout.strip(), os.path.join(TREE, "gdrapi", "__init__.py"))


@pytest.mark.parametrize("needs, glibc", [([], 31), ([b"GLIBC_2.17"], 31), ([b"GLIBC_2.31"], 31), ([b"GLIBC_2.32"], 32),
                                          ([b"GLIBC_2.2.5 GLIBC_2.38 GLIBC_2.4", b"GLIBC_2.34"], 38)])
def test_the_tag_is_of_the_newest_symbol(needs, glibc):
    libraries = {str(n): b"\0" + text + b"\0" for n, text in enumerate(needs)}
    assert build()._platform(libraries) == "manylinux_2_%d_%s" % (glibc, platform.machine())


def test_the_same_files_give_the_same_wheel(tmp_path, monkeypatch):
    backend, wheels = build(), []
    (tmp_path / "libgdrapi.so.2.6").write_bytes(b"a library")  # whatever its name is
    monkeypatch.setenv("GDRAPI_LIBRARY", str(tmp_path / "libgdrapi.so.2.6"))
    for name in "one", "two":
        (tmp_path / name).mkdir()
        wheels.append(tmp_path / name / backend.build_wheel(str(tmp_path / name)))
        monkeypatch.setattr(time, "localtime", lambda *seconds: time.gmtime(1))
    assert wheels[0].name == wheels[1].name and wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as files:
        for entry in files.infolist():
            assert entry.date_time == (1980, 1, 1, 0, 0, 0)
            assert entry.external_attr == (0o755 if entry.filename.endswith(".so.2") else 0o644) << 16
            assert entry.compress_type == zipfile.ZIP_DEFLATED
        assert files.read("gdrapi/libgdrapi.so.2") == b"a library"
        assert b"Root-Is-Purelib: false\n" in files.read("gdrapi-2.6.0.dist-info/WHEEL")
        said, readme = files.read("gdrapi-2.6.0.dist-info/METADATA").decode().split("\n\n", 1)
        assert sorted(set(files.namelist())) == sorted(files.namelist())
    assert {"Name: gdrapi", "Version: 2.6.0", "License: MIT", "Description-Content-Type: text/markdown",
            "Requires-Python: " + backend._field("requires-python"), "Summary: " + backend._field("description")} < set(said.splitlines())
    with open(os.path.join(TREE, "README.md")) as file:
        assert readme == file.read()


def test_a_library_beside_the_one_that_is_asked_for(tmp_path, monkeypatch):
    """vkgdr's package carries two; both, or none."""
    backend, both = build(), {"libvkgdr.so": b"vkgdr", "libgdrapi.so.2": b"gdrapi"}
    monkeypatch.setattr(backend, "_text", lambda name: 'libraries = ["../build/libvkgdr.so", "../build/libgdrapi.so.2"]')
    monkeypatch.setattr(backend, "HERE", str(tmp_path / "python"))
    monkeypatch.setenv("GDRAPI_LIBRARY", str(tmp_path / "mine.so"))
    (tmp_path / "mine.so").write_bytes(b"gdrapi")
    with pytest.raises(SystemExit, match="mine.so: .*libvkgdr.so is not there"):
        backend._libraries()
    (tmp_path / "libvkgdr.so").write_bytes(b"vkgdr")
    assert backend._libraries() == both
    (tmp_path / "mine.so").unlink()
    with pytest.raises(SystemExit, match="mine.so: .*mine.so is not there"):
        backend._libraries()
    monkeypatch.delenv("GDRAPI_LIBRARY")
    (tmp_path / "python").mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "libvkgdr.so").write_bytes(b"vkgdr")
    assert backend._libraries() == {}
    (tmp_path / "build" / "libgdrapi.so.2").write_bytes(b"gdrapi")
    assert backend._libraries() == both
    monkeypatch.setattr(backend, "_text", lambda name: "")
    assert backend._libraries() == {}


def test_sources_without_a_library(tmp_path):
    with tarfile.open(tmp_path / build().build_sdist(str(tmp_path))) as sources:
        assert all(entry.mode == 0o644 and entry.name.startswith("gdrapi-2.6.0/") for entry in sources)
        names = [os.path.relpath(name, "gdrapi-2.6.0") for name in sources.getnames()]
        assert set(names) >= {"gdrapi/__init__.py", "gdrapi/py.typed", "pyproject.toml", "README.md", "gdrapi_build.py", "PKG-INFO"}
        assert not [name for name in names if ".so" in name]
        sources.extractall(tmp_path)
    program = "import gdrapi_build; print(gdrapi_build.build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", program], check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          cwd=str(tmp_path / "gdrapi-2.6.0"))
    assert done.stdout == "gdrapi-2.6.0-py3-none-any.whl\n" and "no library: run make first" in done.stderr
    with zipfile.ZipFile(tmp_path / "gdrapi-2.6.0" / "gdrapi-2.6.0-py3-none-any.whl") as files:
        assert b"Root-Is-Purelib: true\n" in files.read("gdrapi-2.6.0.dist-info/WHEEL")
        modules = [name for name in os.listdir(os.path.join(TREE, "gdrapi")) if name.endswith((".py", "py.typed"))]
        assert [name.split("/")[1] for name in files.namelist() if name.startswith("gdrapi/")] == sorted(modules)
