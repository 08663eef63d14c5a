"""The shell commands that the documents show: found in their code blocks, with their output too, and between backticks."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

# A line that begins with one of these is a command; all lines of such a block are. Others are code or output.
PROGRAMS = re.compile(
    r"^(\./|tools/|tests/|examples/|build/|verbena-|nccl-perf|cmake |ctest |export |make |torchrun |mpirun |pip |python3 |"
    r"head |kill |echo |apt |dpkg |docker |podman |[A-Z][A-Z_]+=|host[A-Z]\$ )"
)
HOST = re.compile(r"^host([A-Z])\$ ")
PROMPT = "$ "


@dataclass
class Command:
    place: str
    text: str  # without its comment and its host
    host: str = ""
    words: list[str] = field(default_factory=list)

    @property
    def program(self) -> str:
        """The first word that is no assignment."""
        return next((word for word in self.words if not re.match(r"^[A-Z_]+=", word)), "")

    @property
    def options(self) -> list[str]:
        """What follows ` -- ` is another program's."""
        words = self.words[: self.words.index("--")] if "--" in self.words else self.words
        return [word.split("=")[0] for word in words if re.match(r"^--?[a-z][a-z-]*(=|$)", word)]


def parse(place: str, line: str) -> Command:
    host = HOST.match(line)
    text = HOST.sub("", line)
    words = shlex.split(text, comments=True)
    # As it was written, so that the shell sees its quotes, but without what shlex took for a comment.
    text = re.split(r"\s+# ", text)[0].strip()
    return Command(place, text, host[1] if host else "", words)


@dataclass
class Session:
    """A command as it was typed, behind `$ `, and what it answered."""

    command: Command
    output: list[str]


Line = tuple[str, str]  # its place, its text


def list_code(path: Path, root: Path) -> list[list[Line]]:
    """The code blocks of a document, fenced or indented, without their empty lines."""
    blocks: list[list[Line]] = [[]]
    is_fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            is_fenced = not is_fenced
            blocks.append([])
        elif is_fenced or line.startswith("    "):
            if line.strip():
                blocks[-1].append((f"{path.relative_to(root)}:{number}", line if is_fenced else line[4:]))
        else:
            blocks.append([])
    return [block for block in blocks if block]


def is_session(block: list[Line]) -> bool:
    return block[0][1].startswith(PROMPT)


def is_commands(block: list[Line]) -> bool:
    return PROGRAMS.match(block[0][1].strip()) is not None


def find_blocks(path: Path, root: Path) -> list[list[Command]]:
    """What of a document is a shell's, without output: whole blocks, and commands between backticks."""
    blocks = []
    for block in list_code(path, root):
        if is_commands(block):
            blocks.append([parse(place, line.strip()) for place, line in block if not line.lstrip().startswith("#")])
    is_fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        is_fenced ^= line.startswith("```")
        if is_fenced or line.startswith("    "):
            continue
        for span in re.findall(r"`([^`]+)`", line):
            if PROGRAMS.match(span) and " -" in span and not re.search(r"\.\.\.|[*]", span):
                blocks.append([parse(f"{path.relative_to(root)}:{number}", span)])
    return blocks


def find_sessions(path: Path, root: Path) -> list[Session]:
    sessions: list[Session] = []
    for block in filter(is_session, list_code(path, root)):
        for place, line in block:
            if line.startswith(PROMPT):
                sessions.append(Session(parse(place, line.removeprefix(PROMPT)), []))
            else:
                sessions[-1].output.append(line)
    return sessions


def find_others(path: Path, root: Path) -> list[list[Line]]:
    """Code blocks in which no command is looked for."""
    return [block for block in list_code(path, root) if not is_session(block) and not is_commands(block)]


def list_documents(root: Path) -> list[Path]:
    chosen = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for folder in ("docs", "tools", "tests", "examples", "packaging", "python", "include", "plugin", "device"):
        chosen += sorted((root / folder).rglob("*.md"))
    return [path for path in chosen if path.exists()]
