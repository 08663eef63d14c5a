#!/usr/bin/env python3
"""Every environment variable that the product's sources read is in a table of plugin/settings, and the variables of others there are read."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STRING = re.compile(r'"([^"\n]*)"')
VARIABLE = re.compile(r"[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)*")
# The product: what is installed. Tests and examples read what they like.
TOOLS = ("common", "nccl-perf", "verbena-bench", "verbena-info", "verbena-perf")
FOLDERS = ("plugin", "device", "include", "python/verbena", *(f"tools/{tool}" for tool in TOOLS))
SUFFIXES = (".cc", ".h", ".cu", ".cuh", ".hpp", ".py", ".in")
READ = re.compile(r"\bgetenv\(([^();]*(?:\(\))?)\)|\bset_environment_default\(([^,();]+),|\bos\.(?:environ\.(?:get|setdefault|pop)\(|environ\[|getenv\()([^,)\]]+)")
# Files that read what a variable names, and their strings that look like variables and are none. All other strings of these files are
# compared with the tables; None: the names come from the tables.
INDIRECT = {
    "plugin/base/parameters.cc": None,
    "plugin/softverbs/shared/config.cc": None,
    "plugin/bootstrap/environment.cc": {"PMI"},
    "plugin/nccl/tuning.cc": set(),
    "tools/common/nccl_search.cc": {"CUDA"},
    "tools/nccl-perf/calibrate.cc": set(),
    "python/verbena/backends.py": set(),
    "python/verbena/finder.py": {"MULTIARCH"},
    "python/verbena/c10d/calls.py": {"SUM", "AVG", "PREMUL_SUM"},
    "python/verbena/integrations/engine.py": set(),
}


def read_tables():
    """The names of all settings, and those of the variables of others."""
    settings, others = set(), set()
    for table in (ROOT / "plugin/settings").glob("*.def"):
        for kind, row in re.findall(r"^VERBENA_([A-Z]+)\s*\((.*?)(?=^VERBENA_|^#|\Z)", table.read_text(), re.M | re.S):
            name, aliases = STRING.findall(row)[:2]
            if kind == "READ":
                others.add(name)
            elif kind != "IGNORED":
                settings |= {name, *aliases.split()}
    return settings, others


def list_sources():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


class SettingsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.settings, cls.others = read_tables()
        cls.known = cls.settings | cls.others
        cls.sources = dict(list_sources())

    def require_known(self, path, names):
        unknown = set(names) - self.known
        self.assertFalse(unknown, f"{path} reads variables that no table of plugin/settings has")

    def test_what_sources_read_is_in_a_table(self):
        found = 0
        for path, text in self.sources.items():
            for groups in READ.findall(text):
                word = "".join(groups).strip()
                literal = STRING.fullmatch(word)
                if literal:
                    found += 1
                    self.require_known(path, [literal[1]])
                elif word and not word.startswith("const char"):  # a declaration
                    self.assertIn(path, INDIRECT, f"reads the variable that {word} names")
        self.assertGreater(found, 10)

    def test_names_that_are_passed_on_are_in_a_table(self):
        for path, exceptions in INDIRECT.items():
            if exceptions is not None:
                names = {one for one in STRING.findall(self.sources[path]) if VARIABLE.fullmatch(one)} - exceptions
                self.assertTrue(names, path)
                self.require_known(path, names)

    def test_strings_that_look_like_settings_are_in_a_table(self):
        ours = re.compile(r'"((?:VERBENA|SOFTVERBS|LIBVERBENA|USE_VERBENA)_[A-Z0-9_]*[A-Z0-9])"')
        constants = "\n".join(text for path, text in self.sources.items() if path.startswith("include/"))
        for path, text in self.sources.items():
            self.require_known(path, (name for name in ours.findall(text) if not re.search(rf"\b{name}\b", constants)))

    def test_the_variables_of_others_are_read(self):
        text = "\n".join(text for path, text in self.sources.items() if not path.startswith("plugin/settings/"))
        for name in sorted(self.others):
            self.assertIn(f'"{name}"', text)


if __name__ == "__main__":
    unittest.main()
