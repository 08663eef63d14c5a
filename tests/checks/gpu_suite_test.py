"""tools/gpu-suite: the list of its parts without GPUs; a command that fails or hangs ends neither its section nor the others; the table."""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
SUITE = TOP / "tools/gpu-suite"
PARTS = {"part1": ["check", "against", "hosts", "few"], "part2": ["calibrate", "training", "nccl-tests", "shared"]}

sys.dont_write_bytecode = True
SPEC = importlib.util.spec_from_file_location("thresholds", TOP / "tools/report/thresholds.py")
THRESHOLDS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(THRESHOLDS)

# verbena-bench, as far as the suite sees it.
BENCH = """#!/bin/bash
case "$*" in
  *" 3 "*"--random"*) sleep 100;;
  *"--ranks 3 "*) echo 'reason of a failure'; exit 4;;
  *) echo done;;
esac
"""


def run_suite(*arguments, **settings):
    return subprocess.run([SUITE, *arguments], cwd=TOP, env={**os.environ, **settings}, capture_output=True, text=True, timeout=120,
                          check=False)


def list_part(part, gpus):
    listed = run_suite("--list", "--gpus", str(gpus), "/nowhere", "/nowhere", part)
    assert listed.returncode == 0, listed.stderr
    return listed.stdout


class GpuSuite(unittest.TestCase):
    def test_a_part_takes_less_than_ten_minutes(self):
        for part, sections in PARTS.items():
            deadlines = dict(re.findall(r"^(\S+), at most (\d+) s$", list_part(part, 8), re.MULTILINE))
            self.assertEqual(list(deadlines), sections)
            self.assertLessEqual(sum(map(int, deadlines.values())), 590)

    def test_commands_follow_the_number_of_gpus(self):
        for gpus, hosts, few in ((2, ["2"], []), (4, ["2"], ["3"]), (6, ["2", "3"], ["3", "5"]), (8, ["2", "4"], ["3", "5", "6", "7"])):
            text = list_part("part1", gpus)
            self.assertEqual(sorted(set(re.findall(r"--hosts (\d+)", text))), hosts, gpus)
            self.assertEqual(sorted(set(re.findall(r"--ranks (\d+)", text)) - {str(gpus)}), few, gpus)
        for words in ("all_reduce_int4_int8", "all_reduce_norm_fp8", "--grouping ragged", "nccl,torch,flashinfer,sglang,vllm", "DeepEP"):
            self.assertIn(words, list_part("part1", 8))
        for words in ("c10d_on_gpus.py", "fsdp2", "--calibrate", "thresholds.py", "nccl-tests", "--ranks 16"):
            self.assertIn(words, list_part("part2", 8))

    def test_a_failure_ends_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            build, out = pathlib.Path(folder, "build"), pathlib.Path(folder, "out")
            (build / "bin").mkdir(parents=True)
            for name, text in (("verbena-bench", BENCH), ("nccl-perf", "#!/bin/bash\n")):
                (build / "bin" / name).write_text(text, encoding="utf-8")
                (build / "bin" / name).chmod(0o755)
            # Five GPUs: the third rank fails, then hangs until the section's deadline.
            done = run_suite("--gpus", "5", str(build), str(out), "few", "hosts", "check", DEADLINE_S="2")
            table = done.stdout[done.stdout.rindex("section  "):].splitlines()
            self.assertEqual(done.returncode, 1)
            self.assertIn("status 4", table[1])
            self.assertIn("ended after", table[3])
            self.assertIn("[exit status 4;", (out / "few.txt").read_text(encoding="utf-8"))
            self.assertEqual({line.split()[0] for line in table[4:]}, {"check"}, table)  # five GPUs cannot be hosts of equal size
            self.assertTrue(all(" ok " in line for line in table[4:]), table)

    def test_thresholds(self):
        def measure(algorithm, points):
            return {"operation": "all_reduce", "gpu": "GPU", "ranks": 8, "algorithm": algorithm, "points": points}
        found = THRESHOLDS.find_thresholds([measure("one-shot", [[1024, 1, 2.0], [2048, 1, 2.5], [4096, 1, 9.0]]),
                                            measure("two-shot", [[1024, 1, 3.0], [2048, 1, 2.6], [4096, 1, 4.0]])])
        self.assertEqual(found, {("all_reduce", "GPU", 8): [("one-shot", 2048), ("two-shot", 4096)]})

    def test_estimates(self):
        # What the model gives exactly: 2 us, 0.1 us a peer and 4 us per MiB; 4 us, 0.2 us a peer and 2 us per MiB.
        def time(ranks, size, is_one_shot):
            sent = (ranks - 1) * size if is_one_shot else 2 * (ranks - 1) / ranks * size
            return (2 if is_one_shot else 4) + (0.1 if is_one_shot else 0.2) * (ranks - 1) + (4 if is_one_shot else 2) * sent / (1 << 20)
        with tempfile.TemporaryDirectory() as folder:
            arguments = []
            for ranks, most in ((2, 1 << 20), (4, 256 << 10)):
                table = pathlib.Path(folder, f"{ranks}.txt")
                rows = [f" all_reduce bf16 {size >> 10}K {time(ranks, size, size <= most):.4f} 1\n" for size in (1 << i for i in range(15, 25))]
                table.write_text("".join(rows), encoding="utf-8")
                arguments += [table, str(ranks), str(most)]
            done = subprocess.run([TOP / "tools/report/thresholds.py", "--estimate", *arguments], capture_output=True, text=True, check=True)
        self.assertIn("one-shot: 2.00 us + 0.10 us per peer + 4.00 us per MiB sent", done.stdout)
        self.assertIn("two-shot: 4.00 us + 0.20 us per peer + 2.00 us per MiB sent", done.stdout)
        size = (2 + 0.1 * 7) / (4 * 7 - 2 * 2 * 7 / 8) * 1024
        self.assertIn(f"8 ranks: one-shot up to {size:.0f} to {size:.0f} KiB", done.stdout)


if __name__ == "__main__":
    unittest.main()
