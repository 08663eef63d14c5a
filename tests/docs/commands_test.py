"""Every command that a document shows is one that works: its program is there and knows its options, and it is run
wherever a machine without GPUs and NCCL can run it.

usage: commands_test.py BUILD_FOLDER
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from functools import cache
from pathlib import Path

import commands
import shape

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv.pop(1)).resolve()

# What a reader has by another name: here a program of ours in its place.
STAND_INS = {
    "/tmp/": "./",  # first: the others may hold it
    "/path/to/lib/softverbs": str(BUILD / "lib/softverbs"),
    "./my-program": f"{BUILD}/bin/verbena-perf --size 4k --iters 50",
    "hostA": "127.0.0.1",
}
# Not run, but its options are looked up: why.
NOT_RUN = [
    (r"^(\./)?tools/(test|demo|tidy|coverage|lint|fuzz|setup|gpu-suite)\b", "takes minutes, or installs packages"),
    (r"^(\./)?tools/rdma-vm|^(\./)?tests/vm/run", "the virtual machine's suite runs it"),
    (r"^(\./)?tests/(packages|foreign|bench|docs|mutation)/|tests/foreign/programs/", "the tests themselves run it"),
    (r"nccl-perf\b|--nccl\b|nccl-ib|--against\b", "needs NCCL, most of it GPUs"),
    (r"verbena-bench\b", "needs a GPU"),
    (r"^tools/jobs/", "needs GPUs, and programs of others"),
    (r"^tools/nccl-gin/", "fetches NCCL's wheels, and needs GPUs"),
    (r"verbena-chaos\b(?!.*--round )", "takes minutes"),
    (r"--calibrate", "takes minutes"),
    (r"^verbena-perf report\b", "the test tools.report runs it"),
    (r"^(cmake|ctest)\b", "builds or tests everything"),
    (r"^(torchrun|mpirun|make|examples/run|pip|apt|dpkg|docker|podman|sudo)\b", "needs what is not ours"),
    (r"\bPID\b", "stands for a process of the reader's"),
]
# Code blocks without commands, by their first line: what they are. Any other block fails the test.
NO_SHELL = [
    (r"^verbena: |^state of \d+ connections", "what the product logs"),
    (r"^# HELP ", "counters, as Prometheus reads them"),
    (r"^# commit: ", "the head of a measurement"),
    (r"^(seed|fail|down) ", "a plan of faults"),
    (r"^\{$", "a tuning file"),
    (r"^\w+ [^#]*[;{]( *//.*)?$", "C++"),
    (r"^(import|from) \w|^@\w|^(torch\.|print\()|^\w+\[\(|^\w+ = ", "Python"),
    (r"^rank 0 of 2, ", "what an example prints; the test of groups runs it"),
    (r"^unique id -> |^writer -> |^nccl +NCCL's tables|^sender +receiver|^rank 0: tokens|^by rank |^ +application \(|^ +host A +host B$|"
     r"^chunk of a dispatch |^dispatch     x of rank 0 ", "a drawing"),
    (r"^2 x [\[(]|^dispatch: +n \(|^R T \(row", "a formula"),
]
# Runs in a separate folder, shortened to seconds: fewer messages, and sizes where none are given.
SHORTENED = {"verbena-perf": "--sizes 4k:16k --iters 20"}
FEWER = [(r"--messages \d+", "--messages 200"), (r"(verbena-perf\b(?!.*--iters).* --sizes? \S+)", r"\1 --iters 20"),
         (r"(gin-host\b(?!.*--(messages|work)).*)", r"\1 --messages 1000")]
LIMIT_S = 60


def find_program(name: str) -> Path | None:
    """One of ours: a script of the repository or a program of the build."""
    if name.startswith("build/default/"):
        return BUILD / name.removeprefix("build/default/")
    if re.match(r"^(\./)?(tools|tests|examples)/", name):
        return ROOT / name
    if re.match(r"^(verbena|nccl)-", name):
        return BUILD / "bin" / name
    return None


@cache
def read_help(*command: str | Path) -> str:
    ended = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return ended.stdout + ended.stderr


def is_run(command: commands.Command) -> bool:
    return not any(re.search(pattern, command.text) for pattern, _ in NOT_RUN)


def put_stand_ins(text: str) -> str:
    for theirs, ours in STAND_INS.items():
        text = text.replace(theirs, ours)
    return text


def run_in_folder(script: str) -> subprocess.CompletedProcess[str]:
    """In one shell, in a folder where the repository's and the build's paths are what the documents say."""
    with tempfile.TemporaryDirectory() as folder:
        for entry in ("tools", "tests", "examples", "docs"):
            (Path(folder) / entry).symlink_to(ROOT / entry)
        (Path(folder) / "build").mkdir()
        (Path(folder) / "build/default").symlink_to(BUILD)
        (Path(folder) / "plan.txt").write_text("delay by=0us..50us chance=0.1\n", encoding="ascii")
        environment = {
            **os.environ,
            "PATH": f"{BUILD}/bin:{os.environ['PATH']}",
            "HOME": folder,
            "SOFTVERBS_DEVICES": "2",
            "CUDA_VISIBLE_DEVICES": "",  # the documents' sessions are of a host without GPUs
        }
        return subprocess.run(
            ["timeout", str(LIMIT_S), "bash", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


class CommandsTest(unittest.TestCase):
    def setUp(self) -> None:
        documents = commands.list_documents(ROOT)
        self.blocks = [block for path in documents for block in commands.find_blocks(path, ROOT)]
        self.sessions = [session for path in documents for session in commands.find_sessions(path, ROOT)]
        self.others = [block for path in documents for block in commands.find_others(path, ROOT)]

    def test_commands_are_found(self) -> None:
        """A change of the documents' form would leave the other tests nothing to do."""
        self.assertGreater(sum(len(block) for block in self.blocks), 30)

    def test_programs_know_their_options(self) -> None:
        typed = [command for block in self.blocks for command in block]
        for command in typed + [session.command for session in self.sessions]:
            program = find_program(command.program)
            if program is None:
                continue
            with self.subTest(command.place, command=command.text):
                self.assertTrue(os.access(program, os.X_OK), f"{program} is not there")
                subcommand = re.findall(r"verbena-bench (\w+)", command.text)[:1]
                for option in command.options:
                    known = re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", read_help(program, *subcommand))
                    self.assertTrue(known, f"{option} is not in {' '.join([program.name, *subcommand])} --help")

    def test_blocks_run(self) -> None:
        count = 0
        for block in self.blocks:
            runnable = [command for command in block if is_run(command)]
            if any(find_program(c.program) or "./my-program" in c.text for c in runnable):
                count += 1
                with self.subTest(block[0].place, commands=[c.text for c in runnable]):
                    self.run_block(runnable)
        self.assertGreater(count, 4)

    def test_sessions_say_what_is_documented(self) -> None:
        """The same headings and names of fields, in the same order; values are a machine's."""
        ran = 0
        for session in filter(lambda session: is_run(session.command), self.sessions):
            ran += 1
            with self.subTest(session.command.place, command=session.command.text):
                ended = run_in_folder(put_stand_ins(session.command.text))
                self.assertIn(ended.returncode, (0, 1), ended.stderr)  # a failed check is an answer too
                self.assertGreater(len(shape.describe(session.output)), 2, "nothing of it would be compared")
                missing = shape.find_missing(session.output, ended.stdout.splitlines())
                self.assertIsNone(missing, f"is not in\n{ended.stdout[-4000:]}\n{ended.stderr[-2000:]}")
        self.assertGreater(ran, 1)

    def test_shapes_differ(self) -> None:
        seen = ["DEVICES", "    link           active", "    place          no PCI device", "# 2 ok, 1 failed"]
        self.assertIsNone(shape.find_missing(["DEVICES", "    ...", "    place          node 1", "# 1 ok, 9 failed"], seen))
        for wrong in (["    rail           x"], ["GPUS"], ["    place          x", "    link           x"], ["# 2 ok"]):
            self.assertEqual(shape.find_missing(wrong, seen), wrong[-1])

    def test_other_blocks_have_a_reason(self) -> None:
        """Whatever is neither commands nor a session is something that this test knows."""
        for block in self.others:
            place, first = block[0]
            with self.subTest(place, first=first):
                self.assertTrue(any(re.search(pattern, first) for pattern, _ in NO_SHELL), "is this a shell's?")
                hidden = [line for _, line in block if commands.PROGRAMS.match(line.strip())]
                self.assertEqual(hidden, [], "a block of commands begins with one")
        unused = [why for pattern, why in NO_SHELL if not any(re.search(pattern, b[0][1]) for b in self.others)]
        self.assertEqual(unused, [])

    def run_block(self, block: list[commands.Command]) -> None:
        """As a reader would type it. A server goes on behind its client."""
        lines = ["set -e"]
        for command in block:
            text = put_stand_ins(command.text)
            name = Path(command.program).name
            if "--size" not in text and name in SHORTENED and not re.search(r"--(help|version|server|client)", text):
                text += " " + SHORTENED[name]
            if "--client" in text and "--size" not in text:
                text += " " + SHORTENED["verbena-perf"]
            for pattern, fewer in FEWER:
                text = re.sub(pattern, fewer, text)
            if "--server" in text:
                text += " >server.log 2>&1 &"
            lines.append(text)
        lines.append("wait")
        ended = run_in_folder("\n".join(lines))
        self.assertEqual(ended.returncode, 0, f"{lines}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")


if __name__ == "__main__":
    unittest.main()
