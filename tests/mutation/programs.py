"""Test programs that are compiled with mutants in them, and what they say of one."""
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import threading
import time

from schemata import IDS

BUILD_LIMIT_S = 600
LEAST_LIMIT_S = 60  # of a run; more where the program takes longer without a mutant
LIMIT_FACTOR = 10
CUT_SHORT_LIMIT_S = 600  # of a run of a program that was not seen to its end
# With symbols, which the suppression of memory.cc needs.
TSAN = "exitcode=66 halt_on_error=1 print_full_thread_history=0"


class DoesNotBuild(Exception):
    pass


@dataclasses.dataclass
class Builder:
    """`copy` is where the sources with mutants are; it has the shape of the project, and what is not there is the project's."""
    root: pathlib.Path
    copy: pathlib.Path
    work: pathlib.Path
    compiler: list  # with a launcher such as ccache, if there is one
    flags: list
    shared: list  # (source, flags, folders) that all programs have, without mutants
    _shared_objects: list = dataclasses.field(default_factory=list)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def includes(self, folders):
        return [f"-I{base / folder}" for folder in folders for base in (self.copy, self.root) if (base / folder).is_dir()]

    def call(self, command):
        built = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=BUILD_LIMIT_S)
        if built.returncode != 0:
            raise DoesNotBuild(next((line for line in built.stderr.splitlines() if "error" in line), built.stderr[-2000:]))

    def compile(self, source, output, folders, flags=(), mutant=None):
        """An object; returns which sources with mutants are in it."""
        constant = [f"-DVERBENA_FAULT_BUILT={mutant.id}"] if mutant is not None and mutant.is_constant else []
        path = self.copy / source if (self.copy / source).exists() else self.root / source
        chosen = self.root / "tests/mutation/chosen.h"
        self.call([*self.compiler, *self.flags, *flags, *constant, "-w", "-MMD", "-include", chosen, *self.includes(folders), "-c", path,
                   "-o", output])
        made_of = output.with_suffix(".d").read_text(encoding="utf-8").split()
        return {name.removeprefix(f"{self.copy}/") for name in made_of if name.startswith(f"{self.copy}/")}

    def shared_objects(self):
        with self._lock:
            if not self._shared_objects:
                for source, flags, folders in [("tests/mutation/chosen.cc", ["-fno-sanitize=all"], []), *self.shared]:
                    output = self.work / "shared" / (source.replace("/", "_") + ".o")
                    output.parent.mkdir(parents=True, exist_ok=True)
                    self.call([*self.compiler, *self.flags, *flags, "-w", "-fPIC", *[f"-I{self.root / folder}" for folder in folders], "-c",
                               self.root / source, "-o", output])
                    self._shared_objects.append(output)
            return self._shared_objects


@dataclasses.dataclass
class Program:
    name: str
    sources: list
    folders: list  # to include from, in the project
    links: list
    arguments: list = dataclasses.field(default_factory=list)
    environment: dict = dataclasses.field(default_factory=dict)
    flags: list = dataclasses.field(default_factory=list)
    launcher: list = dataclasses.field(default_factory=list)
    passes_by: tuple = ()  # gtest's exit status says it
    memory_bytes: int = 0  # that it may have: a fault may make it go on for ever; 0: any
    seconds: float = 0  # without a mutant
    is_cut_short: bool = False  # it was not seen to its end
    made_of: set = dataclasses.field(default_factory=set)  # sources that may have mutants

    def build(self, builder, mutant=None):
        """The command that runs it."""
        folder = builder.work / re.sub(r"\W+", "_", self.name) / (str(mutant.id) if mutant is not None else "all")
        folder.mkdir(parents=True, exist_ok=True)
        objects = []
        for source in self.sources:
            objects.append(folder / (hashlib.sha1(source.encode()).hexdigest()[:12] + ".o"))
            self.made_of |= builder.compile(source, objects[-1], self.folders, self.flags, mutant)
        program = folder / "program"
        builder.call([builder.compiler[-1], *builder.flags, *objects, *builder.shared_objects(), *self.links, "-o", program])
        return [*self.launcher, program, *self.arguments]

    def clean(self, builder, mutant):
        shutil.rmtree(builder.work / re.sub(r"\W+", "_", self.name) / str(mutant.id), ignore_errors=True)


@dataclasses.dataclass
class Library:
    name: str
    sources: list
    flags: list
    links: list


class Libraries:
    """Shared libraries with mutants, which take the place of those of a build in whatever loads them."""

    def __init__(self, libraries, folders):
        self.libraries, self.folders = libraries, folders
        self._lock, self._folder = threading.Lock(), None

    def build(self, builder):
        with self._lock:
            if self._folder is None:
                folder = builder.work / "lib"
                folder.mkdir(parents=True, exist_ok=True)
                for library in self.libraries:
                    objects = []
                    for source in library.sources:
                        objects.append(folder / f"{library.name}.{pathlib.PurePath(source).name}.o")
                        builder.compile(source, objects[-1], self.folders, ["-fPIC", *library.flags])
                    builder.call([builder.compiler[-1], "-shared", *objects, *builder.shared_objects(), *library.links, "-o",
                                  folder / library.name])
                self._folder = folder
            return self._folder


@dataclasses.dataclass
class CtestProgram:
    """A test of the build as ctest knows it, over libraries with mutants."""
    name: str
    command: list
    environment: dict
    libraries: Libraries
    replaced: pathlib.Path  # the folder of the libraries without mutants
    passes_by: tuple = ()  # patterns: if its output has one of them, it passes, whatever its exit status; none: the exit status says it
    memory_bytes: int = 0
    seconds: float = 0
    is_cut_short: bool = False
    made_of: set = dataclasses.field(default_factory=set)  # nothing that the compiler has to know

    def build(self, builder, mutant=None):
        if mutant is not None:
            raise DoesNotBuild("a mutant that the compiler has to know, in a library")
        folder = self.libraries.build(builder)
        self.environment["LD_LIBRARY_PATH"] = f"{folder}:{self.environment.get('LD_LIBRARY_PATH', '')}"
        return [argument.replace(str(self.replaced), str(folder)) for argument in self.command]


def list_ctests(build, pattern, libraries, replaced):
    said = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", "-R", pattern, "-LE", "thorough"], capture_output=True,
                          text=True, check=True)
    for test in json.loads(said.stdout)["tests"]:
        if "command" not in test:
            raise SystemExit(f"{test['name']} is not built: cmake --build {build}")
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        environment = dict(entry.split("=", 1) for entry in properties.get("ENVIRONMENT", []))
        yield CtestProgram(test["name"], test["command"], environment, libraries, replaced,
                           tuple(properties.get("PASS_REGULAR_EXPRESSION", ())))


def run(program, command, environment, limit_s):
    """(whether it passed, what it said last)."""
    said = {**os.environ, "TSAN_OPTIONS": TSAN, **program.environment, **environment}

    def limit_memory():
        if program.memory_bytes != 0:
            resource.setrlimit(resource.RLIMIT_AS, (program.memory_bytes, program.memory_bytes))

    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, errors="replace", check=False, timeout=limit_s,
                              env=said, stdin=subprocess.DEVNULL, preexec_fn=limit_memory)
    except subprocess.TimeoutExpired:
        return False, f"not done after {limit_s:.0f} s"
    if program.passes_by:
        if any(re.search(pattern, done.stdout + done.stderr) for pattern in program.passes_by):
            return True, ""
        return False, f"its output has none of {program.passes_by}"
    if done.returncode == 0:
        return True, ""
    seed = re.search(r"\bseed (\d+): (.{0,80})", done.stdout)
    test = re.search(r"^\[  FAILED  \] (\S+)", done.stdout, re.M)
    if test is not None:
        return False, f"{test[1].rstrip(',')}{f' (seed {seed[1]})' if seed is not None else ''}"
    race = re.search(r"SUMMARY: (.{0,60})", done.stderr)
    return False, race[1] if race is not None else f"ended with {done.returncode}"


def observe(program, command, record, limit_s):
    """Runs it as it is: (which mutants' places it reached, why it failed). What takes longer than the limit has not failed, and may
    reach more places than these."""
    begin = time.monotonic()
    passed, said = run(program, command, {"FAULT_RECORD": str(record)}, limit_s)
    program.seconds = time.monotonic() - begin
    reached = record.read_bytes() if record.exists() else bytes(IDS)
    record.unlink(missing_ok=True)
    program.is_cut_short = not passed and program.seconds >= limit_s
    return reached, "" if passed or program.is_cut_short else said


def judge(program, command, mutant):
    limit_s = CUT_SHORT_LIMIT_S if program.is_cut_short else max(LEAST_LIMIT_S, LIMIT_FACTOR * program.seconds)
    return run(program, command, {"FAULT": str(mutant.id)}, limit_s)
