# SPDX-License-Identifier: MIT
"""pip installs the package from the tree, without a network and without a compiler."""
import importlib
import os
import subprocess
import sys
import zipfile

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.join(HERE, os.pardir, os.pardir, "python")
BUILT = os.path.join(TREE, os.pardir, "build", "libgdrapi.so.2")
WRITE = """
import gdrapi
with gdrapi.open() as gdr, gdr.alloc(4096) as memory, gdr.pin(memory) as buffer:
    buffer.write(b"installed")
    print(buffer.read(9).decode(), gdrapi.__file__)
    print([line.split()[-1] for line in open("/proc/self/maps") if "libgdrapi" in line][0])
"""
EDITABLE = "import site, sys; site.addsitedir(sys.argv[1]); import gdrapi; print(gdrapi.__file__)"


def pip(*arguments, **environment):
    subprocess.run([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments],
                   check=True, env={**os.environ, "PIP_NO_INDEX": "1", **environment})


def build():
    """The build backend, as pip imports it."""
    sys.path.insert(0, TREE)
    try:
        return importlib.import_module("gdrapi_build")
    finally:
        sys.path.remove(TREE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "-w", str(folder), TREE)
    (made,) = folder.iterdir()
    return made


def test_the_wheel_has_the_library(wheel):
    assert "-py3-none-manylinux_2_" in wheel.name
    with zipfile.ZipFile(wheel) as files:
        with open(BUILT, "rb") as library:
            assert files.read("gdrapi/libgdrapi.so.2") == library.read()
        names = set(files.namelist())
    assert {"gdrapi/__init__.py", "gdrapi/vkgdr.py", "gdrapi/py.typed"} <= names


def test_what_is_installed_works(wheel, tmp_path):
    pip("install", "--target", str(tmp_path / "site"), str(wheel))
    # The doubles alone are where the loader looks.
    doubles = os.pathsep.join(path for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
                              if not os.path.exists(os.path.join(path, "libgdrapi.so.2")))
    done = subprocess.run([sys.executable, "-c", WRITE], check=True, stdout=subprocess.PIPE, text=True,
                          cwd=str(tmp_path), env={**os.environ, "LD_LIBRARY_PATH": doubles,
                                                  "PYTHONPATH": str(tmp_path / "site")})
    first, library = done.stdout.splitlines()
    assert first.startswith("installed " + str(tmp_path))
    assert library == str(tmp_path / "site" / "gdrapi" / "libgdrapi.so.2")


def test_editable(tmp_path):
    made = build().build_editable(str(tmp_path))
    with zipfile.ZipFile(tmp_path / made) as files:
        files.extractall(tmp_path / "site")
    told = subprocess.run([sys.executable, "-c", EDITABLE, str(tmp_path / "site")], check=True, text=True,
                          stdout=subprocess.PIPE, cwd=str(tmp_path), env={**os.environ, "PYTHONPATH": ""})
    assert os.path.samefile(told.stdout.strip(), os.path.join(TREE, "gdrapi", "__init__.py"))


def test_a_library_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("GDRAPI_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(SystemExit):
        build().build_wheel(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_sources_without_a_library(tmp_path):
    made = build().build_sdist(str(tmp_path))
    subprocess.run(["tar", "xf", made], check=True, cwd=str(tmp_path))
    pip("wheel", "--no-deps", "-w", str(tmp_path / "out"), str(tmp_path / made[:-len(".tar.gz")]))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["gdrapi-2.6.0-py3-none-any.whl"]
