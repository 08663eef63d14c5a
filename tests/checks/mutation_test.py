#!/usr/bin/env python3
"""tests/mutation: keys that edits elsewhere do not change, the choice of a mutant when a process starts, what can be said at a mark,
and that a survivor, a stale line of survivors.txt and an unknown mark are failures.

usage: mutation_test.py COMPILER
"""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "tests/mutation"
COMPILER = sys.argv.pop(1) if len(sys.argv) > 1 else "c++"
sys.path.insert(0, str(FOLDER))

import planted  # noqa: E402
import programs  # noqa: E402
import schemata  # noqa: E402
import suites  # noqa: E402
import weakenings  # noqa: E402
from source import Source  # noqa: E402

HEADER = """// A comment with load_acquire<Scope::kSystem>(nothing) in it.
namespace verbena {
template <typename T>
class Barrier {
 public:
  void arrive(uint64_t* words, uint64_t round) {
    store_release<Scope::kSystem>(words + 1, load_relaxed<Scope::kGpu>(words) + round);
    group.sync();
  }
  bool wait(const uint64_t* words) const {
    return wait_until<Relation::kEqual, Scope::kSystem>(words, 1) && load_acquire<Scope::kGpu>(words) != 0;
  }
};
inline Order choose(bool is_acquire) { return is_acquire ? Order::kAcquire : Order::kRelaxed; }
}  // namespace verbena
"""


def find_weakenings(text):
    found = list(weakenings.find(pathlib.PurePosixPath("barrier.cuh"), text))
    schemata.number_keys(found)
    return found


def plant(text, **faults):
    """The text that each fault makes of a piece of code with marks of the faults' names."""
    found = list(planted.find(pathlib.PurePosixPath("x.h"), text, faults, set(), set()))
    return [[edit.text for edit in mutant.edits] for mutant in found]


class KeysTest(unittest.TestCase):
    def test_what_is_found(self):
        self.assertEqual([mutant.key for mutant in find_weakenings(HEADER)], [
            "barrier.cuh | Barrier::arrive | release to relaxed | store_release",
            "barrier.cuh | Barrier::arrive | system to gpu scope | store_release",
            "barrier.cuh | Barrier::arrive | gpu to block scope | load_relaxed",
            "barrier.cuh | Barrier::arrive | barrier left out | group.sync",
            "barrier.cuh | Barrier::wait | system to gpu scope | wait_until",
            "barrier.cuh | Barrier::wait | acquire to relaxed | load_acquire",
            "barrier.cuh | Barrier::wait | gpu to block scope | load_acquire",
            "barrier.cuh | choose | acquire to relaxed | Order::kAcquire",
        ])  # fmt: skip

    def test_edits_elsewhere_do_not_change_them(self):
        edited = HEADER.replace("namespace verbena {", "namespace verbena {\n\ninline void before() { if (true) return; }\n", 1)
        edited = edited.replace("words", "places").replace("    group.sync();", "    // why\n    group  .sync();".replace("  .", "."))
        self.assertEqual([mutant.key for mutant in find_weakenings(edited)], [mutant.key for mutant in find_weakenings(HEADER)])

    def test_alike_ones_are_numbered(self):
        twice = HEADER.replace("    group.sync();", "    group.sync();\n    group.sync();")
        self.assertIn("barrier.cuh | Barrier::arrive | barrier left out | group.sync (2)", [mutant.key for mutant in find_weakenings(twice)])

    def test_numbers_differ(self):
        numbers = [mutant.id for mutant in find_weakenings(HEADER * 1)]
        self.assertEqual(len(numbers), len(set(numbers)))

    def test_functions(self):
        source = Source("struct A {\n  A() : x_{1}, y_(2) { f([&] { g(); }); }\n  int operator()(int i) const { return i; }\n};\n"
                        "#define TWICE(x) \\\n  do { x; x; } while (false)\nvoid A::later() noexcept {}\n")
        self.assertEqual([function.name for function in source.functions], ["A::A", "A::operator()", "TWICE", "A::later"])
        self.assertEqual(source.function_at(source.text.index("g()")), "A::A")

    def test_braces_that_do_not_match(self):
        with self.assertRaises(ValueError):
            Source("void f() { if (true) { }")


class PlantedTest(unittest.TestCase):
    def test_statements(self):
        code = "void f() {\n  a();  // FAULT(one)\n  // FAULT(two)\n  if (b) c(d, [] { e(); });\n  g();\n}\n"
        self.assertEqual(plant(code, one=planted.drop(), two=planted.statement("{} h();")), [[";"], ["if (b) c(d, [] { e(); }); h();"]])
        self.assertEqual(plant(code, one=planted.drop(2), two=planted.insert("i();")), [[";"], ["i(); if (b) c(d, [] { e(); });"]])

    def test_expressions(self):
        code = "bool f() {\n  if (a && (b || c) &&\n      d) // FAULT(x)\n    e();\n  return g || h(i, j);  // FAULT(y)\n}\n"
        code = code.replace("  if (a", "  // FAULT(x)\n  if (a").replace(" // FAULT(x)\n    e", "\n    e")
        self.assertEqual(plant(code, x=planted.operand(2), y=planted.operand(1)), [["(true)"], ["(false)"]])
        self.assertEqual(plant(code, x=planted.condition("!{}"), y=planted.returned("1")), [["(!(a && (b || c) &&\n      d))"], ["(1)"]])
        self.assertEqual(plant(code, x=planted.operand(3, "k"), y=planted.argument(2, "{} + 1")), [["(k)"], ["((j) + 1)"]])
        self.assertEqual(plant(code, x=planted.condition("0"), y=planted.part(r"\bg\b", "m")), [["(0)"], ["(m)"]])

    def test_layout_does_not_matter(self):
        one = "void f() {\n  x = a && b && c;  // FAULT(x)\n}\n"
        other = "void f() {\n  // FAULT(x)\n  x = a &&\n      b &&   // why\n      c;\n}\n"
        self.assertEqual(plant(one, x=planted.operand(3)), plant(other, x=planted.operand(3)))

    def test_unknown_mark(self):
        with self.assertRaisesRegex(ValueError, "no suite has the fault what"):
            plant("void f() {\n  a();  // FAULT(what)\n}\n")

    def test_a_mark_of_two_places(self):
        with self.assertRaisesRegex(ValueError, "marked twice"):
            plant("void f() {\n  a();  // FAULT(x)\n  b();  // FAULT(x)\n}\n", x=planted.drop())

    def test_code_of_another_kind(self):
        with self.assertRaisesRegex(ValueError, "not of the kind"):
            plant("void f() {\n  a();  // FAULT(x)\n}\n", x=planted.condition("false"))


CODE = """#include <cstdlib>
inline int add(int a, int b) { return a + b; }
inline int count(bool is_odd, int more) {
  int sum = 0;
  if (is_odd && more > 0) sum = add(1, add(2, more));  // FAULT(first, inner)
  sum += 10;  // FAULT(skipped)
  return sum;
}
constexpr int kSize = 4;  // FAULT(built)
inline int unreached() { return add(5, 5); }  // FAULT(unreached)
"""
TEST = """#include "code.h"
int main() { return count(true, 3) == 16 && kSize == 4 ? 0 : 1; }
"""
FAULTS = {
    "first": planted.condition("false"),
    "inner": planted.part(r"add\(2, more\)", "2"),
    "skipped": planted.drop(),
    "built": planted.value("5"),
    "unreached": planted.returned("0"),
}


class RunTest(unittest.TestCase):
    """A project of two files, judged by the command itself."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "library").mkdir()
        (self.folder / "library/code.h").write_text(CODE, encoding="ascii")
        (self.folder / "test.cc").write_text(TEST, encoding="ascii")
        (self.folder / "tests").mkdir()
        (self.folder / "tests/mutation").symlink_to(FOLDER)
        self.survivors = self.folder / "survivors.txt"
        self.survivors.write_text("small | unreached | no test calls it\n", encoding="ascii")
        loader = importlib.machinery.SourceFileLoader("mutation_run", str(FOLDER / "run"))
        self.command = types.ModuleType("mutation_run")
        self.command.__file__ = str(self.folder / "run")  # survivors.txt is beside it
        loader.exec_module(self.command)
        self.command.__file__ = str(self.folder / "run")
        self.command.PROJECT = self.folder

    def judge(self, *arguments):
        def find(path, text):
            for mutant in planted.find(path, text, FAULTS, set(), set()):
                mutant.is_constant = mutant.key == "built"
                yield mutant

        def small(_root, _build):
            program = programs.Program("test", ["test.cc"], ["library"], [])
            return suites.Suite([pathlib.PurePosixPath("library/code.h")], ["library"], find, [program], ["-std=c++20"], faults=FAULTS)

        self.command.SUITES = {"small": small}
        counts = self.folder / "counts"
        saved = sys.argv, dict(os.environ)
        sys.argv = ["run", "--build", str(self.folder), "--compiler", COMPILER, *arguments]
        os.environ["STAGE_COUNTS"] = str(counts)
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                status = self.command.main()
        finally:
            sys.argv = saved[0]
            os.environ.clear()
            os.environ.update(saved[1])
        return status, output.getvalue(), counts.read_text(encoding="ascii").split()[:3]

    def test_each_is_judged(self):
        status, said, counts = self.judge()
        self.assertEqual((status, counts), (0, ["5", "0", "0"]), said)
        for name in ("first", "inner", "skipped", "built"):
            self.assertRegex(said, rf"(?m)^red: .*: {name}: test: ended with 1$")
        self.assertRegex(said, r"(?m)^survived: .*: unreached: no test reaches it$")

    def test_a_survivor_without_a_reason(self):
        self.survivors.write_text("", encoding="ascii")
        status, said, counts = self.judge()
        self.assertEqual((status, counts[1]), (1, "1"))
        self.assertRegex(said, r"(?m)^FAILED: survived: .*unreached")

    def test_a_reason_that_no_longer_holds(self):
        self.survivors.write_text("small | unreached | why\nsmall | skipped | why\nsmall | gone | why\n", encoding="ascii")
        status, said, _ = self.judge()
        self.assertEqual(status, 1)
        self.assertRegex(said, r"(?m)^FAILED: red: .*skipped")
        self.assertRegex(said, r"(?m)^FAILED: survivors.txt names what is not there: gone$")

    def test_a_test_that_fails_by_itself(self):
        (self.folder / "test.cc").write_text(TEST.replace("16", "17"), encoding="ascii")
        status, said, _ = self.judge()
        self.assertEqual(status, 1)
        self.assertRegex(said, r"FAILED: without a mutant: test: ended with 1")

    def test_a_fault_without_a_mark(self):
        (self.folder / "library/code.h").write_text(CODE.replace("  // FAULT(skipped)", ""), encoding="ascii")
        status, said, _ = self.judge()
        self.assertEqual(status, 1)
        self.assertRegex(said, r"FAILED: no source has the mark FAULT\(skipped\)")

    def test_a_sample_is_the_same_for_a_seed(self):
        def order(seed):
            said = self.judge("--sample", "60", "--seed", str(seed), "--jobs", "1")[1]
            return [line.split(": ")[2] for line in said.splitlines() if line.startswith("red")]

        self.assertEqual(order(1), order(1))
        self.assertEqual(sorted(order(1)), ["built", "first", "inner", "skipped"])
        self.assertGreater(len({tuple(order(seed)) for seed in range(5)}), 1)

    def test_a_sample_ends_in_time(self):
        status, said, counts = self.judge("--sample", "0")
        self.assertEqual((status, counts[0]), (1, "0"))
        self.assertIn("not one mutant was noticed", said)


if __name__ == "__main__":
    unittest.main()
