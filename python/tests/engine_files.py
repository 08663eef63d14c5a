"""Loads the files of inference engines that `tools/setup engines` has unpacked from the engines' wheels."""
import ast
import contextlib
import importlib
import importlib.machinery
import os
import pathlib
import sys
import tomllib
import types
import warnings

import pytest

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "verbena" / "engines"
PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def list_engines(name):
    """Returns the folders of the available versions. The name of each folder ends with the version, and the newest version is last."""
    return sorted(path for path in CACHE.glob(f"{name}-*") if path.is_dir())


def find_engine(name):
    """The newest version's folder."""
    found = list_engines(name)
    if not found:
        pytest.skip(f"no files of {name} in {CACHE} (tools/setup engines)")
    return found[-1]


@contextlib.contextmanager
def importable(folder, *bare):
    """Makes the modules of the folder importable within the `with` block. For the packages in `bare`, skips their __init__.py, which
    imports packages that are not installed here. Removes everything afterwards."""
    roots = {name.split(".")[0] for name in bare}
    before = dict(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        for name in bare:
            add_module(name, __path__=[str(folder / name.replace(".", "/"))])
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - set(before):
            if name.split(".")[0] in {*roots, "verbena"}:
                del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if name.split(".")[0] in {*roots, "verbena"}})


class _Anything(type):
    """A class that replaces a class that is not loaded. It works as a base class, in annotations and in isinstance(); its attributes and
    results are further such classes."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __getitem__(cls, item):
        return cls

    def __bool__(cls):
        return False

    def __call__(cls, *arguments, **named):
        # As a decorator, and as one with arguments: what is decorated stays as it is.
        if len(arguments) == 1 and not named and callable(arguments[0]) and cls.__init__ is object.__init__:
            return arguments[0]
        if cls.__init__ is not object.__init__:
            return super().__call__(*arguments, **named)
        return super().__call__() if cls.__name__[0].isupper() else cls


class _AnyModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Anything(name, (), {})
        setattr(self, name, made)
        return made


class _Finder:
    """Finds the modules of a package, except the modules that are loaded from its files."""

    def __init__(self, root, real):
        self._root, self._real = root, real

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != self._root or name in self._real:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _AnyModule(spec.name)

    def exec_module(self, module):
        pass


@contextlib.contextmanager
def importable_parts(folder, *real):
    """Makes the modules `real` of the folder importable. Wherever they import other modules of their package, they get modules in which
    every name is a class. Removes everything afterwards."""
    packages = {".".join(name.split(".")[:count]) for name in real for count in range(1, name.count(".") + 1)}
    finder = _Finder(real[0].split(".")[0], real)
    with importable(folder):
        sys.meta_path.insert(0, finder)
        try:
            for name in sorted(packages - set(real)):
                module = sys.modules[name] = _AnyModule(name)
                module.__path__ = [str(folder / name.replace(".", "/"))]
                if "." in name:
                    parent, _, last = name.rpartition(".")
                    setattr(sys.modules[parent], last, module)
            yield
        finally:
            sys.meta_path.remove(finder)
            for name in [name for name in sys.modules if name.split(".")[0] == real[0].split(".")[0]]:
                del sys.modules[name]


def add_module(name, **contents):
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)
    return module


def add_definitions(name, path, wanted, **needed):
    """Adds the module `name`, which contains only the classes and functions `wanted` of the file. `needed` lists names that must be defined
    for their bodies."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in tree.body if getattr(node, "name", None) in wanted]
    assert len(found) == len(wanted), f"{path} does not define {', '.join(wanted)} (any more)"
    module = add_module(name, **needed)
    # Annotations are not evaluated: they name PyTorch's types.
    code = compile(ast.Module(found, []), str(path), "exec", flags=importlib.import_module("__future__").annotations.compiler_flag)
    exec(code, module.__dict__)
    return module


@contextlib.contextmanager
def installed_entry_points(folder):
    """Makes Verbena's entry points, from both pyproject.toml files, visible as the entry points of an installed distribution."""
    told = [tomllib.loads(path.read_text())["project"]["entry-points"]
            for path in (PACKAGE / "pyproject.toml", PACKAGE.parent / "pyproject.toml")]
    assert told[0] == told[1]
    information = folder / "verbena-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: verbena\nVersion: 0\n")
    (information / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in points.items()) for group, points in told[0].items()))
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def make_alone(module, class_name="VerbenaAllreduce", **arguments):
    """Creates an object of Verbena's class in a group of one rank. The object has all attributes, but creates no communicator."""
    group = types.SimpleNamespace(rank=lambda: 0, size=lambda: 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return getattr(module, class_name)(group=group, device="cpu", **arguments)


def find_calls(path, function):
    """Finds all calls of a function in a file, and all calls of a method of this name. Returns each call as (positional arguments, keywords)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == function:
            yield len(node.args), [one.arg for one in node.keywords if one.arg]
