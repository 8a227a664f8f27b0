# SPDX-License-Identifier: MIT
"""recipes.py CHANNEL RECIPE VERSION SHA256 PREFIX - what a recipe of packaging/channels says.

Spack's and EasyBuild's are run as Python, with doubles of the names that those programs give
them; conda-forge's is loaded as YAML, Nix' is evaluated. The version and the checksum must be
those given. Prints the recipe's own steps as a shell script that installs into PREFIX.
"""
import json
import os
import re
import shlex
import subprocess
import sys
import types


class Steps:
    """What a recipe came to: its facts, and the lines of its build."""

    def __init__(self, version, sha256, url, lines):
        self.version, self.sha256, self.url, self.lines = version, sha256, url, lines


def spack(path, prefix):
    """The class, made by a double of spack.package; its three phases."""
    said, env, lines = {}, {}, []

    def directive(name):
        return lambda *args, **kw: said.setdefault(name, []).append((args, kw))

    def make(*args, parallel):
        assert parallel is False
        lines.append("make " + " ".join(map(shlex.quote, args)))

    package = types.ModuleType("spack.package")
    for name in ("version", "depends_on", "provides", "requires", "license"):
        setattr(package, name, directive(name))
    package.MakefilePackage = type("MakefilePackage", (), {})
    package.make, package.join_path = make, os.path.join
    sys.modules["spack"], sys.modules["spack.package"] = types.ModuleType("spack"), package
    scope = {}
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), scope)
    recipe = scope["Gdrapi"]()
    recipe.stage = types.SimpleNamespace(path=os.path.dirname(prefix))
    recipe.setup_build_environment(types.SimpleNamespace(set=env.__setitem__))
    for phase in (recipe.edit, recipe.build, recipe.install):
        phase(None, prefix)
    (version,), how = said["version"][0]
    assert said["provides"] == [(("gdrcopy@%s" % ".".join(version.split(".")[:2]),), {})], said["provides"]
    assert any(args[0].startswith("go@") for args, kw in said["depends_on"]), said["depends_on"]
    exports = ["export %s=%s" % (name, shlex.quote(value)) for name, value in env.items()]
    return Steps(version, how["sha256"], recipe.url, exports + lines)


def easybuild(path, prefix):
    """The variables of the file, whose templates EasyBuild fills in."""
    scope = {"SYSTEM": {"name": "system", "version": "system"}, "SHLIB_EXT": "so"}
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), scope)
    assert scope["easyblock"] == "ConfigureMake" and scope["skipsteps"] == ["configure"]
    name = "%s-%s%s.eb" % (scope["name"], scope["version"], scope["versionsuffix"])
    assert os.path.basename(path) == name, name
    fill = {"installdir": prefix, "builddir": os.path.dirname(prefix), "version": scope["version"]}
    lines = [(scope["prebuildopts"] + "make " + scope["buildopts"]) % fill,
             (scope["preinstallopts"] + "make install " + scope["installopts"]) % fill]
    lines += ["test -e %s" % shlex.quote(os.path.join(prefix, wanted)) for kind in ("files", "dirs")
              for wanted in scope["sanity_check_paths"][kind]]
    return Steps(scope["version"], scope["checksums"][0], scope["source_urls"][0] + "/" + scope["sources"][0] % fill, lines)


def conda_forge(path, prefix):
    """The YAML, whose ${{ }} stand for the context alone."""
    import yaml
    with open(path, encoding="utf-8") as file:
        recipe = yaml.safe_load(file)
    assert "${{ compiler('go-cgo') }}" in recipe["requirements"]["build"]
    version, script = recipe["context"]["version"], recipe["build"]["script"]
    lines = ["export PREFIX=%s" % shlex.quote(prefix), "PATH=$PREFIX/bin:$PATH"]
    lines += ["export %s=%s" % (name, shlex.quote(value)) for name, value in script["env"].items()]
    for name in recipe["about"]["license_file"]:
        lines.append("test -s %s" % shlex.quote(name))
    lines += script["content"] + recipe["tests"][0]["script"]
    return Steps(version, recipe["source"]["sha256"], recipe["source"]["url"].replace("${{ version }}", version), lines)


def nix(path, prefix):
    """The attributes of the derivation, by a mkDerivation that returns them."""
    text = """let r = import %s { lib.licenses = { mit = "MIT"; asl20 = "Apache-2.0"; bsd3 = "BSD-3-Clause"; };
        stdenv.mkDerivation = a: a; fetchurl = a: a; go = "go"; }; in r""" % path
    state = os.path.join(os.path.dirname(prefix), "nix")
    env = dict(os.environ, NIX_STATE_DIR=state, NIX_STORE_DIR=state + "/store", NIX_LOG_DIR=state, NIX_CONF_DIR=state,
               HOME=state)
    said = subprocess.run(["nix-instantiate", "--eval", "--strict", "--json", "-E", text], env=env, check=True,
                          stdout=subprocess.PIPE).stdout
    recipe = json.loads(said)
    assert recipe["nativeBuildInputs"] == ["go"]
    out = [flag.replace("$(out)", prefix) for flag in recipe["buildFlags"]]
    install = [flag.replace("$(out)", prefix) for flag in recipe["installFlags"]]
    lines = ["export TMPDIR=%s" % shlex.quote(os.path.dirname(prefix)), recipe["preBuild"].strip(),
             "make " + " ".join(map(shlex.quote, out)), "make install " + " ".join(map(shlex.quote, install))]
    return Steps(recipe["version"], recipe["src"]["sha256"], recipe["src"]["url"], lines)


def main(channel, path, version, sha256, prefix):
    steps = {"spack": spack, "easybuild": easybuild, "conda-forge": conda_forge, "nix": nix}[channel](path, prefix)
    with open(path, encoding="utf-8") as file:
        left = re.findall("@[A-Z0-9_]+@", file.read())
    assert not left, left
    assert steps.version == version, steps.version
    assert steps.sha256 == sha256, steps.sha256
    assert steps.url.endswith("/gdrapi-%s.tar.xz" % version), steps.url
    print("\n".join(["set -eu"] + steps.lines))


main(*sys.argv[1:])
