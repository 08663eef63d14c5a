"""Every memory order, scope, fence and barrier of the device library, each weakened in turn."""
import re

from schemata import Edit, Mutant
from source import Source

# (name, pattern, replacement). The change is made to the whole call around the match.
IN_CALLS = [
    ("acquire to relaxed", re.compile(r"\bload_acquire(?=<)"), "load_relaxed"),
    ("release to relaxed", re.compile(r"\bstore_release(?=<)"), "store_relaxed"),
    ("acquire to relaxed", re.compile(r"\bOrder::kAcquire\b"), "Order::kRelaxed"),
    ("release to relaxed", re.compile(r"\bOrder::kRelease\b"), "Order::kRelaxed"),
    ("acquire-release to relaxed", re.compile(r"(?<!fence<)(?<!fence<detail::vd::)\bOrder::kAcquireRelease\b"), "Order::kRelaxed"),
    ("system to gpu scope", re.compile(r"\bScope::kSystem\b"), "Scope::kGpu"),
    ("gpu to block scope", re.compile(r"\bScope::kGpu\b"), "Scope::kBlock"),
]
LEFT_OUT = [
    ("fence left out", re.compile(r"(?:\w+::)*\bfence<[^;{}]*?>\(\)")),
    ("barrier left out", re.compile(r"(?:\w+::)*\b(?:group\.sync|Group\{\}\.sync|block\.sync|sync_warp|sync_block|await_cluster"
                                    r"|sync_named)\(")),
]
TURNS = re.compile(r"(?<=% )kSymmTurns\b")
SKIPPED_LINES = re.compile(r"^\s*(#|static_assert|asm|VERBENA_BY|next\()|\bemulation::|if constexpr|^VERBENA_DEVICE|template <|operator")


def find(path, text):
    """The mutants of a source, without numbers."""
    source = Source(text, path)
    begin = 0
    for line in source.code.splitlines(keepends=True):
        if not SKIPPED_LINES.search(line) or re.search(r"\bsync\(\) const", line):
            yield from find_in_line(source, path, begin, line)
        begin += len(line)


def find_in_line(source, path, begin, line):
    found = []
    for name, pattern, replacement in IN_CALLS:
        for match in pattern.finditer(line):
            found.append(weaken_call(source, path, begin + match.start(), begin + match.end(), name, replacement))
    for name, pattern in LEFT_OUT:
        for match in pattern.finditer(line):
            first, end = begin + match.start(), begin + match.end()
            if line[match.end() - 1] == "(":
                end = source.close(end - 1)
            if source.code[end:end + 1] != ";":
                continue
            callee = re.sub(r"<.*|\(.*", "", source.text[first:end], flags=re.S)
            found.append(make(source, path, name, callee, first, end, "static_cast<void>(0)"))
    for match in TURNS.finditer(line):
        found.append(make(source, path, "slots not in turn", "kSymmTurns", begin + match.start(), begin + match.end(), "1"))
    return sorted(found, key=lambda mutant: mutant.edits[0].begin)


def weaken_call(source, path, first, end, name, replacement):
    call = source.call_at(first) if "::" not in replacement else source.call_of_template_argument(first)
    if call is None:  # a constant expression
        begin = first - len(re.search(r"(?:\w+::)*$", source.code[:first]).group(0))
        mutant = make(source, path, name, source.text[first:end], begin, end, source.text[begin:first] + replacement)
        mutant.is_constant = True
        return mutant
    begin_of_call, end_of_call, callee = call
    weaker = source.text[begin_of_call:first] + replacement + source.text[end:end_of_call]
    return make(source, path, name, callee, begin_of_call, end_of_call, weaker)


def make(source, path, name, callee, begin, end, replacement):
    key = f"{path.name} | {source.function_at(begin)} | {name} | {callee}"
    return Mutant(path, source.line_of(begin), key, [Edit(begin, end, replacement)])
