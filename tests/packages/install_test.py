"""What `cmake --install` makes: complete, found by CMake and pkg-config, and at work from wherever it is moved.

usage: install_test.py BUILD [TEST...]
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import stage

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
CONSUMER = stage.PROJECT / "tests/packages/consumer"
VERSION = re.search(r"VERSION ([0-9.]+)", (stage.PROJECT / "CMakeLists.txt").read_text().split("project(")[1])[1]


class ContainerTest(unittest.TestCase):
    def test_part_of_another_project(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            stage.run("cmake", "-S", CONSUMER, "-B", build, "-G", "Ninja", f"-DVERBENA_SOURCE={stage.PROJECT}",
                      "-DVERBENA_TOOLS=ON", "-DBUILD_TESTING=ON", "-DVERBENA_EXAMPLES=ON")
            commands = json.loads((build / "compile_commands.json").read_text())
            folders = {path for command in commands for path in re.findall(r"-I(/\S+)", command["command"])}
            self.assertIn(str(stage.PROJECT / "plugin"), folders)
            self.assertEqual({path for path in folders if path.startswith(str(CONSUMER))}, set())
            host = next(command["command"] for command in commands if command["file"] == str(CONSUMER / "host.c"))
            self.assertIn(f"-I{stage.PROJECT}/include", host)
            self.assertEqual({path.name for path in build.iterdir()} & {"bin", "lib", "CPackConfig.cmake"}, set())


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.folder.name)
        # Through DESTDIR and to an odd place, then moved away from it: no path of then may matter.
        stage.install(BUILD, "/opt/some where", environment={"DESTDIR": str(root / "staged")})
        cls.prefix = root / "moved here"
        shutil.move(root / "staged/opt/some where", cls.prefix)
        cls.left_behind = stage.list_files(root / "staged")
        cls.libraries = stage.find_libraries(cls.prefix)
        cls.scratch = root

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_everything_goes_below_the_prefix(self):
        self.assertEqual(self.left_behind, set())

    def test_names_that_others_open(self):
        for name in ("libnccl-net.so", "libnccl-net-verbena.so", "libverbena.so", "softverbs/libibverbs.so.1",
                     "softverbs/libibverbs.so", "softverbs/tuning.json", "softverbs/softverbs-copier"):
            self.assertTrue((self.libraries / name).exists(), name)
        self.assertTrue(os.access(self.libraries / "softverbs/softverbs-copier", os.X_OK))
        self.assertTrue((self.libraries / "libnccl-net.so").samefile(self.libraries / "libnccl-net-verbena.so"))
        self.assertEqual((self.libraries / "libverbena.so").resolve().name, f"libverbena.so.{VERSION}")
        bitcode = {path.name for path in (BUILD / "lib/bitcode").glob("*.bc")}
        self.assertEqual({path.name for path in (self.libraries / "bitcode").glob("*")}, bitcode)

    def test_all_headers(self):
        there = {name for name in stage.list_files(stage.PROJECT / "include") if not name.endswith(".md")}
        self.assertEqual(stage.list_files(self.prefix / "include"), there)

    def test_no_path_of_the_build_is_searched(self):
        for path in self.prefix.rglob("*"):
            if not stage.is_elf(path):
                continue
            said = stage.run("readelf", "-d", path)
            for found in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", said):
                self.assertTrue(all(part.startswith("$ORIGIN") for part in found.split(":")), f"{path.name}: {found}")

    def test_tools_tell_the_version(self):
        tools = sorted(path for path in (self.prefix / "bin").iterdir())
        self.assertIn("verbena-perf", [tool.name for tool in tools])
        for tool in tools:
            self.assertEqual(stage.run(tool, "--version").strip(), f"{tool.name} {VERSION}")

    def test_the_tool_finds_the_plugin_and_the_plugin_its_device(self):
        said = stage.run(self.prefix / "bin/verbena-perf", "--sizes", "64k", "--iters", "20", "--json", "--verbose",
                         environment={"VERBENA_IBVERBS_LIB": "softverbs"}, folder="/")
        self.assertIn(f"{self.libraries}/softverbs/tuning.json", said)
        self.assertIn('"wrong_bytes": 0', said)

    def test_python_finds_the_libraries(self):
        program = ("import importlib.metadata, verbena.finder as f; print(f.LibraryFinder.find_library());"
                   "print(importlib.metadata.version('verbena'))")
        packages = next(self.prefix.glob("lib/python3*/*-packages"))
        said = stage.run(sys.executable, "-B", "-c", program, folder="/", environment={"PYTHONPATH": str(packages)})
        library, version = said.splitlines()
        self.assertEqual(pathlib.Path(library), self.libraries / "libverbena.so")
        self.assertEqual(version, VERSION)

    def test_find_package(self):
        build = self.scratch / "consumer"
        stage.run("cmake", "-S", CONSUMER, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        stage.run("cmake", "--build", build)
        self.assertIn("C: a window of 4096 bytes", stage.run(build / "host_c"))
        self.assertIn("C++: a window of 4096 bytes", stage.run(build / "host_cc"))
        version, plugin, libraries, bitcode = (build / "found.txt").read_text().splitlines()
        self.assertEqual(version, VERSION)
        self.assertEqual(pathlib.Path(plugin), self.libraries / "libnccl-net-verbena.so")
        self.assertEqual(pathlib.Path(libraries), self.libraries)
        self.assertEqual(pathlib.Path(bitcode) if bitcode else None,
                         self.libraries / "bitcode" if (BUILD / "lib/bitcode").exists() else None)
        if (build / "kernel.ll").exists():
            self.assertIn("nvptx64", (build / "kernel.ll").read_text())

    def test_find_package_refuses_what_does_not_fit(self):
        major, minor, _ = map(int, VERSION.split("."))
        # Before 1.0 an older minor release is no more of a match than a newer one.
        others = [f"{major}.{minor + 1}", f"{major + 1}.0"] + ([f"{major}.{minor - 1}"] if not major and minor else [])
        for wanted in others:
            script = self.scratch / "refused/CMakeLists.txt"
            script.parent.mkdir(exist_ok=True)
            script.write_text("cmake_minimum_required(VERSION 3.25)\nproject(refused LANGUAGES C)\n"
                              f"find_package(verbena {wanted} REQUIRED)\n")
            done = subprocess.run(["cmake", "-S", script.parent, "-B", script.parent / "build",
                                   f"-DCMAKE_PREFIX_PATH={self.prefix}"], capture_output=True, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"version: {VERSION}", done.stderr)

    @unittest.skipIf(stage.find_missing("pkg-config"), "no pkg-config")
    def test_pkg_config(self):
        environment = {"PKG_CONFIG_PATH": str(self.libraries / "pkgconfig")}
        self.assertEqual(stage.run("pkg-config", "--modversion", "verbena", environment=environment).strip(), VERSION)
        flags = stage.run("pkg-config", "--cflags", "--libs", "verbena", environment=environment)
        program = self.scratch / "by_pkg_config"
        # A shell takes the spaces in the path apart as pkg-config has marked them.
        stage.run("sh", "-c", f'cc -o "{program}" "{CONSUMER}/host.c" {flags}')
        said = stage.run(program, environment={"LD_LIBRARY_PATH": str(self.libraries)})
        self.assertIn("C: a window of 4096 bytes", said)


if __name__ == "__main__":
    unittest.main()
