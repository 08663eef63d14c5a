"""Builds the wheel with everything that a user of PyTorch needs, installs it into a fresh environment of Python's, and uses it there.

usage: wheel_test.py BUILD [TEST...]      VERBENA_WHEEL=FILE: that wheel, instead of building one
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import stage

BUILD_LIMIT_S = 2400
LIBRARIES = ["libnccl-net-verbena.so", "libnccl-rma-verbena.so", "libverbena.so", "libverbena_ops.so"]
TOOLS = ["verbena-info", "verbena-perf", "verbena-coll", "verbena-symm", "nccl-perf"]


def leave(why):
    print(why)
    raise SystemExit(77)


def make_environment(folder):
    done = subprocess.run([sys.executable, "-m", "venv", folder], text=True, capture_output=True)
    if done.returncode != 0:
        leave(f"no venv: {done.stdout}{done.stderr}")
    return folder / "bin/python"


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="verbena-wheel."))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        given = os.environ.get("VERBENA_WHEEL")
        cls.wheel = pathlib.Path(given) if given else cls.build_wheel()
        cls.python = make_environment(cls.folder / "user")
        stage.run(cls.python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", cls.wheel)
        cls.package = next((cls.folder / "user/lib").glob("python*/site-packages/verbena"))

    @classmethod
    def build_wheel(cls):
        python = make_environment(cls.folder / "builder")
        if subprocess.run([python, "-m", "pip", "install", "--quiet", "scikit-build-core>=0.10"], capture_output=True).returncode != 0:
            leave("pip cannot fetch scikit-build-core")
        # Its compilations are the same as any build's of this tree.
        launcher = {f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache" for language in ("C", "CXX") if shutil.which("ccache")}
        stage.run(python, "-m", "pip", "wheel", stage.PROJECT, "--quiet", "--no-deps", "--no-build-isolation", "-w", cls.folder,
                  "-C", f"build-dir={cls.folder}/build", environment={**launcher, "CMAKE_GENERATOR": "Ninja"}, limit_s=BUILD_LIMIT_S)
        return next(cls.folder.glob("*.whl"))

    def test_one_file_for_every_python_3(self):
        self.assertRegex(self.wheel.name, r"^verbena-[\d.]+-py3-none-(many)?linux_.*\.whl$")

    def test_holds_libraries_tools_and_bitcode(self):
        names = zipfile.ZipFile(self.wheel).namelist()
        for library in LIBRARIES:
            self.assertIn(f"verbena/lib/{library}", names)
        for tool in TOOLS:
            self.assertIn(f"verbena/bin/{tool}", names)
        self.assertTrue([name for name in names if re.fullmatch(r"verbena/lib/(.*/)?libsoftverbs.*\.so.*|verbena/lib/softverbs/.*", name)], names)
        self.assertTrue([name for name in names if re.fullmatch(r"verbena/lib/bitcode/.*\.bc", name)])
        self.assertIn("verbena/integrations/vllm.py", names)

    def test_prints_the_two_variables(self):
        printed = stage.run(self.python, "-m", "verbena", environment={"LD_LIBRARY_PATH": "/somewhere"}, folder=self.folder)
        self.assertEqual(printed, f"export LD_LIBRARY_PATH={self.package}/lib:/somewhere\nexport NCCL_NET_PLUGIN=verbena\n")

    def test_libraries_load_from_where_they_are(self):
        script = ("import ctypes, verbena.finder as f\n"
                  "paths = [f.LibraryFinder.find_library(), f.LibraryFinder.find_ops_library(), f.LibraryFinder.find_device_library()]\n"
                  "[ctypes.CDLL(path) for path in paths[:2]]\n"
                  "print(*paths, sep='\\n')")
        for path in stage.run(self.python, "-c", script, folder=self.folder).split():
            self.assertTrue(pathlib.Path(path).resolve().is_relative_to(self.package.resolve()), path)
        stage.run(self.python, "-c", f"import ctypes; ctypes.CDLL('{self.package}/lib/libnccl-net-verbena.so')", folder=self.folder)

    def test_tools_run_from_where_they_are(self):
        for tool in TOOLS:
            self.assertIn(tool, stage.run(self.package / "bin" / tool, "--help", folder=self.folder))


if __name__ == "__main__":
    sys.argv.pop(1)
    unittest.main()
